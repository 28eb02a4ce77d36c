"""Reformer: attention among tokens that hash alike (Kitaev et al. 2020, arXiv 2001.04451)."""

from typing import Any, ClassVar

import torch
from timm.layers import get_device_dtype
from torch import Tensor

from soft_vit.layers.attention.base import Rotate, ScoreAttention, Traits
from soft_vit.ops.layout import Layout
from soft_vit.ops.numerics import at_least
from soft_vit.ops.reformer import FACTOR_COLUMNS, MAX_FACTORS, lsh_attention

NO_MASK = "its number of hash buckets depends on the number of tokens"


class ReformerAttention(ScoreAttention):
    """`sum_j softmax_j(q_i . q_j / |q_j|) v_j` over tokens j that hash like i; linear-logarithmic in N.

    Tokens are sorted by the angular hash of their query and cut into chunks. They attend within their bucket, their
    chunk and the chunk before. In a map of at most chunk_size tokens all attend to all.

    num_rounds: rounds of hashing, the union of which a token sees.
    chunk_size: tokens in a chunk, about twice the size of a bucket.

    The random directions are a buffer `rotations` [num_rounds, d, 32], equal in every new layer and saved with the
    weights; `redraw` draws others.
    """

    traits = Traits("N log N", mask_refusal=NO_MASK, needs_grid=False, key_is_query=True)
    projections: ClassVar[dict[str, str]] = {"qk": "q", "v": "v"}
    rotations: Tensor

    def __init__(self, dim: int, num_heads: int, *, num_rounds: int = 2, chunk_size: int = 64, **options: Any) -> None:
        super().__init__(dim, num_heads, **options)
        self.chunk_size = at_least("chunk_size", chunk_size, 2)
        shape = at_least("num_rounds", num_rounds), self.head_dim, MAX_FACTORS * FACTOR_COLUMNS
        self.register_buffer("rotations", torch.empty(shape, **get_device_dtype(self)))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the directions of a new layer."""
        self.redraw(torch.Generator().manual_seed(0))

    @torch.no_grad()
    def redraw(self, generator: torch.Generator | None = None) -> None:
        """Draw random directions, from generator (on the CPU) or else from torch's default one."""
        self.rotations.copy_(torch.randn(self.rotations.shape, generator=generator))

    def attend(self, qk: Tensor, v: Tensor) -> Tensor:  # type: ignore[override]  # the key is the query
        """Mix values `[B, H, N, C / H]` by shared queries and keys of that shape."""
        return lsh_attention(qk, v, self.rotations, self.chunk_size, self.dropout_p)

    def mix(self, x: Tensor, layout: Layout, rotate: Rotate | None = None) -> Tensor:
        qk, v = self.project(x)
        return self.output(self.attend(self.queries(qk, layout, rotate), v))
