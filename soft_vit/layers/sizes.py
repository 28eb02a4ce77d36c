"""Comparisons of sizes that stay open in a graph that torch.export captures for images of any size."""

from collections.abc import Sequence

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true


def same_size(a: Sequence[int], b: Sequence[int]) -> bool:
    """Return whether two sizes are equal; in an exported graph, False where only some images make them so.

    An ordinary comparison would tie such a graph to its answer. torch.compile captures another for another answer.
    """
    if not torch.compiler.is_exporting():
        return tuple(a) == tuple(b)
    return all(statically_known_true(x == y) for x, y in zip(a, b, strict=True))


def smaller(a: int, b: int) -> int:
    """Return the smaller of two sizes, as a symbol in an exported graph."""
    if not torch.compiler.is_exporting():
        return min(a, b)
    return torch.sym_min(a, b)  # type: ignore[return-value]  # a SymInt is an int to all that take sizes
