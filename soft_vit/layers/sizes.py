"""Questions about sizes that leave a graph open which torch.export captures for images of any size.

An ordinary comparison of two sizes ties such a graph to its answer.
"""

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true


def same_size(a: tuple[int, int], b: tuple[int, int]) -> bool:
    """Whether two sizes are equal; False where they are equal for some images and not for others."""
    if torch.jit.is_tracing():
        return tuple(a) == tuple(b)
    return all(statically_known_true(x == y) for x, y in zip(a, b, strict=True))


def smaller(a: int, b: int) -> int:
    """The smaller of two sides."""
    return min(a, b) if torch.jit.is_tracing() else torch.sym_min(a, b)
