"""The inputs that each attention supports: sequences, prefix tokens, masks, other sizes."""

import math
from collections.abc import Sequence

import torch

from soft_vit.layers import ATTENTIONS, Attention
from soft_vit.layers.attention import attention_class
from soft_vit.ops.layout import FeatSize
from soft_vit.text_tables import markdown_table

DIM, HEADS, PREFIX = 24, 3, 2
# Odd sizes of a sequence and a map, and what remains of the map without padding.
LENGTH, MAP, REST = 41, (7, 9), (4, 6)
# Relative error in float64 at which a mask counts as taken. Where it is not, the error is above 1e-4.
EXACT = 1e-10

CAUSAL = {"linear": "as functions of `soft_vit.ops.linear`"}


def kinds_table(kinds: Sequence[str] = tuple(ATTENTIONS)) -> str:
    """Return a Markdown table with a row per attention, in which masks are measured."""
    header = ["kind", "1-D", "2-D", "prefix tokens", "key_padding_mask", "causal", "any size"]
    return markdown_table(header, [kind_row(kind) for kind in kinds])


def kind_row(kind: str) -> list[str]:
    """Return the cells of an attention: name, 1-D, 2-D, prefix tokens, key_padding_mask, causal, any size."""
    cls = attention_class(kind)
    built = [_build(kind, feat_size) for feat_size in ((LENGTH,), MAP)]
    places = [attn if isinstance(attn, str) else "yes" for attn in built]
    mask = _mask_cell(*(attn for attn in built if not isinstance(attn, str)))
    size = "weights of one size, resampled" if cls.fixed_feat_size else "yes"
    return [f"`{kind}`", *places, cls.prefix, mask, CAUSAL.get(kind, "no"), size]


def _build(kind: str, feat_size: FeatSize) -> Attention | str:
    """Return an attention for a map or a sequence, or the reason why it cannot be built."""
    torch.manual_seed(0)
    try:
        return attention_class(kind)(DIM, HEADS, feat_size=feat_size, sr_ratio=2).double().eval()
    except ValueError as error:
        return f"no: {error}"


def _mask_cell(*attentions: Attention) -> str:
    """Return the masks that an attention takes, built for a sequence and for a map."""
    taken = {("sequences" if attn.sequence else "maps"): mask_taken(attn) for attn in attentions}
    if len(set(taken.values())) == 1:
        return next(iter(taken.values()))
    # After a semicolon, a reason advises the other form, whose cell is next to it.
    return "; ".join(f"{place}: {given.partition(';')[0]}" for place, given in taken.items())


def mask_taken(attn: Attention) -> str:
    """Return which key_padding_mask attn takes: any, columns and rows at the edge of a map, or no mask with the reason.

    Raises RuntimeError for an attention that accepts such a mask, and gives the remaining tokens another result than
    without the masked ones.
    """
    if attn.no_mask:
        return f"no, {attn.no_mask}"
    feat_size: FeatSize = (LENGTH,) if attn.sequence else MAP
    tokens = torch.arange(math.prod(feat_size))
    counts, taken = tokens % 3 != 1, "any"
    # An attention that needs no grid takes the remaining tokens as a sequence.
    rest: FeatSize = (int(counts.sum()),) if attn.sequence else (int(counts.sum()), 1)
    if attn.needs_grid and not attn.sequence:
        counts, taken = (tokens // MAP[1] < REST[0]) & (tokens % MAP[1] < REST[1]), "columns on the right, rows below"
        rest = REST
    if not _equals_deletion(attn, feat_size, counts, rest):
        raise RuntimeError(f"{type(attn).__name__} gives another result with padding than without it.")
    return taken


@torch.no_grad()
def _equals_deletion(attn: Attention, feat_size: FeatSize, counts: torch.Tensor, rest: FeatSize) -> bool:
    """Return whether attn, with a mask of counts `[N]`, gives these tokens what they get alone, with size rest."""
    x = torch.randn(1, PREFIX + len(counts), DIM, dtype=torch.float64)
    mask = torch.cat([torch.ones(PREFIX, dtype=torch.bool), counts])
    masked = attn(x, feat_size, PREFIX, mask[None])[:, mask]
    alone = attn(x[:, mask], rest, PREFIX)
    return bool((masked - alone).norm() <= EXACT * alone.norm())
