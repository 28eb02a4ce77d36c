"""InLine attention: linear attention made injective (Han et al. 2024, arXiv 2412.06590).

Letters: B batch, P prefix tokens, N tokens of a map, C channels.
"""

from typing import Any

from timm.layers import get_device_dtype
from torch import Tensor, nn

from soft_vit.layers.attention.base import Rotate, SelfAttention, Traits, add_to_grid, grid_maps
from soft_vit.ops.inline import KERNEL, convolve_each_image, inline_attention, mean_token
from soft_vit.ops.layout import Layout, window


class InLineAttention(SelfAttention):
    """`sum_j ((q_i . k_j - q_i . mean(k)) / (N sqrt(d)) + 1 / N) v_j`, plus a convolution of V made for each image.

    Division by a sum maps queries of one direction to one row; subtraction of the mean score does not. Rows sum to one
    and may have negative entries. A small network computes the kernels, one for each channel, from the mean of all
    tokens.
    """

    traits = Traits("N", "as all tokens, but left out of the convolution", mask_refusal=None, takes_context=True)

    def __init__(self, dim: int, num_heads: int, **options: Any) -> None:
        super().__init__(dim, num_heads, **options)
        dd = get_device_dtype(self)
        rows, columns = window(KERNEL, self.sequence)
        self.residual = nn.Sequential(
            nn.Conv1d(dim, dim, 1, groups=num_heads, **dd),
            nn.GELU(),
            nn.Conv1d(dim, dim * rows * columns, 1, groups=num_heads, **dd),
        )

    attend = staticmethod(inline_attention)

    def mix(self, x: Tensor, layout: Layout, rotate: Rotate | None = None) -> Tensor:
        q, k, v = self.project(x)
        q, k = self.queries(q, layout, rotate), self.keys(k, layout, rotate)
        kernels = self.residual(mean_token(x, layout.mask)[..., None]).unflatten(1, (x.shape[2], -1))[..., 0]
        local = convolve_each_image(grid_maps(v, layout), kernels, self.sequence)
        x = add_to_grid(self.attend(q, k, v, layout), local, layout)
        return self.output(x)
