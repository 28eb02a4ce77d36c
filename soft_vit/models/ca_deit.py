"""CA-DeiT: DeiT with circulant attention (`ca_deit_*`).

Han et al., "Vision Transformers are Circulant Attention Learners", AAAI 2026, arXiv 2512.21542. The network and its
parameter names follow the released code, github.com/LeapLabTHU/Circulant-Attention.
"""

from typing import Any

from torch import Tensor

from soft_vit.layers.attention.base import Attention
from soft_vit.layers.attention.circulant import CirculantAttention
from soft_vit.models.base import register_family
from soft_vit.models.vit3 import PatchEmbed, ViTTT, ViTTTBlock
from soft_vit.weights.adapter import Adapter

# `register_family` adds the entrypoints.
__all__ = ["CADeiT"]


class WholePatchEmbed(PatchEmbed):
    """A `PatchEmbed` that leaves rows and columns out that do not fill a patch."""

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(x)


class CADeiTBlock(ViTTTBlock):
    """A depthwise convolution, circulant attention and an MLP, each with a shortcut, on maps `[B, C, H, W]`."""

    def make_attention(self, dim: int, num_heads: int, **options: Any) -> Attention:
        return CirculantAttention(dim, num_heads, qkv_bias=False, **options)


class CADeiT(ViTTT):
    """Blocks of one resolution without position embeddings, for images `[B, in_chans, H, W]` of at least 32 x 32.

    Every block counts as a stage. Rows and columns that do not fill a patch are left out, as in the released code.
    num_heads must divide embed_dim, and is otherwise ignored. Arguments are those of `ViTTT`.
    """

    embed_class = WholePatchEmbed
    block_class = CADeiTBlock
    rounds_up = False
    adapter = Adapter({"blocks.*.attn.gate.0.*": "blocks.*.attn.gate.*", "**": "**"})


CA_DEIT_MODELS: dict[str, dict[str, Any]] = {
    "ca_deit_tiny": dict(embed_dim=192),
    "ca_deit_small": dict(embed_dim=384),
    "ca_deit_base": dict(embed_dim=768),
}

register_family(CADeiT, CA_DEIT_MODELS, feature_indices=3, paper_ids="arXiv:2512.21542", pool_size=(14, 14))
