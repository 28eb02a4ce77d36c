"""Replace the attention of a pretrained ViT, and train it in two phases: attention outputs, then logits.

The first phase is the attention transfer of Zhang et al., "LoLCATs", arXiv 2410.10254; the second is distillation,
where they fine-tune. Letters: B batch, C channels, H x W the image.
"""

import time
from collections.abc import Sequence
from typing import Any

import torch
from mmengine.hooks import Hook
from mmengine.logging import MessageHub
from mmengine.runner import Runner
from mmpretrain.structures import DataSample
from torch import Tensor, nn

from soft_vit.engine.metrics import ClassificationMetric
from soft_vit.engine.models.distillation import DistillClassifier, Teacher
from soft_vit.engine.models.timm_model import unwrapped
from soft_vit.layers import Attention
from soft_vit.layers.follow_map import map_of_images
from soft_vit.layers.token_map import TokenMap
from soft_vit.layers.vit_attention import ViTAttention
from soft_vit.models.swap import keep_weights, swap_attention
from soft_vit.registry import HOOKS, MODELS, register
from soft_vit.weights.load import describe_mismatch

__all__ = ["LineariseClassifier", "LineariseHook", "TeacherAgreement", "attention_loss", "attention_pairs", "take_over"]


def attention_pairs(student: nn.Module, teacher: nn.Module) -> list[tuple[str, Attention, nn.Module]]:
    """Return the name, the student's and the teacher's module of each attention that differs in type."""
    pairs = [
        (name, module, teacher.get_submodule(name))
        for name, module in student.named_modules()
        if isinstance(module, Attention)
    ]
    # A baseline replaces softmax by softmax; then all attentions count.
    return [pair for pair in pairs if type(pair[1]) is not type(pair[2])] or pairs


def attention_loss(student: nn.Module, teacher: Teacher, x: Tensor) -> Tensor:
    """Return the error of each attention of a student, on the inputs of the teacher's attention.

    x: a batch `[B, C, H, W]` of the student. The error of each of `attention_pairs` is the mean squared error divided
    by the variance of the teacher's output over images and tokens; 1 is the error of the best constant.
    """
    pairs = [(new, old) for _, new, old in attention_pairs(student, teacher.model)]
    seen: dict[nn.Module, tuple[tuple, dict, Tensor]] = {}

    def keep(module: nn.Module, args: tuple, kwargs: dict, result: Tensor) -> None:
        seen[module] = args, kwargs, result

    handles = [old.register_forward_hook(keep, with_kwargs=True) for _, old in pairs]
    try:
        teacher(x)
    finally:
        for handle in handles:
            handle.remove()
    losses = []
    for new, old in pairs:
        args, kwargs, result = seen.pop(old)
        if isinstance(new, ViTAttention) and not isinstance(kwargs.get("attn_mask"), TokenMap):
            kwargs = {**kwargs, "attn_mask": map_of_images(student, x)._replace(mask=kwargs.get("attn_mask"))}
        result = result.float()
        variance = (result - result.mean((0, 1))).square().mean()
        losses.append((new(*args, **kwargs).float() - result).square().mean() / variance)
    return torch.stack(losses)


def take_over(student: nn.Module, teacher: nn.Module) -> None:
    """Copy the weights of a teacher to a student that differs only in its attentions, in place.

    Projections of attentions are copied if their shapes agree, see `swap_attention`. Raises ValueError for a teacher
    that differs elsewhere.
    """
    own, given = student.state_dict(), teacher.state_dict()
    attentions = tuple(f"{name}." for name, module in student.named_modules() if isinstance(module, Attention))
    others = [{name: v for name, v in state.items() if not name.startswith(attentions)} for state in (own, given)]
    if mismatch := describe_mismatch(*others):
        raise ValueError(
            f"Apart from attentions, student and teacher must have the same parameters: {mismatch}; give both the same "
            "size and options, such as patch_size, embed_dim, depth, class_token, reg_tokens and global_pool."
        )
    same = {name: v for name, v in given.items() if name in own and v.shape == own[name].shape}
    student.load_state_dict(same, strict=False)
    for _, new, old in attention_pairs(student, teacher):
        keep_weights(new, old)


@register(MODELS)
class LineariseClassifier(DistillClassifier):
    """A ViT with the weights of its teacher and another attention, trained in two phases.

    In the first, each attention is trained to the output of its teacher's for the same tokens (`attention_loss`); only
    attentions have gradients. In the second, the whole model is trained with (1 - alpha) * loss + alpha *
    `teacher_loss`, as in `DistillClassifier`.

    model_name: a model of this package, such as `<kind>_vit_*`, with arguments that make it the size of its teacher;
        or, with `swap`, any ViT that `swap_attention` supports. Only the former can be rebuilt by its name.
    teacher: the pretrained model, see `DistillClassifier`. Normalisation and size of images must be the teacher's.
    swap: arguments of `swap_attention`, such as dict(kind="linear", blocks=[8, 9, 10, 11]).
    phase1_epochs: length of the first phase, in passes over the training data; `LineariseHook` counts them in any loop.
        Attentions without parameters (`none`) start with the second.

    With several processes set find_unused_parameters in model_wrapper_cfg. Raises ValueError for a model with its
    original attention, and for a teacher that does not fit.
    """

    def __init__(
        self,
        *args: Any,
        phase1_epochs: int,
        swap: dict[str, Any] | None = None,
        distillation: str = "soft",
        alpha: float = 1.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, distillation=distillation, alpha=alpha, **kwargs)
        self.phase1_epochs = phase1_epochs
        # Set by LineariseHook, which knows the length of an epoch.
        self.phase1_iters: int | None = None
        if swap is not None:
            swap_attention(self.model, **swap)
            # The name alone would rebuild the model with its original attention.
            self.model.pretrained_cfg = {**self.model.pretrained_cfg, "architecture": None}
        elif not any(isinstance(module, Attention) for module in self.model.modules()):
            raise ValueError(
                f"model_name must be a model such as linear_vit_tiny_patch16, or model.swap set, such as "
                f"dict(kind='linear'), got {type(self.model).__name__}."
            )

    @property
    def first_phase(self) -> bool:
        """Whether the iteration of the run is in the first phase, and an attention has parameters to train."""
        if MessageHub.get_current_instance().get_info("iter", 0) >= self.phase1_iters:
            return False
        pairs = attention_pairs(self.model, self.teacher.model)
        return any(parameter.requires_grad for _, new, _ in pairs for parameter in new.parameters())

    def init_weights(self) -> None:
        super().init_weights()
        teacher = self.teacher
        scale, shift = teacher.scale.cpu(), teacher.shift.cpu()
        if not (torch.allclose(scale, torch.ones(1)) and torch.allclose(shift, torch.zeros(1), atol=1e-3)):
            mean, std = ([round(255 * v, 3) for v in teacher.model.pretrained_cfg[name]] for name in ("mean", "std"))
            raise ValueError(
                f"data_preprocessor must normalise images as the teacher does, by mean={mean} and std={std}."
            )
        take_over(self.model, teacher.model)

    def loss(self, inputs: Tensor, data_samples: list[DataSample], **kwargs: Any) -> dict[str, Tensor]:
        if self.first_phase:
            return {"loss_attention": attention_loss(self.model, self.teacher, inputs).mean()}
        return super().loss(inputs, data_samples, **kwargs)

    def predict(self, inputs: Tensor, data_samples: list[DataSample] | None = None, **kwargs: Any) -> list[DataSample]:
        samples = super().predict(inputs, data_samples, **kwargs)
        # The teacher exists in a training's validations, not in a test.
        if self._built:
            for sample, score in zip(samples, self.teacher(inputs).softmax(dim=1), strict=True):
                sample.set_field(score, "teacher_score")
        return samples


class TeacherAgreement(ClassificationMetric):
    """Means over images: `teacher/agreement`, the percentage with the teacher's prediction, and `teacher/kl`.

    The latter is KL(teacher || student) in nats, of probabilities in fp32.
    """

    default_prefix = "teacher"

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(topk=(1,), **kwargs)

    def process(self, data_batch: Any, data_samples: Sequence[dict]) -> None:
        student, teacher = (
            torch.stack([sample[name] for sample in data_samples]).float().cpu()
            for name in ("pred_score", "teacher_score")
        )
        log_student, log_teacher = (s.clamp(min=torch.finfo(s.dtype).tiny).log() for s in (student, teacher))
        kl = (teacher * (log_teacher - log_student)).sum(dim=1)
        decisions = teacher.argmax(dim=1), student.argmax(dim=1)
        same = decisions[0] == decisions[1]
        self.results.append(torch.stack([column.double() for column in (*decisions, kl, same)], dim=1))

    def compute_metrics(self, results: list[float]) -> dict[str, float]:
        images, kl, same = results
        return {f"{self.prefix}/agreement": 100 * same / images, f"{self.prefix}/kl": kl / images}


@register(HOOKS)
class LineariseHook(Hook):
    """Tells a `LineariseClassifier` when its first phase ends, and keeps the logged losses of both phases apart.

    It validates before the first step, to show the effect of the swap alone, and adds metrics to each validation:
    `TeacherAgreement` and cpu_minutes, the CPU time of the run so far over all threads, also before a resume.
    """

    # After RuntimeInfoHook, before the hooks that log and save.
    priority = "ABOVE_NORMAL"

    def before_train(self, runner: Runner) -> None:
        self._begin = time.process_time() - runner.message_hub.get_info("cpu_seconds", 0.0)
        self._model = unwrapped(runner.model)
        self._model.phase1_iters = self._model.phase1_epochs * len(runner.train_dataloader)
        if self._model.phase1_iters >= runner.max_iters:
            raise ValueError(
                f"The run must be longer than the {self._model.phase1_iters} iterations of model.phase1_epochs="
                f"{self._model.phase1_epochs}, got {runner.max_iters}."
            )
        if runner.val_loop is not None:
            runner.val_loop.evaluator.metrics.append(TeacherAgreement())

    def before_train_epoch(self, runner: Runner) -> None:
        if runner.iter == 0 and runner.val_loop is not None:
            runner.val_loop.run()

    def before_train_iter(self, runner: Runner, *args: Any, **kwargs: Any) -> None:
        if runner.iter == self._model.phase1_iters:
            # The log shows means over a window, and each number for as long as it has a history.
            scalars = runner.message_hub.log_scalars
            for name in [name for name in scalars if name.startswith(("train/loss", "train/grad_norm"))]:
                del scalars[name]

    def after_train_iter(self, runner: Runner, *args: Any, **kwargs: Any) -> None:
        runner.message_hub.update_info("cpu_seconds", time.process_time() - self._begin)

    def after_val_epoch(self, runner: Runner, metrics: dict[str, float] | None = None) -> None:
        minutes = (time.process_time() - self._begin) / 60
        metrics["cpu_minutes"] = minutes
        runner.message_hub.update_scalar("val/cpu_minutes", minutes)
