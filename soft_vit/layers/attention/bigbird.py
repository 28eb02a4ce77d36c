"""BigBird: block-sparse attention of window, global and random blocks (Zaheer et al. 2020, arXiv 2007.14062)."""

from typing import Any

from torch import Tensor

from soft_vit.layers.attention.base import ScoreAttention, Traits
from soft_vit.ops.bigbird import bigbird_attention
from soft_vit.ops.layout import Layout
from soft_vit.ops.numerics import at_least

NO_MASK = "its random blocks depend on the number of tokens"


class BigBirdAttention(ScoreAttention):
    """`sum_j softmax_j(q_i . k_j / sqrt(d)) v_j` over the tokens j of the blocks that the block of i sees.

    A block of consecutive tokens sees itself, both neighbours, the first two blocks, and some at random. The first two
    are global: they attend to all tokens and all to them (the paper's internal construction). The last block may be
    shorter than the others.

    block_size: tokens in a block.
    num_random: random blocks for each block and head, a function of the number of blocks alone.
    """

    traits = Traits("N", "in the first block, which is global", mask_refusal=NO_MASK, needs_grid=False)

    def __init__(self, dim: int, num_heads: int, *, block_size: int = 32, num_random: int = 3, **options: Any) -> None:
        super().__init__(dim, num_heads, **options)
        self.block_size = at_least("block_size", block_size)
        self.num_random = at_least("num_random", num_random, 0)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
        return bigbird_attention(q, k, v, self.block_size, self.num_random, self.dropout_p, self.fused_attn)
