"""Models by name, with variants."""

import pytest
import torch

from soft_vit.analysis.variants import create_variant
from soft_vit.layers.attention.soft import SoftAttention


@pytest.mark.parametrize("name", ["soft_pico", "resnet10t"])
def test_checkpointing_stores_fewer_activations(name):
    stored = {}
    for variant in (name, f"{name}+checkpointed"):
        model, sizes = create_variant(variant).train(), []
        with torch.autograd.graph.saved_tensors_hooks(lambda t, to=sizes: to.append(t.numel()) or t, lambda t: t):
            model(torch.randn(2, 3, 64, 64))
        stored[variant] = sum(sizes)
    assert stored[f"{name}+checkpointed"] < stored[name]


@pytest.mark.parametrize(
    ("name", "backend"),
    [("soft_pico", None), ("soft_pico+eager", "eager"), ("soft_norm_pico+folded+triton", "triton")],
)
def test_every_attention_has_the_backend(name, backend):
    attentions = [module for module in create_variant(name).modules() if isinstance(module, SoftAttention)]
    assert attentions
    assert {attention.backend for attention in attentions} == {backend}


def test_capped_attentions_have_as_many_bottleneck_tokens_at_any_size():
    counts = {}
    for name in ("soft_pico", "soft_pico+capped"):
        attention = next(module for module in create_variant(name).modules() if isinstance(module, SoftAttention))
        maps = [torch.randn(1, attention.head_dim, side, side) for side in (56, 119)]
        counts[name] = [attention.sample_bottleneck(q).shape[1] for q in maps]
    assert counts["soft_pico"][0] == 49 < counts["soft_pico"][1]
    assert counts["soft_pico+capped"] == [49, 49]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("soft_pic", "no model 'soft_pic'; did you mean"),
        ("soft_pico+fast", "no variant fast; after a . stand naive, eager, triton, capped, folded"),
        ("softmax_pyramid_pico+naive", "no softmax-free attention"),
        ("resnet10t+eager", "no softmax-free attention to give backend='eager'; use"),
        ("soft_pico+naive+triton", "is naive and triton at once"),
    ],
)
def test_bad_names(name, message):
    with pytest.raises(ValueError, match=message):
        create_variant(name)
