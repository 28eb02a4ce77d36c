"""Questions about sizes that leave a graph open which torch.export captures for images of any size.

An ordinary comparison of two sizes ties such a graph to its answer.
"""

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true


def same_size(a: tuple[int, int], b: tuple[int, int]) -> bool:
    """Whether two sizes are equal; False, in an exported graph, where only some images make them so."""
    if not _is_exporting():
        return tuple(a) == tuple(b)
    return all(statically_known_true(x == y) for x, y in zip(a, b, strict=True))


def smaller(a: int, b: int) -> int:
    """The smaller of two sides."""
    return torch.sym_min(a, b) if _is_exporting() else min(a, b)


def _is_exporting() -> bool:
    # Not for torch.compile, which captures another graph where the answer differs. Before torch 2.7 the two cannot be
    # told apart, and exported graphs have one size.
    is_exporting = getattr(torch.compiler, "is_exporting", None)
    return is_exporting is not None and is_exporting()
