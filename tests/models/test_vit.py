"""`<kind>_vit_*`: the contract of timm, and images of any size."""

import copy
from typing import Any

import pytest
import timm
import torch
from torch import Tensor

from soft_vit.layers import ATTENTIONS, attention_options
from soft_vit.layers.vit_attention import BLOCK_ARGUMENTS
from soft_vit.models.vit import VIT_MODELS, AttentionViT

every_kind = pytest.mark.parametrize("kind", ATTENTIONS)


def create(kind: str, **options: Any) -> AttentionViT:
    torch.manual_seed(0)
    small = {"img_size": 64, "embed_dim": 24, "num_heads": 3, "depth": 2, "num_classes": 5}
    return timm.create_model(f"{kind}_vit_tiny_patch16", **{**small, **options}).eval()


def images(height: int = 64, width: int = 64) -> Tensor:
    return torch.randn(2, 3, height, width, generator=torch.Generator().manual_seed(1))


def test_names() -> None:
    names = timm.list_models("*_vit_*_patch16", module="vit")
    assert set(names) == VIT_MODELS.keys()
    assert {name.partition("_vit_")[0] for name in names} == ATTENTIONS.keys()
    for size, width in {"tiny": 192, "small": 384, "base": 768}.items():
        model = timm.create_model(f"softmax_vit_{size}_patch16", device="meta")
        assert (model.embed_dim, len(model.blocks), model.blocks[0].attn.head_dim) == (width, 12, 64)


@pytest.mark.parametrize("kind", ["softmax", "soft", "none"])
def test_contract_of_timm(kind: str) -> None:
    model = create(kind, device="meta")
    cfg = model.pretrained_cfg
    assert cfg["architecture"] == f"{kind}_vit_tiny_patch16"
    assert model.get_parameter(cfg["first_conv"] + ".weight").shape[1] == 3
    assert model.get_submodule(cfg["classifier"]) is model.get_classifier()
    # A class token where the attention mixes it with the others as any token.
    assert model.has_class_token == (kind == "softmax")
    assert model.global_pool == ("token" if model.has_class_token else "avg")
    x = torch.empty(2, 3, 64, 64, device="meta")
    extractor = create(kind, features_only=True, out_indices=(0, 1), device="meta")
    assert [feature.shape for feature in extractor(x)] == [(2, 24, 4, 4)] * 2


@every_kind
def test_options_of_the_attention_reach_it(kind: str) -> None:
    options = attention_options(ATTENTIONS[kind])
    create(kind, device="meta", **{name: options[name] for name in options.keys() - BLOCK_ARGUMENTS})
    with pytest.raises(TypeError, match="'nonsense'"):
        create(kind, nonsense=1)


@every_kind
def test_images_of_any_size_equal_a_model_that_was_built_for_them(kind: str) -> None:
    """By following images, by `set_input_size`, and by weights of another size."""
    model = create(kind, img_size=(48, 80), dynamic_img_size=True)
    with torch.no_grad():
        # Classes that depend on what the attention does.
        for block in model.blocks:
            for parameter in block.attn.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
    state = copy.deepcopy(model.state_dict())
    built = create(kind, img_size=(64, 112))
    built.load_state_dict(state)
    expected = built(images(64, 112))
    assert (expected[0] - expected[1]).norm() > 1e-3 * expected.norm()
    torch.testing.assert_close(model(images(64, 112)), expected)
    assert model(images()).isfinite().all()
    resized = create(kind, img_size=(48, 80))
    resized.load_state_dict(state)
    resized.set_input_size((64, 112))
    torch.testing.assert_close(resized(images(64, 112)), expected)
    for name, value in built.state_dict().items():
        torch.testing.assert_close(resized.state_dict()[name], value, msg=name)


def test_patches_are_dropped_where_no_grid_is_needed() -> None:
    model = create("linear", patch_drop_rate=0.5).train()
    assert model(images()).isfinite().all()
    with pytest.raises(ValueError, match="patch_drop_rate"):
        create("local", patch_drop_rate=0.5)


def test_any_pooling_and_prefix_tokens_may_be_asked_for() -> None:
    model = create("local", class_token=True, reg_tokens=4)
    assert (model.global_pool, model.num_prefix_tokens) == ("token", 5)
    assert model(images()).shape == (2, 5)
    assert create("linear", class_token=False).global_pool == "avg"
    assert create("soft", global_pool="map")(images()).shape == (2, 5)


def test_a_forward_changes_the_blocks_of_its_own_model_alone() -> None:
    """And for its duration, also if it fails."""
    model, other = create("local", dynamic_img_size=True), create("local", dynamic_img_size=True)
    seen = []

    def look(*_: Any) -> None:
        other._pos_embed(other.patch_embed(images(32, 32)))
        seen.append(type(other.blocks))

    with pytest.raises(AssertionError):
        model(images()[:, :, :63])
    expected = model(images(64, 112))
    model.norm_pre.register_forward_hook(look)
    assert torch.equal(model(images(64, 112)), expected)
    assert [*seen, type(model.blocks)] == [torch.nn.Sequential] * 2


@pytest.mark.slow
@every_kind
def test_compiled_for_any_size(kind: str) -> None:
    torch._dynamo.reset()
    model = create(kind, dynamic_img_size=True)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for size in ((64, 64), (64, 112)):
        torch.testing.assert_close(compiled(images(*size)), model(images(*size)))


# A quick one is in test_graphs.py.
@pytest.mark.slow
@every_kind
def test_exported_with_any_batch(kind: str) -> None:
    model = create(kind)
    batch = torch.export.Dim("batch", min=1, max=64)
    program = torch.export.export(model, (images(),), dynamic_shapes=({0: batch},))
    x = torch.cat([images(), images()])
    torch.testing.assert_close(program.module()(x), model(x))
