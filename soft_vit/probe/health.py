"""Whether the attentions of a model do anything: their share of the output, row sums, rank, accuracy without them."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

import torch
from torch import Tensor, nn
from tqdm import tqdm

from soft_vit.models.eval_mode import eval_mode
from soft_vit.ops.numerics import at_least_float32
from soft_vit.probe.attentions import (
    LEAST_SHARE,
    attention_shares,
    attentions,
    kind_name,
    newton_residuals,
    switched_off,
)
from soft_vit.probe.matrix import watch_attention
from soft_vit.text_tables import markdown_table

Batches = Iterable[tuple[Tensor, Tensor]]


@dataclass
class LayerHealth:
    """One attention; means over images and heads, None for what it does not have.

    share: see `attention_shares`. row_sum, rank: of its matrix; the rank is the effective one, the exponential of the
    entropy of the singular values as shares of their sum (Roy and Vetterli, EUSIPCO 2007). newton_residual: of a kind
    that inverts by Newton's iteration. accuracy_off: in [0, 1], with this attention off, where it was measured.
    """

    layer: str
    attention: str
    num_tokens: int | None
    share: float
    row_sum: float | None
    rank: float | None
    newton_residual: float | None
    accuracy_off: float | None = None

    @property
    def is_dead(self) -> bool:
        return self.share < LEAST_SHARE


class Accuracies(NamedTuple):
    """Top-1 accuracies of a model, in [0, 1].

    whole: as it is. without_all: with all attentions off. without_dead: with those off that are dead; None if none is.
    """

    whole: float
    without_all: float
    without_dead: float | None

    def __str__(self) -> str:
        text = f"Top-1 {100 * self.whole:.1f} %, with all attentions off {100 * self.without_all:.1f} %"
        if self.without_dead is None:
            return text
        return f"{text}, with the dead ones off together {100 * self.without_dead:.1f} %"


def effective_rank(matrix: Tensor) -> Tensor:
    """The effective rank of matrices `[..., N, M]`: `[...]`, from 1 to min(N, M), 0 for a matrix of zeros."""
    values = torch.linalg.svdvals(at_least_float32(matrix))
    share = values / values.sum(-1, keepdim=True).clamp(min=torch.finfo(values.dtype).tiny)
    return torch.where(values[..., 0] > 0, torch.special.entr(share).sum(-1).exp(), 0.0)


def measure_health(model: nn.Module, images: Sequence[Tensor]) -> list[LayerHealth]:
    """The health of every attention of a model but for its accuracy.

    images: `[C, H, W]` each, normalised, on the model's device. A head's matrix of N tokens has N^2 entries. Raises
    ValueError for no image, and for a model without attentions of this package.
    """
    if not images:
        raise ValueError("Attentions cannot be measured on 0 images; give at least 1.")
    layers = attentions(model)
    if not layers:
        raise ValueError(
            "The model has no attention of this package; give one such as soft_tiny or linear_vit_tiny_patch16."
        )
    found: dict[str, dict[str, list[float]]] = {
        name: {"share": [], "row_sum": [], "rank": [], "newton_residual": []} for name in layers
    }
    num_tokens: dict[str, int] = {}

    def visitor(name: str) -> Callable[[Tensor], None]:
        def visit(matrix: Tensor) -> None:
            num_tokens[name] = matrix.shape[-2]
            found[name]["row_sum"].append(matrix.sum(-1).mean().item())
            found[name]["rank"].append(effective_rank(matrix).mean().item())

        return visit

    for image in tqdm(images, desc="attention matrices", leave=False):
        for key, values in (
            ("share", attention_shares(model, image[None])),
            ("newton_residual", newton_residuals(model, image[None])),
        ):
            for name, value in values.items():
                found[name][key].append(value)
        with ExitStack() as stack, torch.inference_mode():
            for name, attn in layers.items():
                if hasattr(attn, "attend"):
                    stack.enter_context(watch_attention(attn, visitor(name)))
            stack.enter_context(eval_mode(model))
            model.forward(image[None])
    health = []
    for name, attn in layers.items():
        means = {key: fmean(values) if values else None for key, values in found[name].items()}
        health.append(LayerHealth(name, kind_name(attn), num_tokens.get(name), **means))
    return health


@torch.inference_mode()
def accuracy(model: nn.Module, batches: Batches) -> float:
    """Top-1 accuracy, in [0, 1], of images `[B, C, H, W]` and labels `[B]`."""
    right = count = 0
    with eval_mode(model):
        for images, labels in batches:
            right += int((model.forward(images).argmax(-1) == labels).sum())
            count += len(labels)
    return right / count


def measure_accuracies(
    model: nn.Module, batches: Sequence[tuple[Tensor, Tensor]], health: Sequence[LayerHealth]
) -> Accuracies:
    """Set accuracy_off of each layer; returns the accuracies of the model with several layers off."""
    layers = attentions(model)

    def without(names: Iterable[str]) -> float:
        with switched_off(*(layers[name] for name in names)):
            return accuracy(model, batches)

    for layer in tqdm(health, desc="accuracy without a layer", leave=False):
        layer.accuracy_off = without([layer.layer])
    dead = [layer.layer for layer in health if layer.is_dead]
    return Accuracies(without([]), without(layers), without(dead) if dead else None)


def health_table(health: Sequence[LayerHealth]) -> str:
    """Markdown, a row for each attention; a dash for what does not apply."""
    header = ["layer", "attention", "tokens", "share of output", "row sum", "effective rank", "Newton residual"]
    measured = any(layer.accuracy_off is not None for layer in health)
    rows = []
    for layer in health:
        row = [
            layer.layer,
            layer.attention,
            _cell(layer.num_tokens, "d"),
            f"{100 * layer.share:.3g} %" + " (dead)" * layer.is_dead,
            _cell(layer.row_sum, ".3g"),
            _cell(layer.rank, ".1f"),
            _cell(layer.newton_residual, ".1e"),
        ]
        if measured:
            row.append(_cell(None if layer.accuracy_off is None else 100 * layer.accuracy_off, ".1f"))
        rows.append(row)
    return markdown_table([*header, *(["top-1 without it (%)"] if measured else [])], rows)


def _cell(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)
