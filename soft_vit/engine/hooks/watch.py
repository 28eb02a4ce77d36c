"""Log pictures of training batches, shares of attentions, and residuals of the Newton iteration."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from mmengine.dist import is_main_process
from mmengine.hooks import Hook
from mmengine.runner import Runner
from PIL import Image, ImageDraw
from torch import Tensor, nn

from soft_vit.engine.models.timm_model import unwrapped
from soft_vit.probe.health import MIN_SHARE, probe, stage_means
from soft_vit.registry import HOOKS, register

__all__ = ["WatchHook", "batch_grid", "label_text"]


@register(HOOKS)
class WatchHook(Hook):
    """Logs pictures of training batches, the state of attentions, and the range of learning rates.

    batch_interval: epochs between two pictures, which show the first batch of an epoch after augmentation and mixup,
    with labels; 0 for none. num_images: images in a picture. newton_interval: iterations between two measurements, for
    each stage, of Newton residuals and of the share of attentions in the output, with a warning below 1e-3, see
    `soft_vit.probe.health`; 0 for none. newton_images: images of the batch to measure on.

    Everything goes to the visualizer's backends: TensorBoard, `vis_data/vis_image`, `scalars.json`. Each step logs the
    range of learning rates if parameter groups differ. The run stays the same: measuring draws no random number and
    restores the mode of every module. Models of other tasks than classification are skipped.
    """

    # Before LoggerHook writes the step's line.
    priority = "NORMAL"

    def __init__(
        self, batch_interval: int = 10, num_images: int = 16, newton_interval: int = 500, newton_images: int = 4
    ) -> None:
        self.batch_interval = batch_interval
        self.num_images = num_images
        self.newton_interval = newton_interval
        self.newton_images = newton_images
        self._seen: dict[str, Any] = {}
        self._handle: Any = None

    def before_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None) -> None:
        if (self._draws(runner, batch_idx) or self._measures(runner)) and is_main_process():
            # The classifier's arguments are the batch that the data preprocessor made.
            self._handle = unwrapped(runner.model).register_forward_pre_hook(self._see, with_kwargs=True)
        rates = {group["lr"] for group in runner.optim_wrapper.param_groups}
        if len(rates) > 1:
            runner.message_hub.update_scalar("train/lowest_lr", min(rates))
            runner.message_hub.update_scalar("train/highest_lr", max(rates))

    def after_train_iter(
        self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: dict | None = None
    ) -> None:
        if self._handle is None:
            return
        self._handle.remove()
        self._handle, self._seen, seen = None, {}, self._seen
        if not seen:
            return
        if self._draws(runner, batch_idx):
            self._draw(runner, **seen)
        if self._measures(runner):
            self._measure(runner, seen["inputs"])

    def _see(self, classifier: nn.Module, args: tuple, kwargs: dict) -> None:
        inputs, data_samples = kwargs["inputs"], kwargs["data_samples"]
        # Other tasks have labels that do not fit below an image.
        if isinstance(inputs, Tensor) and all("gt_label" in sample or "gt_score" in sample for sample in data_samples):
            self._seen = {"inputs": inputs.detach(), "data_samples": data_samples}

    def _draws(self, runner: Runner, batch_idx: int) -> bool:
        return self.batch_interval > 0 and batch_idx == 0 and runner.epoch % self.batch_interval == 0

    def _measures(self, runner: Runner) -> bool:
        return self.newton_interval > 0 and runner.iter % self.newton_interval == 0

    def _draw(self, runner: Runner, inputs: Tensor, data_samples: Sequence[Any]) -> None:
        preprocessor = unwrapped(runner.model).data_preprocessor
        images = inputs[: self.num_images].float()
        if getattr(preprocessor, "mean", None) is not None:
            images = images * preprocessor.std + preprocessor.mean
        pixels = images.clamp(0, 255).round().to(torch.uint8).permute(0, 2, 3, 1).cpu().numpy()
        names = getattr(runner.train_dataloader.dataset, "metainfo", {}).get("classes")
        labels = [label_text(sample, names) for sample in data_samples[: self.num_images]]
        runner.visualizer.add_image("train_batch", batch_grid(pixels, labels), step=runner.iter + 1)

    def _measure(self, runner: Runner, inputs: Tensor) -> None:
        network = getattr(unwrapped(runner.model), "model", None)
        if network is None:
            return
        images = inputs[: self.newton_images]
        probes = probe(network, images)
        residuals = {name: found.newton_residual for name, found in probes.items() if found.newton_residual is not None}
        self._log(runner, "newton_residual", stage_means(residuals))
        self._log(runner, "attention_share", stage_means({name: found.share for name, found in probes.items()}))
        dead = [name for name, found in probes.items() if found.share < MIN_SHARE]
        if dead:
            runner.logger.warning(
                f"These attentions contribute less than {MIN_SHARE:g} of their layer's output: {', '.join(dead)}. "
                "tools/analysis/attention_health.py shows details."
            )

    def _log(self, runner: Runner, key: str, values: Mapping[str, float]) -> None:
        if not values:
            return
        place = {"epoch": runner.epoch + 1, "iter": runner.iter + 1}
        runner.visualizer.add_scalars(
            {**{f"{key}/{name}": value for name, value in values.items()}, **place}, step=runner.iter + 1
        )
        shown = "  ".join(f"{name}: {value:.2e}" for name, value in values.items())
        runner.logger.info(f"{key.replace('_', ' ').capitalize()} of iteration {runner.iter + 1}  {shown}")


# Pixels for the label below an image, and the smallest side that leaves room for it.
CAPTION, MIN_SIDE = 14, 112
# Smaller shares of a mixed target come from label smoothing.
MIN_MIX = 0.05


def label_text(sample: Any, names: Sequence[str] | None) -> str:
    """Return the class of a sample, or the two of a mixed one with their shares: `ring 0.62 + bar 0.34`."""

    def name(index: int) -> str:
        return str(names[index] if names else index)

    if "gt_score" not in sample:
        return name(int(sample.gt_label))
    share, index = sample.gt_score.float().cpu().topk(min(2, len(sample.gt_score)))
    pairs = [(name(i), s) for i, s in zip(index.tolist(), share.tolist(), strict=True) if s >= MIN_MIX]
    return pairs[0][0] if len(pairs) == 1 else " + ".join(f"{name} {s:.2f}" for name, s in pairs)


def batch_grid(images: np.ndarray, labels: Sequence[str]) -> np.ndarray:
    """Return uint8 images `[B, H, W, 3]` in a grid, each above its label, as uint8 `[H', W', 3]`."""
    count, height, width, _ = images.shape
    columns = math.ceil(math.sqrt(count))
    # Whole multiples show every pixel as it is.
    scale = max(1, math.ceil(MIN_SIDE / width))
    cell = (width * scale + 2, height * scale + CAPTION + 2)
    grid = Image.new("RGB", (columns * cell[0], math.ceil(count / columns) * cell[1]), "white")
    draw = ImageDraw.Draw(grid)
    for place, (image, label) in enumerate(zip(images, labels, strict=True)):
        left, top = place % columns * cell[0] + 1, place // columns * cell[1] + 1
        shown = Image.fromarray(image).resize((width * scale, height * scale), Image.Resampling.NEAREST)
        grid.paste(shown, (left, top))
        while draw.textlength(label) > cell[0] - 2 and len(label) > 1:
            label = label[:-1]
        draw.text((left, top + height * scale + 1), label, fill="black")
    return np.asarray(grid)
