"""A head that reads the class token alone gets it without the last block's other tokens."""

import pytest
import timm
import torch
from torchvision.models.feature_extraction import create_feature_extractor

import soft_vit  # noqa: F401 - registers the models

NAMES = ("soft_pico", "soft_norm_pico", "softmax_pyramid_pico")


def double(name: str, **options):
    torch.manual_seed(0)
    return timm.create_model(name, **{"num_classes": 5, **options}).double()


def image():
    return torch.randn(2, 3, 65, 97, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def read_by_last_block(model, x) -> list[int]:
    """How many tokens pass the last feed-forward layer in each call."""
    counts = []
    handle = (
        model.stages[-1].blocks[-1].mlp.register_forward_pre_hook(lambda m, inputs: counts.append(inputs[0].shape[1]))
    )
    model(x)
    handle.remove()
    return counts


@pytest.mark.parametrize("name", NAMES)
def test_logits_and_gradients_of_the_whole(name):
    model, x = double(name).eval(), image()
    assert read_by_last_block(model, x) == [1]
    logits, whole = model(x), model.forward_head(model.forward_features(x))
    torch.testing.assert_close(logits, whole)
    target = torch.randn_like(logits)
    parameters = dict(model.named_parameters())
    gradients = (torch.autograd.grad(out, parameters.values(), target) for out in (logits, whole))
    for parameter, actual, expected in zip(parameters, *gradients, strict=True):
        torch.testing.assert_close(actual, expected, msg=lambda m, p=parameter: f"{p}: {m}")


@pytest.mark.parametrize(
    ("options", "tokens"),
    [
        ({}, 1),
        ({"num_classes": 0}, 1),
        ({"global_pool": "avg"}, 1 + 3 * 4),
        ({"global_pool": ""}, 1 + 3 * 4),
        ({"fuse_stages": True}, 1 + 3 * 4),
        ({"reversible": True}, 1 + 3 * 4),
        ({"stage4": "soft"}, 1 + 3 * 4),
    ],
)
def test_where_others_read_they_are_computed(options, tokens):
    assert read_by_last_block(double("soft_pico", **options).eval(), image()) == [tokens]


@pytest.mark.parametrize("name", ["stages.3", "stages.3.blocks.0", "stages.3.blocks.0.attn", "norm"])
def test_a_hook_sees_all_tokens(name):
    model, seen = double("soft_pico").eval(), []
    model.get_submodule(name).register_forward_hook(
        lambda module, inputs, out: seen.append((out if torch.is_tensor(out) else out[0]).shape[1])
    )
    model(image())
    assert seen == [1 + 3 * 4]


def test_a_traced_graph_has_all_tokens_on_request():
    model = double("soft_pico").eval()
    model.skip_unread = False
    extracted = create_feature_extractor(model, ["stages.3.blocks.0.mlp.fc2"])(image())
    assert extracted["stages.3.blocks.0.mlp.fc2"].shape == (2, 1 + 3 * 4, 160)


def test_with_gradient_checkpointing():
    model, x = double("soft_pico"), image()
    model.eval()
    expected = torch.autograd.grad(model(x).sum(), model.head.weight)[0]
    model.set_grad_checkpointing()
    torch.testing.assert_close(torch.autograd.grad(model(x).sum(), model.head.weight)[0], expected)
