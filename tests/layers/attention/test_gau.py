"""The gated attention unit in half precision; its formula is in attention_cases.py."""

import torch
import torch.nn.functional as F

from soft_vit.layers.attention.gau import GatedAttentionUnit
from soft_vit.ops.layout import Layout


def test_an_average_that_half_precision_holds_needs_no_sum_that_it_does_not() -> None:
    """All tokens alike: the average of their products is 64, and the sum beyond the 65504 of fp16."""
    token = torch.full((1, 1, 8), 8.0, dtype=torch.float16).expand(1, 2000, 8)
    attn = GatedAttentionUnit(4, 1)
    with torch.no_grad():
        # The linear part alone.
        attn.scale.copy_(torch.tensor([0.0, 0.0, 1.0, 1.0]).repeat(8, 1).mT)
        x = attn.attend(token, token, Layout((2000, 1)), gate=torch.ones_like(token))
    one, eight = F.silu(torch.tensor([1.0, 8.0]))
    torch.testing.assert_close(x, (one * 8 * eight**3).to(x.dtype).expand_as(x))
