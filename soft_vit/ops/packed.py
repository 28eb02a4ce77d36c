"""Sums over the tokens of each of several sequences that are packed in one tensor, without padding to the longest.

Letters: T tokens of S sequences, H heads, D and M channels; G chunks of L tokens, each of one sequence.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from soft_vit.ops.layout import Layout
from soft_vit.ops.softmax import softmax_attention

# Tokens of a chunk. Shorter ones store more sums, longer ones more zeros at the ends of sequences.
CHUNK = 64


class Packing(NamedTuple):
    """How the tokens `[T, H, D]` of S packed sequences lie in chunks `[G, H, L, D]`, the last of a sequence padded."""

    lengths: Tensor
    """`[S]`, the number of tokens of each sequence."""
    sequence: Tensor
    """`[G]`, the sequence of each chunk."""
    place: Tensor
    """`[T]`, the place of each token among the G * L of all chunks."""
    position: Tensor
    """`[G, 1, L, 1]`, the position of each place in its sequence."""

    @property
    def inside(self) -> Tensor:
        """Bool `[G, 1, L, 1]`: which places are tokens."""
        return self.position < self.lengths[self.sequence][:, None, None, None]

    def chunks(self, x: Tensor, fill: float = 0.0) -> Tensor:
        """Lay tokens `[T, H, D]` out in chunks `[G, H, L, D]`, with fill in places that are not tokens."""
        rows = x.new_full((len(self.sequence) * CHUNK, *x.shape[1:]), fill).index_copy(0, self.place, x)
        return rows.unflatten(0, (-1, CHUNK)).transpose(1, 2)

    def tokens(self, x: Tensor) -> Tensor:
        """Return the tokens `[T, H, D]` of chunks `[G, H, L, D]`."""
        return x.transpose(1, 2).flatten(0, 1).index_select(0, self.place)

    def total(self, x: Tensor) -> Tensor:
        """Return, for each chunk, the sum of x `[G, ...]` over the chunks of its sequence."""
        return (
            x.new_zeros(len(self.lengths), *x.shape[1:]).index_add(0, self.sequence, x).index_select(0, self.sequence)
        )

    def largest(self, x: Tensor) -> Tensor:
        """Return, for each chunk, the largest x `[G, H, L, D]` of its sequence, `[G, H, 1, D]`, without gradients.

        Places that are not tokens count.
        """
        x = x.detach().amax(2, keepdim=True)
        index = self.sequence[:, None, None, None].expand_as(x)
        of_sequences = x.new_empty(len(self.lengths), *x.shape[1:]).scatter_reduce(
            0, index, x, "amax", include_self=False
        )
        return of_sequences.index_select(0, self.sequence)


def packing(boundaries: Tensor) -> Packing:
    """Return the chunks of S sequences that are not empty, from their boundaries `[S + 1]`."""
    lengths = boundaries.long().diff()
    each, chunks = torch.arange(len(lengths), device=lengths.device), (lengths + CHUNK - 1) // CHUNK
    sequence = each.repeat_interleave(chunks)
    number = torch.arange(len(sequence), device=lengths.device) - (chunks.cumsum(0) - chunks)[sequence]
    position = number[:, None] * CHUNK + torch.arange(CHUNK, device=lengths.device)
    place = (position < lengths[sequence][:, None]).flatten().nonzero()[:, 0]
    return Packing(lengths, sequence, place, position[:, None, :, None])


def packed_softmax(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor, add_one: bool = False) -> Tensor:
    """Return softmax attention of each sequence, `[T, H, Dv]`, of q, k `[T, H, D]` and v `[T, H, Dv]`.

    lengths: `[S]`. add_one: add one to the denominator; see `softmax_attention`.
    """
    # On a CPU, ten times as fast as jagged nested tensors.
    of_sequences = (x.transpose(0, 1)[None].split(lengths.tolist(), dim=2) for x in (q, k, v))
    layout = Layout((1, 1))
    results = [softmax_attention(q, k, v, layout, add_one=add_one) for q, k, v in zip(*of_sequences, strict=True)]
    return torch.cat(results, dim=2)[0].transpose(0, 1)
