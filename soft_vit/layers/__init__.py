"""The nn.Modules of the models."""

from soft_vit.layers.attention import ATTENTIONS, Attention, attention_class, attention_options
from soft_vit.layers.attn_pool import AttentionPool, GatedAttentionPool, StageFusion
from soft_vit.layers.block import DropPathMode, PostNormBlock, PreNormBlock
from soft_vit.layers.embed import ConvNormAct, ConvPatchEmbed, map_to_tokens, resample_pos_embed, tokens_to_map
from soft_vit.layers.reversible import reversible_blocks

__all__ = [
    "ATTENTIONS",
    "Attention",
    "AttentionPool",
    "ConvNormAct",
    "ConvPatchEmbed",
    "DropPathMode",
    "GatedAttentionPool",
    "PostNormBlock",
    "PreNormBlock",
    "StageFusion",
    "attention_class",
    "attention_options",
    "map_to_tokens",
    "resample_pos_embed",
    "reversible_blocks",
    "tokens_to_map",
]
