"""Where each attention can be used: as a function, on packed tokens, in NaFlexVit, in transformers."""

import timm
import torch
from torch import Tensor

import soft_vit
from soft_vit.functional import CROSS_KINDS, FUNCTIONAL_KINDS, PACKED_KINDS
from soft_vit.layers import ATTENTIONS
from soft_vit.text_tables import markdown_table

# Relative error in float64 at which two results count as equal; different ones differ by more than 1e-4.
EXACT = 1e-9
SIZES = ((3, 5), (1, 4), (2, 2))


def places_table() -> str:
    """Return a Markdown table with a row per attention, in which all but the last column is measured.

    Raises RuntimeError if an attention gives padding, packing or other keys another result than it should.
    """
    rows = []
    for kind in ATTENTIONS:
        operator = "" if kind not in FUNCTIONAL_KINDS else _operator(kind)
        packed = _packed(kind) if kind in PACKED_KINDS else ""
        by_name = "by name, swapped" if kind in FUNCTIONAL_KINDS else "swapped"
        rows.append([f"`{kind}`", operator, packed, _naflex(kind), by_name])
    return markdown_table(["kind", "operator", "packed", "NaFlexVit", "transformers"], rows)


def _draw(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64)


def _require_equal(kind: str, found: Tensor, expected: Tensor) -> None:
    if (found - expected).norm() > EXACT * expected.norm():
        raise RuntimeError(f"{kind} gives another result than for each sequence alone.")


def _operator(kind: str) -> str:
    """Return whether keys may be other tokens, after a check that padding changes nothing."""
    cross = kind in CROSS_KINDS
    q, k, v = _draw(2, 3, 7 if cross else 9, 4), _draw(2, 3, 9, 4), _draw(2, 3, 9, 4)
    mask = torch.arange(9) < torch.tensor([[9], [6]])
    masked = soft_vit.attention(q, k, v, kind, key_padding_mask=mask)[1:]
    count = q.shape[2] if cross else 6
    alone = soft_vit.attention(q[1:, :, :count], k[1:, :, :6], v[1:, :, :6], kind)
    _require_equal(kind, masked[:, :, :count], alone)
    return "yes, cross" if cross else "yes"


def _packed(kind: str) -> str:
    q, k, v = _draw(12, 3, 4), _draw(12, 3, 4), _draw(12, 3, 4)
    found = soft_vit.varlen_attention(q, k, v, torch.tensor([0, 5, 12]), kind)
    parts = [[x[a:b].transpose(0, 1)[None] for x in (q, k, v)] for a, b in ((0, 5), (5, 12))]
    alone = [soft_vit.attention(*part, kind)[0].transpose(0, 1) for part in parts]
    _require_equal(kind, found, torch.cat(alone))
    return "yes"


@torch.no_grad()
def _naflex(kind: str) -> str:
    """Return how a kind comes into timm's NaFlexVit, after a check that each image is mixed as if it were alone."""
    small = dict(patch_size=2, embed_dim=12, depth=1, num_heads=3, num_classes=0, pos_embed_grid_size=(4, 4))
    tokens = max(height * width for height, width in SIZES)
    coord, valid = torch.zeros(len(SIZES), tokens, 2, dtype=torch.long), torch.zeros(len(SIZES), tokens).bool()
    for i, (height, width) in enumerate(SIZES):
        coord[i, : height * width] = torch.cartesian_prod(torch.arange(height), torch.arange(width))
        valid[i, : height * width] = True
    images = {"patches": _draw(len(SIZES), tokens, 12), "patch_coord": coord, "patch_valid": valid}
    answer = "no, weights of one map"
    for place, options in (("swapped", {}), ("attn_layer, swapped", {"attn_layer": soft_vit.attn_layer(kind)})):
        torch.manual_seed(0)
        model = timm.create_model("naflexvit_base_patch16_gap", **small, **options).double().eval()
        try:
            if not options:
                soft_vit.swap_attention(model, kind)
            y = model(images)
        except ValueError:
            continue
        for i, (height, width) in enumerate(SIZES):
            _require_equal(kind, y[i], model({name: x[i : i + 1, : height * width] for name, x in images.items()})[0])
        answer = place
    return answer
