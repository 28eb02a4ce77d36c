"""Report the accuracy without attentions, and draw where tokens look, at the end of training."""

from pathlib import Path
from typing import Any

import torch
from mmengine.dist import is_main_process
from mmengine.hooks import Hook
from mmengine.runner import Runner

from soft_vit.engine.models.timm_model import unwrapped
from soft_vit.probe.attentions import attentions, switched_off
from soft_vit.probe.view import attention_row, plot_attention_rows
from soft_vit.registry import HOOKS, register


@register(HOOKS)
class AttentionReportHook(Hook):
    """Measures the validation images with all attentions off, and draws where a token of each stage looks.

    num_images: pictures of the first validation images, `attention_<i>.png` in the run's folder; the token lies in the
    middle of the shape or of the asked tile. For pyramids trained on `ShapesDataset`.
    """

    def __init__(self, num_images: int = 4) -> None:
        self.num_images = num_images

    def after_train(self, runner: Runner) -> None:
        model = unwrapped(runner.model)
        with switched_off(*attentions(model.model).values()):
            metrics = self._measure(runner)
        if not is_main_process():
            return
        runner.logger.info(f"With all attentions off: {metrics}")
        folder = Path(runner.work_dir)
        for number in range(self.num_images):
            self._draw(model, runner.val_dataloader.dataset, number, folder / f"attention_{number}.png")
        runner.logger.info(f"Drawn: {folder}/attention_*.png, where the shape or tile that is meant looks.")

    @torch.no_grad()
    def _measure(self, runner: Runner) -> dict[str, float]:
        # Without the loop's hooks, which would take it for a validation of the run.
        loop = runner.val_loop
        runner.model.eval()
        for batch in loop.dataloader:
            loop.evaluator.process(data_samples=runner.model.val_step(batch), data_batch=batch)
        return loop.evaluator.evaluate(len(loop.dataloader.dataset))

    @torch.no_grad()
    def _draw(self, model: Any, data: Any, number: int, path: Path) -> None:
        sample = data.images[number]
        pixels = torch.from_numpy(sample.image).permute(2, 0, 1)
        (image,) = model.data_preprocessor({"inputs": pixels[None]})["inputs"]
        left, top, right, bottom = sample.box
        y, x = (top + bottom) / 2 / pixels.shape[1], (left + right) / 2 / pixels.shape[2]
        rows = {}
        for stage, (height, width) in enumerate(model.model.grids(sample.image.shape[:2]), start=1):
            rows[f"stage {stage}"] = attention_row(model.model, image, stage, (int(y * height), int(x * width)))
        plot_attention_rows(rows, sample.image, path)
