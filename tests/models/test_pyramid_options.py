"""Options of the pyramid for any attention: attention pooling, fused stages, reversible blocks, MLPs in parts."""

import pytest
import torch
from captured_models import OPTIONS, create, images
from captured_models import options_of_pyramids as cases


@cases
def test_gradient_reaches_every_parameter(options: dict) -> None:
    model = create(options).train()
    model(images()).square().sum().backward()
    dead = [name for name, parameter in model.named_parameters() if parameter.grad is None or not parameter.grad.any()]
    assert not dead


@cases
def test_head_takes_what_features_and_intermediates_give(options: dict) -> None:
    model = create(options)
    with torch.no_grad():
        expected = model(images())
        tokens, maps = model.forward_intermediates(images())
        assert torch.equal(tokens, model.forward_features(images()))
        assert torch.equal(model.forward_head(tokens), expected)
        assert model.forward_head(tokens, pre_logits=True).shape == (2, model.num_features)
        features = create(options, features_only=True)(images())
        for feature, stage_map in zip(features, maps, strict=True):
            assert torch.equal(feature, stage_map)


@cases
def test_weights_are_saved_and_loaded(options: dict, tmp_path) -> None:
    model, other = create(options), create(options)
    for parameter in other.parameters():
        torch.nn.init.zeros_(parameter)
    torch.save(model.state_dict(), tmp_path / "weights.pth")
    other.load_pretrained(str(tmp_path / "weights.pth"))
    with torch.no_grad():
        assert torch.equal(other(images()), model(images()))


@pytest.mark.parametrize("options", [dict(mlp_chunks=3), dict(mlp_chunks=100)])
def test_mlp_in_parts_is_the_same_model(options: dict) -> None:
    with torch.no_grad():
        whole = create({}).double()(images().double())
        in_parts = create(options).double()(images().double())
    assert (in_parts - whole).norm() <= 1e-12 * whole.norm()


def test_attention_pooling_is_of_the_tokens_without_class_token() -> None:
    model = create(dict(global_pool="attn"))
    with torch.no_grad():
        tokens = model.forward_features(images())
        assert torch.equal(model.forward_head(tokens, pre_logits=True), model.attn_pool(tokens[:, 1:]))
        # Zero scores weigh all alike.
        model.attn_pool.score.weight.zero_()
        mean = model.forward_head(tokens, pre_logits=True)
    torch.testing.assert_close(mean, tokens[:, 1:].mean(1), rtol=1e-5, atol=1e-6)


def test_classifier_is_reset_to_attention_pooling_and_back() -> None:
    model = create({})
    model.reset_classifier(5, "attn")
    assert model(images()).shape == (2, 5)
    assert not model.attn_pool.training
    model.reset_classifier(5, "avg")
    assert not any(name.startswith("attn_pool") for name, _ in model.named_parameters())


def test_pruned_model_drops_what_fuses() -> None:
    model = create(OPTIONS["all"])
    model.prune_intermediate_layers(1)
    assert not any(name.startswith(("stage_fusion", "attn_pool")) for name, _ in model.named_parameters())


def test_gradient_checkpointing_leaves_reversible_blocks_as_they_are() -> None:
    model = create(dict(reversible=True))
    expected = model(images())
    model.set_grad_checkpointing()
    assert torch.equal(model(images()), expected)
