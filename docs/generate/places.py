"""Where each attention can be used: as a function, on packed tokens, in NaFlexVit, in transformers."""

from soft_vit.functional import CROSS_KINDS, FUNCTIONAL_KINDS, PACKED_KINDS
from soft_vit.layers import ATTENTIONS
from soft_vit.text_tables import markdown_table


def places_table() -> str:
    """Return a Markdown table with a row per attention.

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
