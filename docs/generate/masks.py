"""The inputs that each attention supports: sequences, prefix tokens, masks, other sizes."""

from collections.abc import Sequence

from soft_vit.layers import ATTENTIONS, Attention
from soft_vit.layers.attention import attention_class
from soft_vit.ops.layout import FeatSize
from soft_vit.text_tables import markdown_table

# A sequence and a map.
SIZES: tuple[FeatSize, ...] = ((41,), (7, 9))
CAUSAL = {"linear": "as functions of `soft_vit.ops.linear`"}


def kinds_table(kinds: Sequence[str] = tuple(ATTENTIONS)) -> str:
    """Return a Markdown table with a row per attention."""
    header = ["kind", "1-D", "2-D", "prefix tokens", "key_padding_mask", "causal", "any size"]
    return markdown_table(header, [kind_row(kind) for kind in kinds])


def kind_row(kind: str) -> list[str]:
    """Return the cells of an attention: name, 1-D, 2-D, prefix tokens, key_padding_mask, causal, any size."""
    cls = attention_class(kind)
    built = [_build(kind, feat_size) for feat_size in SIZES]
    places = [attn if isinstance(attn, str) else "yes" for attn in built]
    mask = _mask_cell(*(attn for attn in built if not isinstance(attn, str)))
    size = "weights of one size, resampled" if cls.traits.fixed_grid else "yes"
    return [f"`{kind}`", *places, cls.traits.prefix, mask, CAUSAL.get(kind, "no"), size]


def _build(kind: str, feat_size: FeatSize) -> Attention | str:
    """Return an attention for a map or a sequence, or the reason why it cannot be built."""
    try:
        return attention_class(kind)(24, 3, feat_size=feat_size, sr_ratio=2)
    except ValueError as error:
        return f"no: {error}"


def _mask_cell(*attentions: Attention) -> str:
    """Return the masks that an attention takes, built for a sequence and for a map."""
    taken = {("sequences" if attn.sequence else "maps"): _mask_taken(attn) for attn in attentions}
    if len(set(taken.values())) == 1:
        return next(iter(taken.values()))
    # After a semicolon, a reason advises the other form, whose cell is next to it.
    return "; ".join(f"{place}: {given.partition(';')[0]}" for place, given in taken.items())


def _mask_taken(attn: Attention) -> str:
    """Return which key_padding_mask attn takes; tests/layers/attention/test_layouts.py compares with deleted tokens."""
    if attn.traits.mask_refusal:
        return f"no, {attn.traits.mask_refusal}"
    return "columns on the right, rows below" if attn.traits.needs_grid and not attn.sequence else "any"
