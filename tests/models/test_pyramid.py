"""Pyramids: options, names, sizes, and folding of BatchNorm."""

import importlib.util
from pathlib import Path

import pytest
import timm
import torch
from captured_models import TWO_STAGES
from models.zoo.families import SMALL
from timm.layers import freeze_batch_norm_2d
from torch import nn

import soft_vit  # noqa: F401 - registers the models
from soft_vit.layers import ATTENTIONS, attention_options
from soft_vit.models import PYRAMID_MODELS, PyramidViT, model_name
from soft_vit.models.folding import fold_batch_norm

# The pyramid: what it has of its own in features, heads and parameters, any image size, options and names.


every_pico = pytest.mark.parametrize("name", sorted(name for name in PYRAMID_MODELS if name.endswith("_pico")))
IMAGE = (2, 3, 64, 96)


def create(name: str = "soft_pico", **kwargs) -> PyramidViT:
    torch.manual_seed(0)
    return timm.create_model(name, **{"num_classes": 11, **kwargs})


def image(shape: tuple[int, ...] = IMAGE, **kwargs) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1), **kwargs)


class Wrapped(nn.Module):
    """A layer inside another, as adapters have it, without weights of its own."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


@every_pico
def test_any_layer_may_be_wrapped(name):
    model = create(name, **TWO_STAGES).eval()
    with torch.no_grad():
        expected = model(image())
        for path, module in list(model.named_modules()):
            if isinstance(module, nn.Linear | nn.Conv2d):
                parent, _, child = path.rpartition(".")
                setattr(model.get_submodule(parent), child, Wrapped(module))
        # What reads weights in another order for speed does not where it cannot.
        torch.testing.assert_close(model(image()), expected, rtol=1e-4, atol=1e-5)


@every_pico
def test_init_weights_sets_all_that_comes_from_the_meta_device(name):
    expected = create(name, **TWO_STAGES).state_dict()
    model = create(name, device="meta", **TWO_STAGES).to_empty(device="cpu")
    for value in model.state_dict().values():
        value.fill_(float("nan") if value.is_floating_point() else -1)
    model.init_weights()
    for parameter, value in model.state_dict().items():
        # Drawn from the same distribution: of ones and zeros the same, otherwise of about one size.
        size, expected_size = (x.float().abs().mean() for x in (value, expected[parameter]))
        assert expected_size / 2 <= size <= 2 * expected_size, parameter


def test_normed_intermediates():
    model = create().eval()
    with torch.no_grad():
        final, maps = model.forward_intermediates(image())
        _, normed = model.forward_intermediates(image(), norm=True)
    assert torch.equal(normed[-1].flatten(2).mT, final[:, 1:])
    assert torch.equal(normed[0], maps[0])
    with pytest.raises(ValueError, match="output_fmt"):
        model.forward_intermediates(image(), output_fmt="NHWC")


def test_a_head_on_fewer_stages_reads_all_of_their_tokens():
    model = create().eval()
    model.prune_intermediate_layers([1])
    model.reset_classifier(10, "avg")
    with torch.no_grad():
        tokens = model.forward_features(image())
        torch.testing.assert_close(model.forward_head(tokens, pre_logits=True), tokens.mean(1))
    with pytest.raises(ValueError, match="token"):
        model.reset_classifier(10, "token")


def test_pools():
    """In the dtype of the model, which a new head keeps."""
    model = create(num_classes=0, dtype=torch.float64).eval()
    x = image(dtype=torch.float64)
    with torch.no_grad():
        tokens = model.forward_features(x)
        torch.testing.assert_close(model(x), tokens[:, 0], rtol=1e-9, atol=1e-11)
        model.reset_classifier(0, "avg")
        torch.testing.assert_close(model(x), tokens[:, 1:].mean(1), rtol=0, atol=0)
        model.reset_classifier(0, "attn")
        assert torch.equal(model(x), model.attn_pool(tokens[:, 1:]))
        # Zero scores weigh all alike.
        model.attn_pool.score.weight.zero_()
        torch.testing.assert_close(model(x), tokens[:, 1:].mean(1), rtol=1e-9, atol=1e-11)
        model.reset_classifier(5, "avg")
    assert model.attn_pool is None
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float64}
    assert not any(module.training for module in model.modules())


REFUSED = [
    # TypeError is what timm's own tests ask of every model.
    (dict(not_an_option=1), TypeError),
    (dict(out_indices=(1, 2)), TypeError),
    (dict(attention="sofd"), ValueError),
    (dict(class_token=True, attention=("soft",) * 4), ValueError),
    (dict(num_heads=(3, 2, 4, 5)), ValueError),
    (dict(depths=(1, 1, 1, 0)), ValueError),
    (dict(sr_ratios=(0, 1, 1, 1)), ValueError),
    (dict(img_size=(64, -1)), ValueError),
    (dict(invrese="newton"), ValueError),
    (dict(num_bottleneck=50), ValueError),
    (dict(bottleneck_img_size=224), ValueError),
    (dict(global_pool="", fuse_stages=True), ValueError),
    (dict(drop_path_mode="x"), ValueError),
]


@pytest.mark.parametrize(("options", "error"), REFUSED, ids=str)
def test_what_a_pyramid_cannot_have_is_refused_by_name(options, error):
    """In one line."""
    with pytest.raises(error, match="^.*" + next(iter(options)).removeprefix("num_") + ".*$"):
        create("soft_pico", device="meta", **options)


def pico(**kwargs) -> PyramidViT:
    return create(**{"img_size": 64, **kwargs}).eval()


TRAINED = [
    ({}, (32, 32)),
    ({}, (192, 61)),
    (dict(attention="soft_norm"), (33, 47)),
    *(
        (options, (64, 64))
        for options in (
            dict(attention="soft_norm", stage4="soft"),
            dict(attention=("soft", "soft_norm", "gaussian", "softmax"), class_token=False, global_pool="avg"),
            dict(attention=("soft",) * 4, class_token=False, global_pool="avg"),
            dict(drop_rate=0.1, pos_drop_rate=0.1, proj_drop_rate=0.1, attn_drop_rate=0.1, drop_path_rate=0.2),
            dict(global_pool="avg", drop_path_rate=0.2, drop_path_mode="dropout"),
            dict(num_bottleneck=4, in_chans=1),
        )
    ),
]


@pytest.mark.parametrize(("options", "size"), TRAINED, ids=str)
def test_options_and_any_size_from_32_up_train(options, size):
    model = pico(**options).train()
    x = torch.randn(4, model.in_chans, *size)
    for i, feature in enumerate(model.forward_intermediates(x, intermediates_only=True)):
        # Halving i + 2 times, rounding up each time, is rounding up once at the end.
        assert feature.shape[2:] == (-(-size[0] // 2 ** (i + 2)), -(-size[1] // 2 ** (i + 2)))
    model(x).sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


IMAGES = [((1, 3, 31, 64), "31"), ((1, 3, 64, 8), "8"), ((1, 1, 64, 64), "1, 64"), ((3, 64, 64), "3, 64")]


@pytest.mark.parametrize(("shape", "named"), IMAGES)
def test_refused_images(shape, named):
    with pytest.raises(ValueError, match=named):
        pico()(torch.randn(shape))


def test_normalised_pyramid_normalises_its_last_stage_too():
    model = pico(attention="soft_norm", stage4="soft")
    assert all(block.attn.normalize for stage in model.stages for block in stage.blocks)


LIMITS = [("soft_pico", {}, None), ("soft_plus_pico", {}, (7, 7))]
LIMITS += [("soft_plus_pico", {"max_bottleneck": (14, 14)}, (14, 14))]


@pytest.mark.parametrize(("name", "options", "limit"), LIMITS)
def test_soft_plus_alone_bounds_its_bottleneck_tokens_by_default(name, options, limit):
    model = timm.create_model(name, device="meta", **options)
    assert [stage.blocks[0].attn.limit for stage in model.stages[:3]] == [limit] * 3


def test_drop_path_grows_with_depth_and_released_mode_drops_elements():
    model = pico(drop_path_rate=0.2)
    rates = [getattr(block.drop_path1, "drop_prob", 0.0) for stage in model.stages for block in stage.blocks]
    assert rates == pytest.approx([0, 0.05, 0.1, 0.15, 0.2])
    released = pico(drop_path_rate=0.2, drop_path_mode="dropout")
    assert isinstance(released.stages[2].blocks[0].drop_path1, torch.nn.Dropout)
    assert not isinstance(released.stages[3].blocks[0].drop_path1, torch.nn.Dropout)


@pytest.mark.parametrize("kind", ATTENTIONS)
def test_every_option_of_an_attention_reaches_it_through_timm(kind):
    options = {name: value for name, value in attention_options(ATTENTIONS[kind]).items() if value is not None}
    create(model_name(kind, "pico"), device="meta", **options)


# Names of models and sizes, what they stand for, and the names that a mistake is answered with.


# Published counts, 24.11 M for small, add up parameters and BatchNorm's buffers: the whole state dict.
STATE_SIZES = {
    "tiny": 13_071_238,
    "small": 24_112_274,
    "base": 38_860_644,
    "medium": 45_814_825,
    "large": 64_702_828,
    "huge": 87_110_519,
}


@pytest.mark.parametrize(("size", "count"), STATE_SIZES.items())
def test_size_of_the_state(size, count):
    model = timm.create_model(f"soft_norm_{size}", device="meta")
    assert sum(value.numel() for value in model.state_dict().values()) == count


def test_torch_hub():
    root = str(Path(__file__).parents[2])
    assert torch.hub.load(root, "soft_pico", source="local", num_classes=5).num_classes == 5
    spec = importlib.util.spec_from_file_location("hubconf", f"{root}/hubconf.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    listed = {name for name in dir(module) if callable(getattr(module, name)) and not name.startswith("_")}
    assert set(PYRAMID_MODELS) < listed < set(timm.list_models())


def test_names_of_models():
    assert set(PYRAMID_MODELS) == set(timm.list_models(module="soft"))
    assert model_name("soft_norm", "tiny") == "soft_norm_tiny"
    assert model_name("linformer", "pico") == "linformer_pyramid_pico"


# BatchNorm folded into the convolutions before it.


def with_statistics(model: nn.Module) -> nn.Module:
    generator = torch.Generator().manual_seed(0)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            for tensor in (module.running_mean, module.weight.data, module.bias.data):
                tensor.copy_(torch.randn(tensor.shape, generator=generator))
            module.running_var.copy_(torch.rand(module.running_var.shape, generator=generator) + 0.1)
    return model


FOLDED = [
    ("soft_pico", {}, nn.Module.train, 0),
    ("soft_pico", {"features_only": True}, nn.Module.eval, 0),
    ("soft_pico", {}, nn.SyncBatchNorm.convert_sync_batchnorm, 0),
    ("soft_pico", {}, freeze_batch_norm_2d, 0),
    # A norm that follows no convolution in a sequence is left.
    (*SMALL["ravlt"], nn.Module.train, 1),
    (*SMALL["h_vit3"], nn.Module.train, 1),
    # Norms of timm that end in an activation.
    ("densenetblur121d", {"block_config": (1, 1), "growth_rate": 8}, nn.Module.eval, 6),
]


@pytest.mark.parametrize(("name", "options", "convert", "left"), FOLDED)
def test_the_same_function_without_batch_norm(name, options, convert, left):
    """The model stays as it was, and a folded one may be folded again."""
    model = convert(with_statistics(timm.create_model(name, **options)).double().eval())
    before = {name: value.clone() for name, value in model.state_dict().items()}
    training = model.training
    folded = fold_batch_norm(model)
    assert sum("BatchNorm" in type(module).__name__ for module in folded.modules()) == left
    assert (folded.training, model.training) == (False, training)
    x = torch.randn(2, 3, 65, 97, dtype=torch.float64)
    result = folded(x)
    torch.testing.assert_close(result, model.eval()(x), rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(fold_batch_norm(folded)(x), result, rtol=0, atol=0)
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
