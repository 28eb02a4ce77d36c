"""Sums over the tokens of each of several sequences that are packed in one tensor, without padding to the longest.

Letters: T tokens of S sequences, H heads, D and M channels; G chunks of L tokens, each of one sequence.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

# Tokens of a chunk. Shorter ones store more sums, longer ones more zeros at the ends of sequences.
CHUNK = 64


class Packing(NamedTuple):
    """Where the tokens `[T, ...]` of S packed sequences lie."""

    boundaries: Tensor
    """`[S + 1]`: sequence s has the tokens from `boundaries[s]` to `boundaries[s + 1]`."""
    lengths: Tensor
    """`[S]`, the number of tokens of each sequence."""
    sequence: Tensor
    """`[T]`, the sequence of each token."""
    position: Tensor
    """`[T]`, the position of each token in its sequence."""
    chunk_sequence: Tensor
    """`[G]`, the sequence of each chunk."""
    place: Tensor
    """`[T]`, the place of each token in the G * L of all chunks."""

    def sum(self, x: Tensor) -> Tensor:
        """Sum x `[T, ...]` over the tokens of each sequence: `[S, ...]`."""
        return x.new_zeros(len(self.lengths), *x.shape[1:]).index_add(0, self.sequence, x)

    def max(self, x: Tensor) -> Tensor:
        """Return the largest x `[T, H, D]` of the tokens of each sequence, `[S, H, D]`, without gradients."""
        x, index = x.detach(), self.sequence[:, None, None].expand_as(x)
        return x.new_empty(len(self.lengths), *x.shape[1:]).scatter_reduce(0, index, x, "amax", include_self=False)

    def of_tokens(self, x: Tensor) -> Tensor:
        """Return for each token what x `[S, ...]` has for its sequence: `[T, ...]`."""
        return x.index_select(0, self.sequence)

    def outer_sum(self, k: Tensor, v: Tensor) -> Tensor:
        """Return `sum_j k_j v_j^T` over the tokens of each sequence: `[T, H, M]` and `[T, H, D]` to `[S, H, M, D]`."""
        products = self._chunks(k).mT @ self._chunks(v)
        return products.new_zeros(len(self.lengths), *products.shape[1:]).index_add(0, self.chunk_sequence, products)

    def multiply(self, q: Tensor, state: Tensor) -> Tensor:
        """Multiply q `[T, H, M]` of each token by its sequence's state `[S, H, M, D]`: `[T, H, D]`."""
        y = self._chunks(q) @ state.index_select(0, self.chunk_sequence)
        return y.transpose(1, 2).flatten(0, 1).index_select(0, self.place)

    def _chunks(self, x: Tensor) -> Tensor:
        """Lay x `[T, H, D]` out in chunks `[G, H, L, D]`, with zeros after the end of each sequence."""
        rows = x.new_zeros(len(self.chunk_sequence) * CHUNK, *x.shape[1:]).index_copy(0, self.place, x)
        return rows.unflatten(0, (-1, CHUNK)).transpose(1, 2)


def packing(boundaries: Tensor) -> Packing:
    """Return where the tokens of S sequences lie, from the boundaries `[S + 1]` of sequences that are not empty."""
    boundaries = boundaries.long()
    lengths = boundaries.diff()
    each = torch.arange(len(lengths), device=boundaries.device)
    sequence = each.repeat_interleave(lengths)
    position = torch.arange(len(sequence), device=boundaries.device) - boundaries[sequence]
    chunks = (lengths + CHUNK - 1) // CHUNK
    first = chunks.cumsum(0) - chunks
    return Packing(
        boundaries, lengths, sequence, position, each.repeat_interleave(chunks), first[sequence] * CHUNK + position
    )


def packed_softmax(q: Tensor, k: Tensor, v: Tensor, packing: Packing, add_one: bool = False) -> Tensor:
    """Return softmax attention of each sequence, `[T, H, Dv]`, of q, k `[T, H, D]` and v `[T, H, Dv]`.

    add_one: add one to the denominator, by a key and a value of zero for each sequence.
    """
    bounds = packing.boundaries
    of_keys = bounds + torch.arange(len(bounds), device=bounds.device) if add_one else bounds
    if add_one:
        rows, place = len(k) + len(packing.lengths), torch.arange(len(k), device=k.device) + packing.sequence
        k, v = (x.new_zeros(rows, *x.shape[1:]).index_copy(0, place, x) for x in (k, v))
    q, k, v = (
        torch.nested.nested_tensor_from_jagged(x, offsets).transpose(1, 2)
        for x, offsets in ((q, bounds), (k, of_keys), (v, of_keys))
    )
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).values()
