"""Plain vision transformers: their contract, and images of many shapes."""

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import timm
import torch
from attention_cases import randomize, relative_error
from torch import Tensor, nn

import soft_vit
from soft_vit.layers import ATTENTIONS, attention_options
from soft_vit.layers.vit_attention import BLOCK_ARGUMENTS
from soft_vit.models.vit import VIT_MODELS, AttentionViT

# `<kind>_vit_*`: the contract of timm, and images of any size.


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
    torch.testing.assert_close(resized.state_dict(), built.state_dict())


def test_patches_are_dropped_where_no_grid_is_needed() -> None:
    assert create("linear", patch_drop_rate=0.5).train()(images()).isfinite().all()
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


# Batches of images of many shapes, as timm's NaFlexVit takes them: each image is mixed as if it were alone.


SIZES = [(4, 6), (1, 1), (6, 4), (5, 1)]


def make(seed: int = 0, **options: Any) -> Any:
    torch.manual_seed(seed)
    small = dict(patch_size=4, embed_dim=24, depth=1, num_heads=3, num_classes=5, pos_embed_grid_size=(6, 6))
    model = timm.create_model("naflexvit_base_patch16_gap", **{**small, **options}).double().eval()
    return randomize(model)


def batch(sizes: list[tuple[int, int]], seed: int = 0) -> dict[str, Tensor]:
    tokens = max(h * w for h, w in sizes) + 2
    generator = torch.Generator().manual_seed(seed)
    patches = torch.randn(len(sizes), tokens, 4 * 4 * 3, generator=generator, dtype=torch.float64)
    coord = torch.zeros(len(sizes), tokens, 2, dtype=torch.long)
    valid = torch.zeros(len(sizes), tokens, dtype=torch.bool)
    for i, (h, w) in enumerate(sizes):
        coord[i, : h * w] = torch.cartesian_prod(torch.arange(h), torch.arange(w))
        valid[i, : h * w] = True
    return {"patches": patches, "patch_coord": coord, "patch_valid": valid}


def alone(model: nn.Module, images: dict[str, Tensor], i: int) -> Tensor:
    count = int(images["patch_valid"][i].sum())
    return model({name: x[i : i + 1, :count] for name, x in images.items()})[0]


@torch.no_grad()
def worst(model: nn.Module) -> float:
    images = batch(SIZES)
    y = model(images)
    return max(relative_error(y[i], alone(model, images, i)) for i in range(len(SIZES)))


@pytest.mark.parametrize("kind", ATTENTIONS)
def test_each_image_as_if_alone(kind):
    model = make()
    if ATTENTIONS[kind].traits.fixed_grid:
        with pytest.raises(ValueError, match="one map"):
            soft_vit.swap_attention(model, kind)
        return
    soft_vit.swap_attention(model, kind)
    assert worst(randomize(model)) < 1e-12


@pytest.mark.parametrize("kind", ATTENTIONS)
def test_attn_layer(kind):
    model = make(attn_layer=soft_vit.attn_layer(kind, (6, 6)))
    if ATTENTIONS[kind].traits.follows_mask:
        assert worst(model) < 1e-12
        model.use_key_only_attn_mask = True
        assert worst(model) < 1e-12
    else:
        with pytest.raises(ValueError, match=r"swap_attention|key_padding_mask"):
            model(batch(SIZES))


PREFIXES = [{"class_token": True, "reg_tokens": 2, "global_pool": "token"}]
PREFIXES += [{"rope_type": "axial", "class_token": True, "global_pool": "token"}]
PREFIXES += [{"rope_type": "mixed", "qk_norm": True}, {"global_pool": "map"}]


@pytest.mark.parametrize("kind", ["linear", "local", "reformer", "soft"])
@pytest.mark.parametrize("options", PREFIXES, ids=lambda options: "-".join(map(str, options.values())))
def test_prefix_tokens_rotary_embeddings_and_pooling(kind, options):
    model = make(**options)
    if "rope_type" in options and kind == "soft":
        kind = "soft_plus"
    soft_vit.swap_attention(model, kind)
    assert worst(randomize(model)) < 1e-12


def test_softmax_is_timms_own():
    model, images = make(), batch(SIZES)
    expected = model(images)
    soft_vit.swap_attention(model, "softmax")
    assert relative_error(model(images), expected) < 1e-12


@pytest.mark.parametrize("kind", ["local", "soft"])
def test_plain_images_of_one_size(kind):
    model = make()
    soft_vit.swap_attention(model, kind)
    image = torch.randn(2, 3, 12, 20, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    patches = image.unflatten(2, (3, 4)).unflatten(4, (5, 4)).permute(0, 2, 4, 3, 5, 1).flatten(3).flatten(1, 2)
    images = {**batch([(3, 5), (3, 5)]), "patches": patches}
    assert relative_error(model(image), model({name: x[:, :15] for name, x in images.items()})) < 1e-12


def test_gradients_with_checkpointing_and_two_threads():
    model = make()
    soft_vit.swap_attention(model, "local")
    batches = [batch([(2, 6), (3, 4)], seed=1), batch([(6, 2), (4, 3)], seed=2)]

    def gradients() -> list[Tensor]:
        loss = sum((model(images) ** 2).sum() for images in batches)
        return list(torch.autograd.grad(loss, list(model.parameters()), allow_unused=True))

    expected = gradients()
    model.set_grad_checkpointing()
    for found, gradient in zip(gradients(), expected, strict=True):
        assert found is gradient is None or relative_error(found, gradient) < 1e-12
    model.set_grad_checkpointing(False)
    with torch.no_grad(), ThreadPoolExecutor(2) as threads:
        outputs = [model(images) for images in batches]
        for i, y in enumerate(threads.map(model, batches * 10)):
            assert relative_error(y, outputs[i % 2]) < 1e-12


def test_copies_and_intermediates():
    model, images = make(depth=2), batch(SIZES)
    soft_vit.swap_attention(model, "local")
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert relative_error(other(images), model(images)) == 0
    last = model.forward_intermediates(images, indices=1, output_fmt="NLC", intermediates_only=True)[0]
    features = model.forward_features(**images)["patches"][:, model.num_prefix_tokens :]
    assert relative_error(model.norm(last), features) < 1e-12


def test_mistakes():
    model = make()
    soft_vit.swap_attention(model, "local")
    images = batch([(3, 5), (4, 4)])
    with pytest.raises(ValueError, match="patch_coord"):
        model({**images, "patch_coord": images["patch_coord"].flip(1)})
    with pytest.raises(ValueError, match="patch_drop_rate"):
        soft_vit.swap_attention(make(patch_drop_rate=0.5), "local")
    pairs = torch.zeros(2, 1, 18, 18, dtype=torch.float64).masked_fill(torch.ones(18, 18).triu(1).bool(), -torch.inf)
    with pytest.raises(ValueError, match="attn_mask"):
        make(attn_layer=soft_vit.attn_layer("linear"))({**images, "attn_mask": pairs})
