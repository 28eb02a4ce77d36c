"""Health of the attentions of a model: share of the output, row sums, rank, accuracy without them."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields
from functools import partial
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn
from tqdm import tqdm

from soft_vit.layers import Attention
from soft_vit.layers.attention.soft import SoftAttention
from soft_vit.models.eval_mode import eval_mode
from soft_vit.ops import self_gaussian_kernel
from soft_vit.ops.numerics import at_least_float32
from soft_vit.ops.soft.newton import newton_residual
from soft_vit.probe.attentions import attentions, kind_name, replaced_attend, stage_number, switched_off
from soft_vit.probe.matrix import watch_attention
from soft_vit.text_tables import markdown_table

MIN_SHARE = 1e-3
"""An attention below this share of its layer's output is dead: accuracy does not change without it."""

Batches = Sequence[tuple[Tensor, Tensor]]


@dataclass
class Probe:
    """Measurements of one attention, as means over images and heads; None where they do not apply.

    share, rest: norms of the attention's part of its layer's output, and of the output without it (a local branch,
    biases), relative to the norm of the output. Their sum exceeds 1 where the two cancel.
    newton_residual: `ops.soft.newton.newton_residual`.
    num_tokens, row_sum, rank: of its matrix, from `measure_health`; the rank is the effective one, the exponential of
    the entropy of the singular values as shares of their sum (Roy and Vetterli, EUSIPCO 2007).
    accuracy_off: in [0, 1], with this attention off, from `measure_accuracies`.
    """

    attention: str
    share: float = 0.0
    rest: float = 0.0
    newton_residual: float | None = None
    num_tokens: int | None = None
    row_sum: float | None = None
    rank: float | None = None
    accuracy_off: float | None = None

    @property
    def is_dead(self) -> bool:
        return self.share < MIN_SHARE


Visitor = Callable[[Probe, Tensor], None]


@torch.no_grad()
def probe(model: nn.Module, images: Tensor, visitors: Mapping[str, Visitor] | None = None) -> dict[str, Probe]:
    """Return the measurements of each attention in one forward pass, by its name.

    The model runs in eval mode and is left unchanged. images: normalised, `[B, C, H, W]`. visitors: by name of an
    attention, called with its measurements and its `attention_matrix`, if it has one.
    """
    layers = attentions(model)
    found = {name: Probe(kind_name(attn)) for name, attn in layers.items()}
    with ExitStack() as stack:
        stack.enter_context(eval_mode(model))
        for name, attn in layers.items():
            watched = stack.enter_context(ExitStack())
            if visitors and name in visitors and hasattr(attn, "attend"):
                watched.enter_context(watch_attention(attn, partial(visitors[name], found[name])))
            if isinstance(attn, SoftAttention) and attn.options.inverse == "newton":
                watched.enter_context(replaced_attend(attn, partial(_measure_residual, found[name], attn, attn.attend)))
            hook = partial(_measure_share, found[name], watched)
            stack.callback(attn.register_forward_hook(hook, with_kwargs=True).remove)
        # Calling the module would run its compiled form, which skips hooks.
        model.forward(images.to(next(model.parameters(), images).dtype))
    return found


def _measure_residual(
    result: Probe, attn: SoftAttention, attend: Callable, q: Tensor, bottleneck: Tensor, *rest: Any
) -> Tensor:
    kernel, options = self_gaussian_kernel(bottleneck), attn.options
    residual = newton_residual(kernel, options.newton_iters, options.ridge, options.newton_start)
    result.newton_residual = residual.mean().item()
    return attend(q, bottleneck, *rest)


def _measure_share(
    result: Probe, watched: ExitStack, attn: Attention, args: tuple, kwargs: dict[str, Any], output: Tensor
) -> None:
    # The forward pass without the attention must not be recorded.
    watched.close()
    with switched_off(attn):
        without = attn.forward(*args, **kwargs)
    whole = output.float().norm()
    # NaN is not 0, and gives shares that are NaN.
    if whole != 0:
        result.share = float((output - without).float().norm() / whole)
        result.rest = float(without.float().norm() / whole)


def stage_means(values: Mapping[str, float]) -> dict[str, float]:
    """Return means over the attentions of each stage, named `stage1`; those outside of stages keep their names."""
    stages: dict[str, list[float]] = defaultdict(list)
    for name, value in values.items():
        stage = stage_number(name)
        stages[f"stage{stage}" if stage else name].append(value)
    return {key: fmean(found) for key, found in sorted(stages.items())}


def effective_rank(matrix: Tensor) -> Tensor:
    """Return the effective rank of matrices `[..., N, M]`: `[...]`, from 1 to min(N, M), 0 for a matrix of zeros."""
    values = torch.linalg.svdvals(at_least_float32(matrix))
    share = values / values.sum(-1, keepdim=True).clamp(min=torch.finfo(values.dtype).tiny)
    return torch.where(values[..., 0] > 0, torch.special.entr(share).sum(-1).exp(), 0.0)


def measure_health(model: nn.Module, images: Sequence[Tensor]) -> dict[str, Probe]:
    """Return the measurements of every attention of a model, without accuracies, by its name.

    images: at least one, `[C, H, W]` each, normalised, on the model's device. A head's matrix of N tokens has N^2
    entries. Raises ValueError for a model without attentions of this package.
    """

    def visit(found: Probe, matrix: Tensor) -> None:
        found.num_tokens, found.row_sum = matrix.shape[-2], matrix.sum(-1).mean().item()
        found.rank = effective_rank(matrix).mean().item()

    if not (visitors := dict.fromkeys(attentions(model), visit)):
        raise ValueError("model must have an attention of this package, as soft_tiny and linear_vit_tiny_patch16 do.")
    measured = [probe(model, image[None], visitors) for image in tqdm(images, desc="attention matrices", leave=False)]
    return {name: _mean([probes[name] for probes in measured]) for name in visitors}


def _mean(probes: Sequence[Probe]) -> Probe:
    values = {field.name: [getattr(found, field.name) for found in probes] for field in fields(Probe)}
    return Probe(**{name: fmean(found) if isinstance(found[0], float) else found[0] for name, found in values.items()})


@torch.inference_mode()
def accuracy(model: nn.Module, batches: Batches) -> float:
    """Return the top-1 accuracy, in [0, 1], over images `[B, C, H, W]` and labels `[B]`."""
    with eval_mode(model):
        right = sum(int((model.forward(images).argmax(-1) == labels).sum()) for images, labels in batches)
    return right / sum(len(labels) for _, labels in batches)


def measure_accuracies(model: nn.Module, batches: Batches, health: Mapping[str, Probe]) -> dict[str, float]:
    """Set accuracy_off of each attention; return accuracies with "none", "all" or "dead" ones off."""
    layers = attentions(model)

    def without(names: Iterable[str]) -> float:
        with switched_off(*(layers[name] for name in names)):
            return accuracy(model, batches)

    for name, found in tqdm(health.items(), desc="accuracy without a layer", leave=False):
        found.accuracy_off = without([name])
    dead = [name for name, found in health.items() if found.is_dead]
    return {"none": without([]), "all": without(layers), **({"dead": without(dead)} if dead else {})}


def health_table(health: Mapping[str, Probe]) -> str:
    """Return a Markdown table with a row for each attention, and dashes where columns do not apply."""
    rows = [
        {
            "layer": name,
            "attention": found.attention,
            "tokens": _cell(found.num_tokens, "d"),
            "share of output": f"{100 * found.share:.3g} %" + " (dead)" * found.is_dead,
            "row sum": _cell(found.row_sum, ".3g"),
            "effective rank": _cell(found.rank, ".1f"),
            "Newton residual": _cell(found.newton_residual, ".1e"),
            "top-1 without it (%)": _cell(found.accuracy_off and 100 * found.accuracy_off, ".1f"),
        }
        for name, found in health.items()
    ]
    return markdown_table(list(rows[0]), [list(row.values()) for row in rows])


def _cell(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)
