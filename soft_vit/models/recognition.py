"""Whose weights a file holds, read from the names and shapes in it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from soft_vit.models.variants import size_name

__all__ = ["NotedWeights", "Recognised", "named_attention", "recognise"]


@dataclass(frozen=True)
class Recognised:
    """A pyramid by its sizes: blocks and channels of every stage."""

    depths: tuple[int, ...]
    widths: tuple[int, ...]

    @property
    def size(self) -> str | None:
        """The name of the size in `SIZES`, or None."""
        return size_name(self.widths, self.depths)

    def __str__(self) -> str:
        numbers = f"depths {' '.join(map(str, self.depths))} and widths {' '.join(map(str, self.widths))}"
        return f"size {self.size!r} with {numbers}" if self.size else f"an unnamed size with {numbers}"


class NotedWeights(dict):
    """Tensors by name from a safetensors file, with the name of the model that its metadata notes, or None."""

    def __init__(self, weights: Mapping[str, Tensor], model: str | None) -> None:
        super().__init__(weights)
        self.model = model


def recognise(state_dict: Mapping[str, Tensor]) -> Recognised:
    """The pyramid whose weights, under this package's names, these are; ValueError if they are of no pyramid."""
    blocks = [re.match(r"stages\.(\d+)\.blocks\.(\d+)\.", name) for name in state_dict]
    indices = {(int(match[1]), int(match[2])) for match in blocks if match}
    num_stages = 1 + max((stage for stage, _ in indices), default=-1)
    embeddings = [f"stages.{i}.pos_embed" for i in range(num_stages)]
    if not indices or not {"stages.0.patch_embed.0.conv.weight", *embeddings} <= state_dict.keys():
        example = next(iter(state_dict))
        raise ValueError(
            f"The checkpoint is not of a soft_vit pyramid (its first parameter is {example!r}); "
            f"give weights of this package or of the released SOFT implementation."
        )
    return Recognised(
        depths=tuple(sum(stage == i for stage, _ in indices) for i in range(num_stages)),
        widths=tuple(state_dict[name].shape[-1] for name in embeddings),
    )


def named_attention(content: Any) -> str | None:
    """`soft` or `soft_norm`, if a file says which it is of; its weights are alike in both.

    timm's training loop, and so the released code, notes the model as `arch`, others among their options (`args`);
    MMEngine keeps the config as text; safetensors of this package have it in their metadata.
    """
    if not isinstance(content, Mapping):
        return None
    weights = content.get("state_dict", content)
    if isinstance(weights, NotedWeights):
        return _attention_of(weights.model)
    arch, meta = content.get("arch", getattr(content.get("args"), "model", None)), content.get("meta")
    if isinstance(meta, Mapping) and isinstance(meta.get("cfg"), str):
        named = re.search(r"\bmodel_name\s*=\s*['\"](\w+)", meta["cfg"])
        arch = named[1] if named else None
    return _attention_of(arch)


def _attention_of(arch: Any) -> str | None:
    family = re.match(r"(soft(?:_norm)?)_[a-z]+$", arch) if isinstance(arch, str) else None
    return family[1] if family else None
