"""What weights are called in released code and in this package: a table of patterns for both directions."""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor

Layers = Sequence[str]
Convert = Callable[[Tensor], Tensor]


def _same(value: Tensor) -> Tensor:
    return value


def _no_buffers(model: Any) -> dict[str, Tensor]:
    # By name, because a model may be pickled with its adapter.
    return {}


def from_conv(weight: Tensor) -> Tensor:
    """Return the weight `[C_out, C_in]` of a linear layer that is released as a 1 x 1 convolution."""
    return weight.flatten(1) if weight.shape[2:] == (1, 1) else weight


def to_conv(weight: Tensor) -> Tensor:
    """Invert `from_conv`."""
    return weight[:, :, None, None] if weight.ndim == 2 else weight


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(re.escape(pattern).replace(r"\*\*", "(.*)").replace(r"\*", "([^.]*)"))


def reorder_projections(weights: Mapping[str, Tensor], stored: Layers, wanted: Layers) -> dict[str, Tensor]:
    """Return weights with the rows of the layers `stored` of each attention regrouped into the layers `wanted`.

    Each letter in the name of a layer stands for one projection; all projections have the same width. For example,
    stored=("q", "kv") and wanted=("qkv",) concatenate both layers.
    """
    result = dict(weights)
    for name in weights:
        prefix, _, rest = name.rpartition("attn.")
        layer, _, kind = rest.partition(".")
        names = {each: f"{prefix}attn.{each}.{kind}" for each in stored}
        if layer in stored[:1] and weights.keys() >= set(names.values()):
            parts = [part for each, key in names.items() for part in result.pop(key).chunk(len(each))]
            rows = dict(zip("".join(stored), parts, strict=True))
            result |= {f"{prefix}attn.{each}.{kind}": torch.cat([rows[x] for x in each]) for each in wanted}
    return result


@dataclass(frozen=True)
class Adapter:
    """Converts state dicts between released code and this package.

    names: patterns of whole names in released files, each with the pattern of the same names here, or with None for
        buffers that models of this package do not hold. `*` stands for text without a dot, `**` for any text; both
        patterns have the same number of them, in the same order. In each direction the first pattern that matches
        counts, so later ones for the same names here are those of older files.
    values: for patterns of released names, a function that converts values to those of this package, and its inverse.
        Both return converted values unchanged.
    projections: layers of the attentions in released files, and those here, see `reorder_projections`.
    computed: returns, for a model, the buffers that only released files hold.
    marker: a name of all released files and of no others; weights without it are those of this package. By default,
        each name tells by itself.
    """

    names: Mapping[str, str | None]
    values: Mapping[str, tuple[Convert, Convert]] = field(default_factory=dict)
    projections: tuple[Layers, Layers] = ((), ())
    computed: Callable[[Any], Mapping[str, Tensor]] = _no_buffers
    marker: str | None = None

    def _find(self, name: str, to_released: bool) -> tuple[Any, Convert] | None:
        """Return the name on the other side, which may be None, and its function; None if no pattern matches."""
        for released, own in self.names.items():
            old, new = (own, released) if to_released else (released, own)
            if old is not None and (match := _compiled(old).fullmatch(name)):
                new = new and new.replace("**", "*").replace("*", "{}").format(*match.groups())
                return new, self.values.get(released, (_same, _same))[to_released]
        return None

    def from_released(self, state: Mapping[str, Tensor], known: Collection[str] = ()) -> dict[str, Tensor]:
        """Return released weights under the names of this package, without buffers that models do not hold.

        Other weights are returned unchanged. known: names of the model, whose weights are never left out.
        """
        if self.marker is not None and self.marker not in state:
            return dict(state)
        weights = {}
        for name, value in state.items():
            name_of_model, convert = self._find(name, to_released=False) or (name, _same)
            if name_of_model is not None or name in known:
                weights[name_of_model or name] = convert(value)
        return reorder_projections(weights, *self.projections)

    def to_released(self, state: Mapping[str, Tensor], model: Any) -> dict[str, Tensor]:
        """Return weights of model under the released names, with the buffers of released files.

        Raises ValueError for a parameter that the model or the released code does not have.
        """
        weights, known = dict(self.computed(model)), model.state_dict()
        for name, value in reorder_projections(state, *reversed(self.projections)).items():
            match = self._find(name, to_released=True)
            if match is None or (name in state and name not in known):
                raise ValueError(f"Parameters must be those of the released code, got {name}; choose another layout.")
            weights[match[0]] = match[1](value)
        return weights
