"""The named sizes, what a pyramid is given and gives back, and what it says to mistakes."""

import pytest
import timm
import torch

from soft_vit.models import PyramidViT
from soft_vit.models.soft import model_name

# Published counts add up parameters and BatchNorm's buffers: the whole state dict.
STATE_SIZES = {
    "tiny": 13_071_238,
    "base": 38_860_644,
    "medium": 45_814_825,
    "large": 64_702_828,
    "huge": 87_110_519,
}


@pytest.mark.parametrize("family", ["soft", "soft_norm"])
@pytest.mark.parametrize(("size", "count"), STATE_SIZES.items())
def test_size_of_the_state(family, size, count):
    model = timm.create_model(f"{family}_{size}", device="meta")
    assert sum(value.numel() for value in model.state_dict().values()) == count


@pytest.mark.parametrize("family", ["soft", "soft_norm"])
def test_small_and_pico(family):
    small = timm.create_model(f"{family}_small", device="meta")
    assert round(sum(value.numel() for value in small.state_dict().values()) / 1e6, 2) == 24.11
    pico = timm.create_model(f"{family}_pico", device="meta")
    assert sum(value.numel() for value in pico.state_dict().values()) <= 1_500_000


def pico(**kwargs) -> PyramidViT:
    torch.manual_seed(0)
    return timm.create_model("soft_pico", **{"num_classes": 7, "img_size": 64, **kwargs}).eval()


@pytest.mark.parametrize("size", [(32, 32), (33, 47), (64, 64), (97, 203), (192, 61)])
@pytest.mark.parametrize("attention", ["soft", "soft_norm"])
def test_any_size_from_32_up(size, attention):
    model = pico(attention=attention).train()
    x = torch.randn(2, 3, *size)
    maps = model.forward_intermediates(x, intermediates_only=True)
    for i, feature in enumerate(maps):
        # Halving i + 2 times, rounding up each time, is rounding up once at the end.
        assert feature.shape[2:] == (-(-size[0] // 2 ** (i + 2)), -(-size[1] // 2 ** (i + 2)))
    model(x).sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    assert model.stages[0].blocks[0].attn.sample.weight.grad.any()


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((1, 3, 31, 64), "31 x 64"),
        ((1, 3, 64, 8), "64 x 8"),
        ((1, 1, 64, 64), r"\[B, 3, H, W\]"),
        ((3, 64, 64), "3, 64"),
    ],
)
def test_refused_images(shape, message):
    with pytest.raises(ValueError, match=message):
        pico()(torch.randn(shape))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(attention="sofd"), "attention='sofd'.*soft_norm"),
        (dict(attention=("soft", "soft")), "4 names"),
        (dict(attention=("soft",) * 4), "class_token=False|class token"),
        (dict(attention=("soft",) * 4, class_token=True), "class_token=False"),
        (dict(stage4="hard"), "stage4='hard'.*softmax"),
        (dict(num_heads=(3, 2, 4, 5)), "3 heads do not divide the width 32"),
        (dict(depths=(1, 1)), "one for each stage"),
        (dict(depths=(1, 1, 1, 0)), r"depths=\(1, 1, 1, 0\).*last stage"),
        (dict(mlp_ratios=(4, 4)), r"mlp_ratios=\(4, 4\).*one for each stage"),
        (dict(sr_ratios=(0, 1, 1, 1)), r"sr_ratios=\(0, 1, 1, 1\).*positive"),
        (dict(img_size=(64,)), r"img_size=\(64,\).*a height and a width"),
        (dict(img_size=(64, -1)), "img_size=64 x -1 is too small"),
        (dict(in_chans=0), "in_chans=0.*positive"),
        (dict(invrese="newton"), "'invrese'.*inverse"),
        (dict(inverse="lu"), "inverse='lu'.*cholesky"),
        (dict(newton_start="x"), "newton_start='x'"),
        (dict(newton_gradient="x"), "newton_gradient='x'"),
        (dict(sampling="x"), "sampling='x'.*random"),
        (dict(num_bottleneck=50), "num_bottleneck=50.*square"),
        (dict(bottleneck_img_size=224), r"bottleneck_img_size=224 .* num_bottleneck"),
        (dict(local_kernel=4), "local_kernel=4.*odd"),
        (dict(global_pool="max"), "global_pool='max'.*token"),
        (dict(drop_path_mode="x"), "drop_path_mode='x'.*dropout"),
    ],
    ids=str,
)
def test_mistakes_get_one_sentence(options, message):
    with pytest.raises(ValueError, match=message) as refused:
        pico(**options)
    assert len(str(refused.value).splitlines()) == 1


@pytest.mark.parametrize(
    "options",
    [
        dict(stage4="soft"),
        dict(stage4="soft", attention="soft_norm"),
        dict(attention=("soft", "soft_norm", "gaussian", "softmax")),
        dict(attention=("soft",) * 4, class_token=False, global_pool="avg"),
        dict(class_token=False, global_pool="avg"),
        dict(drop_rate=0.1, pos_drop_rate=0.1, proj_drop_rate=0.1, attn_drop_rate=0.1, drop_path_rate=0.2),
        dict(drop_path_rate=0.2, drop_path_mode="dropout"),
        dict(num_bottleneck=4),
    ],
    ids=str,
)
def test_options_train(options):
    model = pico(**options).train()
    model(torch.randn(4, 3, 64, 64)).sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_normalised_pyramid_normalises_its_last_stage_too():
    model = pico(attention="soft_norm", stage4="soft")
    assert all(block.attn.normalize for stage in model.stages for block in stage.blocks)


def test_drop_path_grows_with_depth_and_released_mode_drops_elements():
    model = pico(drop_path_rate=0.2)
    rates = [getattr(block.drop_path1, "drop_prob", 0.0) for stage in model.stages for block in stage.blocks]
    assert rates == pytest.approx([0, 0.05, 0.1, 0.15, 0.2])
    released = pico(drop_path_rate=0.2, drop_path_mode="dropout")
    assert isinstance(released.stages[2].blocks[0].drop_path1, torch.nn.Dropout)
    assert not isinstance(released.stages[3].blocks[0].drop_path1, torch.nn.Dropout)


def test_random_sampling_is_fixed_in_evaluation_and_redrawn_in_training():
    model = pico(sampling="random")
    x = torch.randn(1, 3, 128, 128)
    with torch.no_grad():
        torch.testing.assert_close(model(x), model(x), rtol=0, atol=0)
        model.train()
        model.stages[0].patch_embed.eval()
        assert not torch.equal(model.stages[0](x)[0], model.stages[0](x)[0])


def test_names_of_models():
    assert model_name("soft_norm", "tiny") == "soft_norm_tiny"
    assert model_name("linformer", "pico") == "linformer_pyramid_pico"
    with pytest.raises(ValueError, match="no model linformer_pyramid_huge; use size pico, tiny, small"):
        model_name("linformer", "huge")
    with pytest.raises(ValueError, match="'lin' is not known"):
        model_name("lin", "tiny")
