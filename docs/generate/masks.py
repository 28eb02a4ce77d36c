"""What each attention supports: sequences, prefix tokens, masks, sizes; packed tokens, NaFlexVit, transformers."""

from soft_vit.functional import CROSS_KINDS, FUNCTIONAL_KINDS, PACKED_KINDS
from soft_vit.layers import ATTENTIONS, Attention
from soft_vit.ops.layout import FeatSize
from soft_vit.text_tables import markdown_table

# A sequence and a map.
SIZES: tuple[FeatSize, ...] = ((41,), (7, 9))
CAUSAL = {"linear": "as functions of `soft_vit.ops.linear`"}


def kinds_table() -> str:
    """Return a Markdown table with a row per attention."""
    header = ["kind", "1-D", "2-D", "prefix tokens", "key_padding_mask", "causal", "any size"]
    return markdown_table(header, map(kind_row, ATTENTIONS))


def kind_row(kind: str) -> list[str]:
    """Return the cells of an attention: name, 1-D, 2-D, prefix tokens, key_padding_mask, causal, any size."""
    cls = ATTENTIONS[kind]
    places, taken = [], {}
    for feat_size in SIZES:
        try:
            attn = cls(24, 3, feat_size=feat_size, sr_ratio=2)
        except ValueError as error:
            places.append(f"no: {error}")
        else:
            places.append("yes")
            taken["sequences" if attn.sequence else "maps"] = _mask_taken(attn)
    mask, *others = dict.fromkeys(taken.values())
    if others:
        # After a semicolon, a reason advises the other form, whose cell is next to it.
        mask = "; ".join(f"{place}: {given.partition(';')[0]}" for place, given in taken.items())
    size = "weights of one size, resampled" if cls.traits.fixed_grid else "yes"
    return [f"`{kind}`", *places, cls.traits.prefix, mask, CAUSAL.get(kind, "no"), size]


def _mask_taken(attn: Attention) -> str:
    """Return which key_padding_mask attn takes; tests/layers/attention/test_layouts.py compares with deleted tokens."""
    if attn.traits.mask_refusal:
        return f"no, {attn.traits.mask_refusal}"
    return "columns on the right, rows below" if attn.traits.needs_grid and not attn.sequence else "any"


def places_table() -> str:
    """Return a Markdown table of where each attention can be used.

    tests/test_functional.py and tests/models/test_vit.py compare padded, packed and mixed batches with each image.
    """
    rows = []
    for kind, cls in ATTENTIONS.items():
        is_function = kind in FUNCTIONAL_KINDS
        operator = "yes, cross" if kind in CROSS_KINDS else "yes" if is_function else ""
        packed = "yes" if kind in PACKED_KINDS else ""
        naflex = "attn_layer, swapped" if cls.traits.follows_mask else "swapped"
        naflex = "no, weights of one map" if cls.traits.fixed_grid else naflex
        rows.append([f"`{kind}`", operator, packed, naflex, "by name, swapped" if is_function else "swapped"])
    return markdown_table(["kind", "operator", "packed", "NaFlexVit", "transformers"], rows)
