"""Classify bags: sets of features, such as those of the tiles of a slide.

Letters: B bags, N instances, the most of a bag, P prefix tokens, F channels of the features, C of the model, K classes.
"""

from collections.abc import Sequence
from typing import Any

import torch
from mmpretrain.models import BaseClassifier, LinearClsHead
from mmpretrain.structures import DataSample
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from soft_vit.layers import GatedAttentionPool, PreNormBlock, attention_class, attention_options
from soft_vit.ops.numerics import check_choice
from soft_vit.registry import MODELS, register


@register(MODELS)
class BagClassifier(BaseClassifier):
    """Embed the instances of a bag, mix them by blocks of an attention type, pool them, and classify the bag.

    in_features: F. dim: C. attention: an attention type, for sequences in the order of the instances; None leaves the
    blocks out. options: of the type. depth, num_heads: of the blocks. pool: "mean" or "max" over instances, "gated"
    (Ilse et al., arXiv 1802.04712, Eq. 9), or "token", a class token that the blocks mix. TransMIL (Shao et al., arXiv
    2106.00908) is `attention="nystrom", depth=2, pool="token"` with another encoding of places. drop: rate of the
    dropout on embedded instances.

    Bags of one batch are padded to the longest, and padding is masked; a type without masks takes bags of one length.
    Raises ValueError for arguments that do not fit, and for features of another width.
    """

    def __init__(
        self,
        in_features: int | None,
        num_classes: int | None,
        *,
        attention: str | None = None,
        pool: str = "gated",
        dim: int = 256,
        depth: int = 2,
        num_heads: int = 4,
        drop: float = 0.0,
        **options: Any,
    ) -> None:
        super().__init__()
        if in_features is None or num_classes is None:
            raise ValueError("data_root must be a CSV of bags (--cfg-options), or in_features and num_classes be set.")
        if attention is None and (options or pool == "token"):
            raise ValueError(f"attention must be a type for pool='token' and options, got None, {pool!r}, {options}.")
        self.num_classes, self.in_features = num_classes, in_features
        self.pool_kind = check_choice("pool", pool, ("mean", "max", "gated", "token"))
        self.embed = nn.Sequential(nn.Linear(in_features, dim), nn.ReLU(), nn.Dropout(drop))
        self.blocks, self.norm = nn.ModuleList(), nn.Identity()
        if attention is not None:
            kind = attention_class(attention)
            if kind.traits.fixed_grid:
                raise ValueError(f"attention must take bags of any length, got {attention!r}, whose weights fix it.")
            if unknown := options.keys() - {*attention_options(kind), "sr_ratio"}:
                raise ValueError(f"Options of {attention!r} must be those of its type, got {min(unknown)!r}.")
            attentions = [kind(dim, num_heads, feat_size=(1,), **options) for _ in range(depth)]
            self.blocks, self.norm = nn.ModuleList(PreNormBlock(dim, one) for one in attentions), nn.LayerNorm(dim)
        self.token = nn.Parameter(nn.init.trunc_normal_(torch.empty(dim), std=0.02)) if pool == "token" else None
        self.pool = GatedAttentionPool(dim) if pool == "gated" else None
        self.head = LinearClsHead(num_classes, dim)

    def extract_feat(self, inputs: Sequence[Tensor]) -> Tensor:
        """Return the features `[B, C]` of bags, each a tensor `[N_i, F]`."""
        lengths = torch.tensor([len(bag) for bag in inputs], device=inputs[0].device)
        x = self.embed(pad_sequence(list(inputs), batch_first=True))
        B, N, C = x.shape
        mask = torch.arange(N, device=x.device) < lengths[:, None]
        if self.token is not None:
            x = torch.cat([self.token.expand(B, 1, C), x], dim=1)
            mask = torch.cat([mask.new_ones(B, 1), mask], dim=1)
        # Some types take no mask.
        given = None if mask.all() else mask
        for block in self.blocks:
            x = x + block.attn(block.norm1(x), (N,), x.shape[1] - N, given)
            x = x + block.feed_forward(block.norm2(x))
        x = self.norm(x)
        if self.token is not None:
            return x[:, 0]
        if self.pool is not None:
            return self.pool(x, mask)
        largest = self.pool_kind == "max"
        x = x.masked_fill(~mask[..., None], -torch.inf if largest else 0)
        return x.amax(1) if largest else x.sum(1) / lengths[:, None]

    def forward(
        self, inputs: Sequence[Tensor], data_samples: list[DataSample] | None = None, mode: str = "tensor"
    ) -> Any:
        """Return scores `[B, K]` of bags, each `[N_i, F]`, or as MMEngine's modes say, losses or data samples."""
        for bag, sample in zip(inputs, data_samples or [{}] * len(inputs), strict=True):
            if bag.shape[1:] != (self.in_features,):
                name = sample.get("file", "A bag")
                raise ValueError(f"{name} must have features of width {self.in_features}, got {tuple(bag.shape)}.")
        features = (self.extract_feat(inputs),)
        if mode == "tensor":
            return self.head(features)
        return (self.head.loss if mode == "loss" else self.head.predict)(features, data_samples)
