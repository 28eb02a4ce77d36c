"""Log pictures of training batches, shares of attentions, and residuals of the Newton iteration."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from mmengine.dist import is_main_process
from mmengine.hooks import Hook
from mmengine.runner import Runner
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional

from soft_vit.engine.models.timm_model import classes_of, unwrapped
from soft_vit.probe.health import MIN_SHARE, probe, stage_means
from soft_vit.probe.view import picture_grid
from soft_vit.registry import HOOKS, register

# Epochs between two pictures, and images in a picture.
PICTURE_EPOCHS, PICTURE_IMAGES = 10, 16
# Images of a batch to measure on.
MEASURED_IMAGES = 4
# Smaller shares of a mixed target come from label smoothing.
MIN_MIX = 0.05


@register(HOOKS, "WatchHook")
class DiagnosticsHook(Hook):
    """Logs pictures of training batches, and the state of attentions.

    A picture shows the first batch of every tenth epoch after augmentation and mixup, with its labels. interval:
    iterations between two measurements of the Newton residual and of the share of attentions in the output, a mean for
    each stage; a share below 1e-3 is warned of, see `soft_vit.probe.health`.

    Results go to the visualizer's backends: TensorBoard, `vis_data/vis_image`, `scalars.json`. Measuring changes
    nothing: it draws no random numbers, and restores the mode of each module. Models for other tasks than
    classification are skipped.
    """

    # Before LoggerHook writes the step's line.
    priority = "NORMAL"

    def __init__(self, interval: int = 500) -> None:
        self.interval = interval
        self._seen: dict[str, Any] = {}
        self._handle: Any = None

    def before_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None) -> None:
        self._draws = batch_idx == 0 and runner.epoch % PICTURE_EPOCHS == 0
        self._measures = runner.iter % self.interval == 0
        if (self._draws or self._measures) and is_main_process():
            # The classifier's arguments are the batch that the data preprocessor made.
            self._handle = unwrapped(runner.model).register_forward_pre_hook(self._see, with_kwargs=True)

    def _see(self, classifier: nn.Module, args: tuple, kwargs: dict) -> None:
        inputs, data_samples = kwargs["inputs"], kwargs["data_samples"]
        # Other tasks have labels that do not fit below an image.
        if isinstance(inputs, Tensor) and all("gt_label" in sample or "gt_score" in sample for sample in data_samples):
            self._seen = {"inputs": inputs.detach(), "data_samples": data_samples}

    def after_train_iter(self, runner: Runner, *args: Any, **kwargs: Any) -> None:
        if self._handle is None:
            return
        self._handle.remove()
        self._handle, self._seen, seen = None, {}, self._seen
        if seen and self._draws:
            self._draw(runner, **seen)
        if seen and self._measures and hasattr(unwrapped(runner.model), "model"):
            self._measure(runner, seen["inputs"][:MEASURED_IMAGES])

    def _draw(self, runner: Runner, inputs: Tensor, data_samples: Sequence[Any]) -> None:
        preprocessor = unwrapped(runner.model).data_preprocessor
        images = inputs[:PICTURE_IMAGES].float()
        if getattr(preprocessor, "mean", None) is not None:
            images = images * preprocessor.std + preprocessor.mean
        pixels = images.clamp(0, 255).round().to(torch.uint8).permute(0, 2, 3, 1).cpu().numpy()
        names = classes_of(runner.train_dataloader.dataset)
        labels = [label_text(sample, names) for sample in data_samples[:PICTURE_IMAGES]]
        picture = picture_grid([Image.fromarray(image) for image in pixels], labels)
        runner.visualizer.add_image("train_batch", np.asarray(picture), step=runner.iter + 1)

    def _measure(self, runner: Runner, images: Tensor) -> None:
        probes = probe(unwrapped(runner.model).model, images)
        residuals = {name: one.newton_residual for name, one in probes.items() if one.newton_residual is not None}
        shares = {name: one.share for name, one in probes.items()}
        values = {f"newton_residual/{stage}": value for stage, value in stage_means(residuals).items()}
        values |= {f"attention_share/{stage}": value for stage, value in stage_means(shares).items()}
        step = runner.iter + 1
        runner.visualizer.add_scalars({**values, "epoch": runner.epoch + 1, "iter": step}, step=step)
        if line := "  ".join(f"{name}: {value:.2e}" for name, value in values.items()):
            runner.logger.info(f"Iteration {step}: {line}")
        if dead := [name for name, share in shares.items() if share < MIN_SHARE]:
            which = f"contribute less than {MIN_SHARE:g} of their layer's output: {', '.join(dead)}"
            runner.logger.warning(f"These attentions {which}; see tools/analysis/attention_health.py.")


def label_text(sample: Any, names: Sequence[str] | None) -> str:
    """Return the class of a sample with its share, or the two of a mixed one: `ring 0.62 + bar 0.34`."""
    shares = sample.gt_score if "gt_score" in sample else functional.one_hot(sample.gt_label[0].long())
    share, index = shares.float().cpu().topk(min(2, len(shares)))
    pairs = zip(index.tolist(), share.tolist(), strict=True)
    return " + ".join(f"{names[i] if names else i} {s:.2f}" for i, s in pairs if s >= MIN_MIX)
