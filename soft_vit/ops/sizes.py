"""Comparisons of sizes that do not specialise a graph which torch.export captures for images of any size."""

from collections.abc import Sequence

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true


def same_size(a: Sequence[int], b: Sequence[int]) -> bool:
    """Return whether two sizes are equal; in an exported graph, False unless they are equal for all images.

    An ordinary comparison would restrict such a graph to images with the same answer. torch.compile captures a graph
    for each answer.
    """
    if not torch.compiler.is_exporting():
        return tuple(a) == tuple(b)
    return all(statically_known_true(x == y) for x, y in zip(a, b, strict=True))


def smaller(a: int, b: int) -> int:
    """Return the smaller of two sizes, as a symbol in an exported graph."""
    if not torch.compiler.is_exporting():
        return min(a, b)
    return torch.sym_min(a, b)  # type: ignore[return-value]  # a SymInt works as an int
