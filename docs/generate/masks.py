"""The inputs that each attention supports: sequences, prefix tokens, masks, other sizes."""

import math
from collections.abc import Sequence

import torch

from soft_vit.layers import ATTENTIONS, Attention
from soft_vit.layers.attention import attention_class
from soft_vit.ops.layout import FeatSize
from soft_vit.text_tables import markdown_table

DIM, HEADS, PREFIX = 24, 3, 2
# Neither is a multiple of any window, and what stays of them is still one of the kind's structures.
LENGTH, TRAILING = 41, 30
MAP, ROWS = (7, 9), 4
# The definition of a mask, relative in float64; a mask that another structure answers is off by more than 1e-4.
EXACT = 1e-10

CAUSAL = {"linear": "as functions of `soft_vit.ops.linear`"}


def kinds_table(kinds: Sequence[str] = tuple(ATTENTIONS)) -> str:
    """Return a Markdown table with a row for each kind; masks are measured."""
    header = ["kind", "1-D", "2-D", "prefix tokens", "key_padding_mask", "causal", "any size"]
    return markdown_table(header, [kind_row(kind) for kind in kinds])


def kind_row(kind: str) -> list[str]:
    """Return the cells of a kind: its name, 1-D, 2-D, prefix tokens, key_padding_mask, causal, any size."""
    cls = attention_class(kind)
    built = [_build(kind, feat_size) for feat_size in ((LENGTH,), MAP)]
    places = [attn if isinstance(attn, str) else "yes" for attn in built]
    mask = _mask_cell(*(attn for attn in built if not isinstance(attn, str)))
    size = "weights of one size, resampled" if cls.fixed_feat_size else "yes"
    return [f"`{kind}`", *places, cls.prefix, mask, CAUSAL.get(kind, "no"), size]


def _build(kind: str, feat_size: FeatSize) -> Attention | str:
    """Return a kind for a map or a sequence, or why it cannot be built."""
    torch.manual_seed(0)
    try:
        return attention_class(kind)(DIM, HEADS, feat_size=feat_size, sr_ratio=2).double().eval()
    except ValueError as error:
        return f"no: {error}"


def _mask_cell(*attentions: Attention) -> str:
    """Return which masks a kind takes, built for a sequence and for a map."""
    taken = {("sequences" if attn.sequence else "maps"): mask_taken(attn) for attn in attentions}
    if len(set(taken.values())) == 1:
        return next(iter(taken.values()))
    # What a reason advises, after a semicolon, is the other place.
    return "; ".join(f"{place}: {given.partition(';')[0]}" for place, given in taken.items())


def mask_taken(attn: Attention) -> str:
    """Return which key_padding_mask attn takes: any, one of trailing tokens or rows, or none and why.

    A mask is taken if the result at the tokens that count is that of the tokens without the others. RuntimeError for an
    attention that accepts trailing padding and gives another result.
    """
    if attn.no_mask:
        return f"no, {attn.no_mask}"
    feat_size: FeatSize = (LENGTH,) if attn.sequence else MAP
    tokens = torch.arange(math.prod(feat_size))
    # Without a grid, tokens of any places are a sequence.
    if attn.sequence or not attn.needs_grid:
        scattered = tokens % 3 != 1
        count = int(scattered.sum())
        if _equals_deletion(attn, feat_size, scattered, (count,) if attn.sequence else (count, 1)):
            return "any"
    rest: FeatSize = (TRAILING,) if attn.sequence else (ROWS, MAP[1])
    if not _equals_deletion(attn, feat_size, tokens < math.prod(rest), rest):
        raise RuntimeError(f"{type(attn).__name__} gives another result with trailing padding than without it.")
    return "trailing tokens" if attn.sequence else "trailing rows"


@torch.no_grad()
def _equals_deletion(attn: Attention, feat_size: FeatSize, counts: torch.Tensor, rest: FeatSize) -> bool:
    """Return whether attn gives the tokens that count `[N]`, which fill rest, what it gives them alone."""
    x = torch.randn(1, PREFIX + len(counts), DIM, dtype=torch.float64)
    mask = torch.cat([torch.ones(PREFIX, dtype=torch.bool), counts])
    masked = attn(x, feat_size, PREFIX, mask[None])[:, mask]
    alone = attn(x[:, mask], rest, PREFIX)
    return bool((masked - alone).norm() <= EXACT * alone.norm())
