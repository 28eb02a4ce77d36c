"""Attentions computed for a few heads at a time, and once more in backward, so that training keeps their inputs alone.

Letters: B batch, H heads, N tokens, D channels of a head.
"""

from collections.abc import Callable
from functools import partial, wraps
from typing import Any, TypeVar, cast

from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from soft_vit.ops.in_parts import Arguments, Part, computes_parts, in_parts

Attend = TypeVar("Attend", bound=Callable[..., Tensor])

# Bytes of q, for the heads that are computed together: what is made of it then stays in a core's cache of 1 to 2 MiB.
GROUP_BYTES = 512 << 10


def by_heads(attend: Attend) -> Attend:
    """Make attend work on few heads at a time where N is large, on a CPU, and save no more than its arguments.

    Memory is then that of the arguments and the result, beside what attend makes of a few heads; a training step takes
    a forward more of attend, part of which the cache gives back. On a GPU, small pieces are slow: nothing changes.

    attend treats all heads alike. Its arguments of four dimensions, `[B or 1, H, ...]`, are those that heads differ in,
    first of all q `[B, H, N, D]`; instead of H there may be a multiple, as in the result. In backward it draws the
    random numbers of forward.
    """

    @wraps(attend)
    def attend_by_heads(*args: Any, **kwargs: Any) -> Tensor:
        of_heads = [x for x in (*args, *kwargs.values()) if _has_heads(x)]
        if not computes_parts(*of_heads):
            return attend(*args, **kwargs)

        leaves, structure = tree_flatten((args, kwargs))
        # Those of heads first, as q tells how many there are.
        places = sorted((i for i, x in enumerate(leaves) if isinstance(x, Tensor)), key=lambda i: leaves[i].ndim != 4)
        tensors = [leaves[i] for i in places]
        # Without the tensors, which would stay in memory as long as this function.
        others = [None if isinstance(x, Tensor) else x for x in leaves]

        def compute(*part: Tensor) -> tuple[Tensor]:
            given = list(others)
            for i, x in zip(places, part, strict=True):
                given[i] = x
            args, kwargs = tree_unflatten(given, structure)
            return (attend(*args, **kwargs),)

        size, num_heads = _group_size(tensors[0]), tensors[0].shape[1]
        parts = [Part(partial(_cut, first, size, num_heads), compute) for first in range(0, num_heads, size)]
        return in_parts(parts, 1, *tensors)[0]

    return cast(Attend, attend_by_heads)


def _has_heads(x: Any) -> bool:
    return isinstance(x, Tensor) and x.ndim == 4


def _group_size(q: Tensor) -> int:
    """How many heads are computed together."""
    B, _, N, D = q.shape
    return max(1, GROUP_BYTES // (B * N * D * q.element_size()))


def _cut(first: int, size: int, num_heads: int, args: Arguments) -> Arguments:
    """These heads of the arguments, which may have a multiple of num_heads, and all of what has none."""

    def cut(x: Tensor | None) -> Tensor | None:
        if x is None or not _has_heads(x):
            return x
        return x.split(size * (x.shape[1] // num_heads), dim=1)[first // size]

    return list(map(cut, args))
