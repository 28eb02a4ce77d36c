"""The matrix of an attention, computed by the attention itself.

An attention is linear in its values, so with unit vectors as values it returns the columns of its matrix, whatever its
formula. The matrix therefore includes all approximations.

Letters: B batch, H heads, N tokens, M keys.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from inspect import BoundArguments, signature

import torch
from torch import Tensor

from soft_vit.layers import Attention
from soft_vit.probe.attentions import replaced_attend

# Columns computed at a time: some attentions gather tensors that are many times larger than the keys.
COLUMNS = 256

# Attentions that are being called with unit vectors, which visitors must not see.
_BEING_READ: set[Attention] = set()


def attention_matrix(attn: Attention, x: Tensor, feat_size: tuple[int, int]) -> Tensor:
    """Return the matrix `[B, H, N, M]` of attn on tokens x `[B, N, C]`, with a row per query.

    M is N except for `spatial_reduction`, whose values belong to its reduced tokens, row by row: the whole windows of
    the map, or 7 x 7. Class tokens come first among rows and columns. `gau` has a single head. In `longformer`, the
    rows of global tokens act on the values made for those rows alone.
    """
    matrices = []
    with watch_attention(attn, matrices.append), torch.no_grad():
        attn(x, feat_size)
    return matrices[0]


@contextmanager
def watch_attention(attn: Attention, visit: Callable[[Tensor], None], grad: bool = False) -> Iterator[None]:
    """Call visit with the `attention_matrix` of each forward pass of attn within this context; contexts can be nested.

    The matrix is that of this forward pass, including random choices, but without dropout, convolutions of the values,
    gates and projections. grad: whether gradients flow through it. Raises ValueError for an attention without the
    method `attend`, from which the matrix is read.
    """
    if (attend := getattr(attn, "attend", None)) is None:
        raise ValueError(f"{type(attn).__name__} must have a method attend(..., v, ...), linear in v, for its matrix.")

    # With attend's signature, for a context within this one.
    @wraps(attend)
    def watched(*args, **kwargs) -> Tensor:
        if attn not in _BEING_READ:
            with torch.set_grad_enabled(grad and torch.is_grad_enabled()):
                visit(_matrix(attn, attend, signature(attend).bind(*args, **kwargs)))
        return attend(*args, **kwargs)

    with replaced_attend(attn, watched):
        yield


def _matrix(attn: Attention, attend: Callable[..., Tensor], call: BoundArguments) -> Tensor:
    """Return the matrix of a call of attn's method attend; changes the call's arguments."""
    values = [name for name in call.arguments if name == "v" or name.startswith("v_")]
    v, training, columns = call.arguments["v"], attn.training, []
    for added in ("residual", "gate"):
        call.arguments.pop(added, None)
    # Dropout of the attention reads this flag.
    attn.training = False
    _BEING_READ.add(attn)
    try:
        for unit in torch.eye(v.shape[-2], dtype=v.dtype, device=v.device).split(COLUMNS, dim=1):
            call.arguments.update(dict.fromkeys(values, unit.expand(*v.shape[:-2], -1, -1)))
            columns.append(attend(*call.args, **call.kwargs))
    finally:
        _BEING_READ.remove(attn)
        attn.training = training
    matrix = torch.cat(columns, dim=-1)
    return matrix if matrix.ndim == 4 else matrix[:, None]
