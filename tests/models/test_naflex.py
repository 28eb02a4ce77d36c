"""Batches of images of many shapes, as timm's NaFlexVit takes them: each image is mixed as if it were alone."""

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import timm
import torch
from attention_cases import relative_error
from torch import Tensor, nn

import soft_vit
from soft_vit.layers import ATTENTIONS

FIXED = {"linformer", "polaformer", "synthesizer"}
# They follow a batch by its mask; the others need maps, which attn_layer cannot follow.
BY_MASK = {"softmax", "softmax_one", "gaussian", "performer", "linear", "gau", "efficient", "hydra", "sima"}
BY_MASK |= {"cosformer", "vq", "none"}
SIZES = [(4, 6), (1, 1), (6, 4), (5, 1)]


def make(seed: int = 0, **options: Any) -> Any:
    torch.manual_seed(seed)
    small = dict(patch_size=4, embed_dim=24, depth=1, num_heads=3, num_classes=5, pos_embed_grid_size=(6, 6))
    model = timm.create_model("naflexvit_base_patch16_gap", **{**small, **options}).double().eval()
    return randomize(model)


def randomize(model: nn.Module) -> Any:
    """Draw weights with which attention is far from uniform."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=module.in_features**-0.5)
    return model


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
    if kind in FIXED:
        with pytest.raises(ValueError, match="one map"):
            soft_vit.swap_attention(model, kind)
        return
    soft_vit.swap_attention(model, kind)
    assert worst(randomize(model)) < 1e-12


@pytest.mark.parametrize("kind", ATTENTIONS)
def test_attn_layer(kind):
    model = make(attn_layer=soft_vit.attn_layer(kind))
    if kind in BY_MASK:
        assert worst(model) < 1e-12
        model.use_key_only_attn_mask = True
        assert worst(model) < 1e-12
    else:
        with pytest.raises(ValueError, match=r"swap_attention|key_padding_mask"):
            model(batch(SIZES))


@pytest.mark.parametrize("kind", ["linear", "local", "reformer", "soft"])
@pytest.mark.parametrize(
    "options",
    [
        {"class_token": True, "reg_tokens": 2, "global_pool": "token"},
        {"rope_type": "axial", "class_token": True, "global_pool": "token"},
        {"rope_type": "mixed", "qk_norm": True},
        {"global_pool": "map"},
    ],
    ids=lambda options: "-".join(map(str, options.values())),
)
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
    found = model({name: x[:, :15] for name, x in images.items()})
    assert relative_error(model(image), found) < 1e-12


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
