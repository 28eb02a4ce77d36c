"""Save a model that was pre-trained on images without labels, with a report and its pictures."""

import logging
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
from mmengine.dist import is_main_process
from mmengine.hooks import Hook
from mmengine.runner import Runner
from PIL import Image
from timm.layers import to_2tuple
from torch import Tensor
from torch.nn import functional as F
from tqdm import tqdm

from soft_vit.engine.models.masked import MaskedImageModel, last_map
from soft_vit.engine.models.notes import spec_of_run
from soft_vit.engine.models.timm_model import unwrapped
from soft_vit.linearise.report import pca_colours
from soft_vit.models.eval_mode import eval_mode
from soft_vit.probe.cost import machine_description
from soft_vit.probe.curves import plot_curves, read_run
from soft_vit.probe.view import picture_grid
from soft_vit.registry import HOOKS, register
from soft_vit.weights.files import write_atomically
from soft_vit.weights.save import safetensors_bytes

# Images in the report: those that are masked, those whose neighbours are shown, and how many neighbours.
SHOWN, QUERIES, NEIGHBOURS = 6, 4, 5
# Images that neighbours are chosen from, and on which the loss is measured, and images of a batch.
SAMPLES, BATCH = 64, 16
# The beginnings of MMEngine's records that a bar replaces.
_STEPS = r"(Epoch|Iter)\(train\)|Exp name: |Saving checkpoint at "
TEMPLATE = Path(__file__).with_name("pretraining.md")


@register(HOOKS)
class PretrainingReportHook(Hook):
    """Writes the model of a `MaskedImageModel` and a report to the work directory when the run has ended.

    `timm.create_model("local-dir:WORK_DIR", pretrained=True)` and `load_from="WORK_DIR/model.safetensors"` load the
    model. The report is `report.md` with its pictures: what the model predicts of masked images, the loss of each step,
    and nearest neighbours by the mean of the last map. command: shown in it.
    """

    def __init__(self, command: str = "") -> None:
        self.command = command

    def after_train(self, runner: Runner) -> None:
        model = unwrapped(runner.model)
        if is_main_process():
            folder = Path(runner.work_dir)
            save_model(runner, folder)
            write_report(model, runner, folder, self.command)


def save_model(runner: Runner, folder: Path) -> None:
    """Write the timm model of a run as timm's `save_for_hf` does, with its record in the file of weights, too."""
    model, spec = unwrapped(runner.model).model, spec_of_run(runner)
    channels, *sides = model.pretrained_cfg["input_size"]
    spec = replace(spec, cfg={**spec.cfg, "input_size": (channels, *to_2tuple(runner.cfg.get("image_size", sides)))})
    model.pretrained_cfg = model.pretrained_cfg | spec.entries({}) | {"num_classes": 0}
    timm.models.save_for_hf(model, str(folder), safe_serialization=True)
    weights = {name: value.cpu() for name, value in model.state_dict().items()}
    write_atomically(folder / "model.safetensors", safetensors_bytes(weights, spec))


@register(HOOKS)
class ProgressBarHook(Hook):
    """Shows a bar with the loss instead of the lines of training steps, which stay in the log file."""

    def before_train(self, runner: Runner) -> None:
        for handler in runner.logger.handlers:
            if not isinstance(handler, logging.FileHandler):
                handler.addFilter(lambda record: not re.match(_STEPS, record.getMessage()))
        self._bar = tqdm(total=runner.max_iters, initial=runner.iter, unit="step", disable=not is_main_process())

    def after_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Any = None) -> None:
        # Reading the loss waits for a GPU.
        if batch_idx % 10 == 0:
            self._bar.set_postfix_str(f"loss {(outputs or {})['loss'].item():.3f}", refresh=False)
        self._bar.update()

    def after_train(self, runner: Runner) -> None:
        self._bar.close()


@torch.no_grad()
def write_report(model: MaskedImageModel, runner: Runner, folder: Path, command: str) -> None:
    """Write `report.md`, `masked.png`, `neighbours.png` and `curve.png`."""
    dataset, size = runner.train_dataloader.dataset, model.model.pretrained_cfg["input_size"][1:]
    samples = dataset.images.samples(SAMPLES, size)
    losses, features, pictures = [], [], []
    with eval_mode(model), torch.random.fork_rng():
        torch.manual_seed(0)
        for pixels in samples.split(BATCH):
            x = model.data_preprocessor({"inputs": pixels})["inputs"]
            masks = model.draw(x)
            losses.append(model.loss(x, masks=masks)["loss"].item() * len(x))
            features.append(last_map(model.model, x).float().mean((2, 3)).cpu())
            for i in range(0 if pictures else min(SHOWN, len(x))):
                pictures += _masked(model, x[i, None], masks[i, None])
    first = "image" if model.teacher is None else "features"
    captions = [first, "masked", "predicted"] * (len(pictures) // 3)
    picture_grid(pictures, captions, columns=6).save(folder / "masked.png")
    found = F.normalize(torch.cat(features), dim=-1)
    near = (found @ found.mT).topk(min(NEIGHBOURS + 1, len(samples)), dim=1)
    queries = np.linspace(0, len(samples) - 1, min(QUERIES, len(samples))).astype(int)
    drawn = [_image(samples[j]) for j in near.indices[queries].flatten()]
    cosines = [f"{cosine:.3f}" for cosine in near.values[queries].flatten().tolist()]
    picture_grid(drawn, cosines, columns=near.indices.shape[1]).save(folder / "neighbours.png")
    plot_curves({folder.name: (run := read_run(folder))}, folder / "curve.png", ["loss"])
    whose = (model.teacher_options or {"model_name": "its own running average"})["model_name"]
    facts = {
        "model": runner.cfg.model.model_name,
        "images": len(dataset),
        "steps": runner.max_iters,
        "batch": runner.train_dataloader.batch_sampler.batch_size,
        "machine": machine_description(next(model.parameters()).device),
        "what": "pixels" if model.teacher is None else f"features of {whose}",
        "command": f"\n```bash\n{command}\n```\n" if command else "",
        "which": "held-out images" if dataset.images.held_out else "the training images, too few to hold some out",
        "the": "The" if model.teacher is None else "Of a teacher, the",
    }
    masks = {"ratio": 100 * model.mask_ratio, "side": model.mask_patch, "height": size[0], "width": size[1]}
    loss = {"loss": sum(losses) / len(samples), "samples": len(samples), "last_loss": run["loss"][2][-1]}
    text = TEMPLATE.read_text(encoding="utf-8").format(**facts, **masks, **loss, first=first, folder=folder)
    write_atomically(folder / "report.md", text.encode())


def _masked(model: MaskedImageModel, x: Tensor, masks: Tensor) -> list[Image.Image]:
    """Return an image `[1, 3, H, W]`, the masked image and the prediction, as pictures.

    Where squares are normalised, a prediction gets their true mean and deviation. Features are shown by the principal
    components of the teacher's, see `pca_colours`.
    """
    prepare = model.data_preprocessor
    pixels = lambda x: (x * prepare.std + prepare.mean)[0].float().cpu() / 255  # noqa: E731  short
    found, size = model.predict_hidden(x, masks), tuple(x.shape[-2:])
    hidden = torch.where(masks[0].cpu() > 0, 0.5, pixels(x))
    if model.teacher is None:
        if model.norm_target:
            # Brightness and contrast are those of the image, which the model does not predict.
            mean, std = model.statistics(x)
            found = found * std + mean
        shown = [pixels(x), hidden, pixels(torch.where(masks > 0, found, x))]
    else:
        grid = found.shape[-2:]
        maps = (part[0].flatten(1).mT.cpu() for part in (model.targets(x, tuple(grid)), found))
        colours = (torch.from_numpy(c).float().mT.reshape(1, 3, *grid) for c in pca_colours(*maps))
        target, predicted = (F.interpolate(part, size)[0] for part in colours)
        shown = [target, hidden, predicted]
    return [_image(part) for part in shown]


def _image(x: Tensor) -> Image.Image:
    return Image.fromarray((x.clamp(0, 1) * 255).round().byte().permute(1, 2, 0).numpy())
