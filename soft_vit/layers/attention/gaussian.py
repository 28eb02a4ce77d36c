"""Gaussian attention without decomposition (SOFT, arXiv 2110.11945, Eq. 4 and 5)."""

from typing import Any, ClassVar

from torch import Tensor

from soft_vit.layers.attention.base import Rotate, SelfAttention, Traits
from soft_vit.ops.gaussian import scaled_gaussian_attention
from soft_vit.ops.layout import Layout


class GaussianAttention(SelfAttention):
    """`exp(-||q_i - q_j||^2 / (2 sqrt(d))) V` over all pairs of tokens, the key being the query.

    normalize: scale the kernel symmetrically by `rowsum^(-1/2)` on both sides (arXiv 2207.03341).
    """

    traits = Traits("N^2", mask_refusal=None, needs_grid=False, key_is_query=True, takes_context=True)

    projections: ClassVar[dict[str, str]] = {"q": "q", "v": "v"}

    def __init__(self, dim: int, num_heads: int, *, normalize: bool = False, **options: Any) -> None:
        super().__init__(dim, num_heads, **options)
        self.normalize = normalize

    def attend(self, q: Tensor, v: Tensor, layout: Layout, k: Tensor | None = None) -> Tensor:  # type: ignore[override]
        """Mix values `[B, H, P + N, C / H]` by queries of that shape, which are the keys by default."""
        return scaled_gaussian_attention(q, q if k is None else k, v, layout, self.normalize)

    def mix(self, x: Tensor, layout: Layout, rotate: Rotate | None = None) -> Tensor:
        q, v = self.project(x)
        return self.output(self.attend(self.queries(q, layout, rotate), v, layout))

    def cross(self, x: Tensor, context: Tensor, layout: Layout) -> Tensor:
        if self.normalize:
            raise ValueError("normalize must be False with a context: it scales queries and keys that are the same.")
        q, (k, v) = self.project(x)[0], self.project(context)
        q, k = self.queries(q, layout), self.queries(k, layout)
        return self.output(self.attend(q, v, layout, k))
