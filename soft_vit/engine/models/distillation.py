"""Distillation from a teacher (DeiT, Touvron et al., arXiv 2012.12877, Sec. 4).

Letters: B batch, K classes, C channels, H x W the image.
"""

from collections.abc import Callable
from typing import Any

import timm
import torch
from mmpretrain.structures import DataSample
from timm.layers import to_2tuple
from torch import Tensor, nn
from torch.nn import functional as F

from soft_vit.engine.models.classifier import TimmTrainClassifier
from soft_vit.ops.numerics import check_choice
from soft_vit.registry import MODELS, register
from soft_vit.weights.build import model_of_file


def teacher_loss(student: Tensor, teacher: Tensor, kind: str, tau: float = 1.0) -> Tensor:
    """Return the distillation loss, from logits `[B, K]` of both.

    kind: `hard`, the cross-entropy with the teacher's decision as label (DeiT, eq. 3), or `soft`, tau^2 times the
    divergence KL(teacher || student) at temperature tau, a mean over the batch (eq. 2).
    """
    if kind == "hard":
        return F.cross_entropy(student, teacher.argmax(dim=1))
    student, teacher = F.log_softmax(student / tau, dim=1), F.log_softmax(teacher / tau, dim=1)
    return tau**2 * F.kl_div(student, teacher, reduction="batchmean", log_target=True)


class Teacher(nn.Module):
    """A frozen timm model that converts a student's batch to its own mean, std and image size.

    mean, std: of the student's images per channel, in pixel values (0 to 255). img_size: of the teacher; batches of
    another size are resampled.
    """

    def __init__(self, model: nn.Module, mean: Tensor, std: Tensor, img_size: int | tuple[int, int]) -> None:
        super().__init__()
        self.model = model
        self.img_size = to_2tuple(img_size)
        own_mean, own_std = (255 * torch.tensor(model.pretrained_cfg[name]).view(-1, 1, 1) for name in ("mean", "std"))
        self.register_buffer("scale", (std.view(-1, 1, 1) / own_std).float())
        self.register_buffer("shift", ((mean.view(-1, 1, 1) - own_mean) / own_std).float())
        self.requires_grad_(False).eval()

    def view(self, x: Tensor) -> Tensor:
        """Return the student's batch `[B, C, H, W]` with the teacher's normalisation and size."""
        x = x * self.scale + self.shift
        if x.shape[-2:] != self.img_size:
            x = F.interpolate(x, self.img_size, mode="bicubic", align_corners=False, antialias=True)
        return x

    @torch.no_grad()
    def forward(self, x: Tensor, read: Callable[[nn.Module, Tensor], Tensor] | None = None) -> Tensor:
        """Return the model's output, or that of `read(model, view)`, for the student's batch."""
        if self.scale.device != x.device:
            self.to(x.device)
        return read(self.model, self.view(x)) if read else self.model(self.view(x))

    def __deepcopy__(self, memo: dict) -> "Teacher":
        """Return the teacher itself, which copies of a student, such as the average of its weights, share."""
        return self


def build_teacher(options: dict[str, Any], num_classes: int, mean: Tensor, std: Tensor) -> Teacher:
    """Build a teacher from arguments of timm.create_model, with pretrained=True or `checkpoint`, the path of a file.

    mean, std: see `Teacher`. num_classes: 0 leaves the teacher's head out. Raises FileNotFoundError for a missing file,
    ValueError for a teacher without weights or with another number of classes.
    """
    options = dict(options)
    checkpoint = options.pop("checkpoint", None)
    if bool(options.get("pretrained")) == (checkpoint is not None):
        raise ValueError(f"teacher must have either pretrained=True or checkpoint, the path of a file, got {options}.")
    name = options.pop("model_name")
    if checkpoint is None:
        # With another number of classes timm would create an untrained head.
        options.pop("num_classes", None)
        options |= {} if num_classes else {"num_classes": 0}
        model = timm.create_model(name, **options)
    else:
        options.setdefault("num_classes", num_classes)
        model, report = model_of_file(name, checkpoint, **options)
    if model.num_classes != num_classes or (checkpoint is not None and report.new):
        raise ValueError(f"teacher must have the student's {num_classes} classes, got {checkpoint or name}.")
    return Teacher(model, mean, std, options.get("img_size") or model.pretrained_cfg["input_size"][1:])


class TaughtClassifier(TimmTrainClassifier):
    """A model that a frozen teacher trains.

    teacher: arguments of timm.create_model, with pretrained=True or checkpoint=PATH. Mean, std and size of its images
        are those of its pretrained_cfg (`pretrained_cfg_overlay` changes them); notes of a checkpoint replace mean and
        std. Checkpoints do not contain the teacher.
    """

    def __init__(self, *args: Any, teacher: dict[str, Any] | None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.teacher_options = teacher
        # Built when training begins, because a test does not need it; in a list, because a submodule's weights would be
        # in every checkpoint.
        self._built: list[Teacher] = []

    @property
    def teacher(self) -> Teacher | None:
        if not self._built and self.teacher_options is not None:
            mean, std = (getattr(self.data_preprocessor, name, None) for name in ("mean", "std"))
            # Images without normalisation hold pixel values.
            mean = torch.zeros(1) if mean is None else mean.cpu()
            std = torch.ones(1) if std is None else std.cpu()
            self._built.append(build_teacher(self.teacher_options, self.model.num_classes, mean, std))
        return next(iter(self._built), None)

    def init_weights(self) -> None:
        super().init_weights()
        # MMEngine calls this before training, not before a test. Build the teacher now to raise its errors early.
        _ = self.teacher


@register(MODELS)
class DistillClassifier(TaughtClassifier):
    """A student that learns from labels and from a teacher: (1 - alpha) * loss + alpha * `teacher_loss`.

    teacher: see `TaughtClassifier`. distillation: `hard` or `soft`. tau: the temperature of `soft`.

    The teacher sees the batch, in RGB, after mixup. Models with a head for the teacher (`set_distilled_training` in
    timm) learn each term in its own head, all others both in one.
    """

    def __init__(
        self, *args: Any, distillation: str = "hard", alpha: float = 0.5, tau: float = 1.0, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        if hasattr(self.model, "set_distilled_training"):
            self.model.set_distilled_training()
        self.distillation = check_choice("distillation", distillation, ("hard", "soft"))
        self.alpha, self.tau = alpha, tau

    def loss(self, inputs: Tensor, data_samples: list[DataSample], **kwargs: Any) -> dict[str, Tensor]:
        return super().loss(inputs, data_samples, teacher_scores=self.teacher(inputs), **kwargs)

    def _get_loss(
        self,
        cls_score: Tensor | tuple[Tensor, Tensor],
        data_samples: list[DataSample],
        *,
        teacher_scores: Tensor,
        **kwargs: Any,
    ) -> dict[str, Tensor]:
        cls_score, distilled = cls_score if isinstance(cls_score, tuple) else (cls_score, cls_score)
        losses = super()._get_loss(cls_score, data_samples, **kwargs)
        # MMEngine adds up the values with "loss" in their names, and logs the sum as "loss".
        losses["loss_labels"] = (1 - self.alpha) * losses.pop("loss")
        losses["loss_teacher"] = self.alpha * teacher_loss(distilled, teacher_scores, self.distillation, self.tau)
        return losses
