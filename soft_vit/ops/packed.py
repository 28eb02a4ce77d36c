"""Attention within each of several sequences that are packed in one tensor, without padding to the longest.

Letters: T tokens of S sequences, H heads, D and M channels; G chunks of L tokens, each of one sequence.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from soft_vit.ops.layout import WHOLE, Layout, fill_padding
from soft_vit.ops.numerics import at_least_float32, full_precision, wide_dtype

# Tokens of a chunk. Shorter ones store more sums, longer ones more zeros at the ends of sequences.
CHUNK = 64


class Packing(NamedTuple):
    """How the tokens `[T, H, D]` of S packed sequences lie in chunks `[G, H, L, D]`, the last of a sequence padded.

    An attention that sums over tokens takes it as it takes a `Layout`, and chunks as it takes images.
    """

    lengths: Tensor
    """`[S]`, the number of tokens of each sequence."""
    sequence: Tensor
    """`[G]`, the sequence of each chunk."""
    place: Tensor
    """`[T]`, the place of each token among the G * L of all chunks."""
    position: Tensor
    """`[G, 1, L, 1]`, the position of each place in its sequence."""

    @property
    def token_mask(self) -> Tensor:
        """Bool `[G, 1, L, 1]`: which places are tokens."""
        return self.position < self.num_tokens(self.position)

    def zero_padded(self, x: Tensor, fill: float = 0.0) -> Tensor:
        """Return chunks `[G, H, L, D]` with fill in places that are not tokens."""
        return fill_padding(x, self.token_mask, fill)

    def num_tokens(self, x: Tensor) -> Tensor:
        """Return the number of tokens of the sequence of each chunk, `[G, 1, 1, 1]`, at least fp32 for floats x."""
        return self.lengths[self.sequence][:, None, None, None].to(wide_dtype(x))

    def positions(self, x: Tensor) -> Tensor:
        """Number the tokens of each sequence from 0: `[G, 1, L, 1]`, at least fp32."""
        return self.position.to(wide_dtype(x))

    def softmax(self, x: Tensor) -> Tensor:
        """Return the softmax of each channel of x `[G, H, L, D]` over the tokens of its sequence."""
        x = self.zero_padded(x, -math.inf)
        x = (x - self.largest(x.detach().amax(2, keepdim=True))).exp()
        return x / self.total(x.sum(2, keepdim=True))

    def total(self, x: Tensor) -> Tensor:
        """Return, for each chunk, the sum of x `[G, ...]` over the chunks of its sequence."""
        sums = x.new_zeros(len(self.lengths), *x.shape[1:]).index_add(0, self.sequence, x)
        return sums.index_select(0, self.sequence)

    def largest(self, x: Tensor) -> Tensor:
        """Return, for each chunk, the largest x `[G, ...]` of the chunks of its sequence."""
        index = self.sequence.view(-1, *[1] * (x.ndim - 1)).expand_as(x)
        empty = x.new_empty(len(self.lengths), *x.shape[1:])
        return empty.scatter_reduce(0, index, x, "amax", include_self=False).index_select(0, self.sequence)

    def chunks(self, x: Tensor) -> Tensor:
        """Lay tokens `[T, H, D]` out in chunks `[G, H, L, D]`, with zeros in places that are not tokens."""
        rows = x.new_zeros(len(self.sequence) * CHUNK, *x.shape[1:]).index_copy(0, self.place, x)
        return rows.unflatten(0, (-1, CHUNK)).transpose(1, 2)

    def tokens(self, x: Tensor) -> Tensor:
        """Return the tokens `[T, H, D]` of chunks `[G, H, L, D]`."""
        return x.transpose(1, 2).flatten(0, 1).index_select(0, self.place)


AnyLayout = Layout | Packing


def packing(cu_seqlens: Tensor, num_tokens: int) -> Packing:
    """Return the chunks of S sequences from their boundaries, cu_seqlens `[S + 1]`; ValueError unless they fit."""
    if cu_seqlens.ndim != 1 or len(cu_seqlens) < 2 or cu_seqlens.dtype not in (torch.int32, torch.int64):
        found = f"{cu_seqlens.dtype} of shape {tuple(cu_seqlens.shape)}"
        raise ValueError(f"cu_seqlens must be torch.int32 or torch.int64 of shape [S + 1], got {found}.")
    lengths = cu_seqlens.long().diff()
    if cu_seqlens[0] != 0 or cu_seqlens[-1] != num_tokens or not (lengths > 0).all():
        raise ValueError(f"cu_seqlens must increase from 0 to {num_tokens}, got {cu_seqlens.tolist()}.")
    each, chunks = torch.arange(len(lengths), device=lengths.device), (lengths + CHUNK - 1) // CHUNK
    sequence = each.repeat_interleave(chunks)
    number = torch.arange(len(sequence), device=lengths.device) - (chunks.cumsum(0) - chunks)[sequence]
    position = number[:, None] * CHUNK + torch.arange(CHUNK, device=lengths.device)
    place = (position < lengths[sequence][:, None]).flatten().nonzero()[:, 0]
    return Packing(lengths, sequence, place, position[:, None, :, None])


def attend_in_chunks(
    attend: Callable[..., Tensor], q: Tensor, k: Tensor, v: Tensor, packing: Packing, **options: Any
) -> Tensor:
    """Return attend, which sums over tokens by its layout's `total`, of packed q, k `[T, H, D]` and v `[T, H, Dv]`."""
    with full_precision(q):
        chunks = (packing.chunks(at_least_float32(x)) for x in (q, k, v))
        return packing.tokens(attend(*chunks, packing, **options)).to(v.dtype)


def attend_in_turn(
    attend: Callable[..., Tensor], q: Tensor, k: Tensor, v: Tensor, packing: Packing, **options: Any
) -> Tensor:
    """Return attend of one sequence after the other, of packed q, k `[T, H, D]` and v `[T, H, Dv]`."""
    # For softmax on a CPU, ten times as fast as jagged nested tensors.
    of_sequences = (x.transpose(0, 1)[None].split(packing.lengths.tolist(), dim=2) for x in (q, k, v))
    results = [attend(*qkv, WHOLE, **options) for qkv in zip(*of_sequences, strict=True)]
    return torch.cat(results, dim=2)[0].transpose(0, 1)
