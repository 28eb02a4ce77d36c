"""`attn_layer`: every attention in the blocks of timm's vision transformers."""

import copy
import doctest
import pickle
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
import timm
import torch
from timm.models import VisionTransformer
from torch import Tensor

import soft_vit
from soft_vit import layers
from soft_vit.layers import ATTENTIONS
from soft_vit.layers.vit_attention import attn_layer
from soft_vit.models.swap import swap_attention

DIM, HEADS = 24, 3

every_kind = pytest.mark.parametrize("kind", ATTENTIONS)


def create(attention: Any, **options: Any) -> VisionTransformer:
    torch.manual_seed(0)
    options = {"img_size": 64, **options}
    small = {"embed_dim": DIM, "num_heads": HEADS, "depth": 2, "num_classes": 5}
    return timm.create_model("vit_tiny_patch16_224", attn_layer=attention, **{**small, **options}).eval()


def images(height: int = 64, width: int = 64, batch: int = 2) -> Tensor:
    return torch.randn(batch, 3, height, width, generator=torch.Generator().manual_seed(1))


@every_kind
def test_in_a_plain_vit(kind: str) -> None:
    """With registers, and norms of queries and keys if the type has them."""
    model = create(attn_layer(kind, (4, 4)), reg_tokens=4, qk_norm=ATTENTIONS[kind].traits.qk_norm)
    assert all(isinstance(block.attn, ATTENTIONS[kind]) for block in model.blocks)
    expected = model(images())
    for form in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(form(images()), expected)
    model.train()(images()).sum().backward()
    # An unused parameter stops training on several GPUs.
    assert not [name for name, parameter in model.named_parameters() if parameter.grad is None]


def local_vit(**options: Any) -> VisionTransformer:
    """A ViT that works on the map of each image."""
    torch.manual_seed(0)
    small = {"embed_dim": DIM, "num_heads": HEADS, "depth": 2, "num_classes": 5, "kernel_size": 3}
    return timm.create_model("local_vit_tiny_patch16", **{"img_size": 64, "dynamic_img_size": True, **small, **options})


def rotary_vit() -> Any:
    """EVA-02 whose attention was swapped, dynamic in size."""
    torch.manual_seed(0)
    small = {"embed_dim": 96, "num_heads": HEADS, "depth": 2, "num_classes": 5}
    model = timm.create_model("eva02_tiny_patch14_224", img_size=56, dynamic_img_size=True, **small)
    swap_attention(model, "local", kernel_size=3)
    return model


two_vits = pytest.mark.parametrize(("make", "patch"), [(local_vit, 16), (rotary_vit, 14)], ids=["ViT", "EVA-02"])


@two_vits
@pytest.mark.parametrize("sizes", [((4, 6), (5, 2)), ((4, 6), (6, 4))], ids=["other tokens", "as many tokens"])
@pytest.mark.parametrize("through", ["forward", "forward_intermediates"])
def test_gradient_checkpointing_of_images_of_two_sizes(make: Any, patch: int, sizes: Any, through: str) -> None:
    """The recomputation for the first images comes after the forward of the second."""
    model = make()
    gradients = []
    for checkpointing in (False, True):
        model.set_grad_checkpointing(checkpointing)
        results = [getattr(model, through)(images(patch * height, patch * width)) for height, width in sizes]
        loss = sum((x if through == "forward" else x[0]).square().sum() for x in results)
        used = [parameter for name, parameter in model.named_parameters() if through == "forward" or "norm" in name]
        gradients.append(torch.autograd.grad(loss, used, allow_unused=True))
    assert all(a is b is None or torch.equal(a, b) for a, b in zip(*gradients, strict=True))


@two_vits
def test_threads_with_images_of_other_sizes(make: Any, patch: int) -> None:
    model = make().eval()
    batches = [images(height * patch, width * patch) for height, width in ((4, 9), (9, 4), (3, 5))]
    with torch.inference_mode():
        expected = [model(x) for x in batches]

    def run(index: int) -> int:
        with torch.inference_mode():
            return sum(not torch.equal(model(batches[index]), expected[index]) for _ in range(20))

    with ThreadPoolExecutor(len(batches)) as pool:
        assert list(pool.map(run, range(len(batches)))) == [0] * len(batches)


def test_attn_mask_is_a_padding_mask() -> None:
    attn = attn_layer("performer")(DIM, HEADS, qkv_bias=True)
    plain = ATTENTIONS["performer"](DIM, HEADS, feat_size=(9,))
    plain.load_state_dict(attn.state_dict())
    x, mask = torch.randn(2, 9, DIM), torch.arange(9) < torch.tensor([[9], [5]])
    torch.testing.assert_close(attn(x, attn_mask=mask[:, None, None]), plain(x, (9,), 0, mask))
    for form in (mask, mask[:, None, None].float(), mask[:, None, None].expand(2, 1, 9, 9), mask[:1]):
        with pytest.raises(ValueError, match="attn_mask"):
            attn(x, attn_mask=form)
    with pytest.raises(ValueError, match="is_causal"):
        attn(x, is_causal=True)


def test_maps_that_are_not_square() -> None:
    """Given to attn_layer, or found by a model by name."""
    model = create(attn_layer("local", (4, 7), kernel_size=3), img_size=(64, 112))
    named = local_vit(class_token=True, global_pool="token", img_size=(64, 112), dynamic_img_size=False).eval()
    named.load_state_dict(model.state_dict())
    torch.testing.assert_close(model(images(64, 112)), named(images(64, 112)))
    # 225 tokens of a class token and 14 x 16 patches are a square, too.
    for kind, options in (("mila", {}), ("linear", {"qk_conv": True})):
        with pytest.raises(ValueError, match=rf"feat_size.*{kind}.*swap_attention"):
            attn_layer(kind, **options)
    with pytest.raises(ValueError, match="5 x 5"):
        create(attn_layer("local", (5, 5)), img_size=(64, 176))(images(64, 176))
    # Types that do not use the grid take any number of tokens.
    assert create(attn_layer("linear"), img_size=(64, 176))(images(64, 176)).shape == (2, 5)


def test_names_of_version_0_4_stand_for_the_largest_square() -> None:
    with pytest.warns(UserWarning, match="feat_size"):
        model = create("soft_vit.attn_layer('local', kernel_size=3)", reg_tokens=4)
    named = create(attn_layer("local", (4, 4), kernel_size=3), reg_tokens=4)
    assert torch.equal(model(images()), named(images()))


BAD_ARGUMENTS = [
    (lambda: attn_layer("linnear"), "linnear"),
    (lambda: attn_layer("linear", kernel_size=3), "kernel_size"),
    (lambda: create(attn_layer("linear"), scale_attn_norm=True), "scale_attn_norm"),
    (lambda: create(attn_layer("gau"), qk_norm=True), "qk_norm"),
    *(
        (partial(attn_layer, "soft", given), f"got {given!r}")
        for given in ((-8, 16), (8.5, 16), "8x16", (8, 16, 2), 196, (0, 4))
    ),
]


@pytest.mark.parametrize(("make", "words"), BAD_ARGUMENTS)
def test_bad_arguments(make: Callable[[], Any], words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        make()


def test_biases_are_those_of_the_block() -> None:
    model = create(attn_layer("linear"), qkv_bias=False, proj_bias=False)
    assert not [name for name, _ in model.blocks.named_parameters() if ".attn." in name and name.endswith(".bias")]


DOCUMENTED = [(layers.Attention, 5), (attn_layer, 2), (soft_vit.choose_attention, 1)]


@pytest.mark.parametrize(("documented", "examples"), DOCUMENTED)
def test_docstring_examples_run(documented: Any, examples: int) -> None:
    names = {**vars(layers), **vars(soft_vit), "timm": timm, "torch": torch}
    (example,) = doctest.DocTestFinder(recurse=False).find(documented, globs=names)
    assert doctest.DocTestRunner().run(example) == (0, examples)
