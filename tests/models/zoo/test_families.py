"""What differs between the families: windows, PVT and Swin, image sizes, and parts of released networks."""

import pytest
import timm
import torch
import torch.nn.functional as F
from models.zoo.families import FAMILIES, SMALL
from models.zoo.generated import family_of, images, relative_error, shapes
from released import hollow
from torch import Tensor, nn

from soft_vit.models.efficientvit import EPS, Conv, ReLUAttention
from soft_vit.models.swin import SoftmaxBlock, SoftmaxWindows, linear_window, window_mask, window_shift

BODIES = [family for family in FAMILIES if family.rpartition("_")[2] in ("pvt", "v2", "swin")]


def create(family: str, **options) -> nn.Module:
    name, small = SMALL[family]
    return timm.create_model(name, **{"num_classes": 7, **small, **options}).eval()


def dense(attn: SoftmaxWindows, x: Tensor, feat_size: tuple[int, int], shift: int) -> Tensor:
    """Return the attention of pairs of tokens in one window of the rolled map that are neighbours in the map."""
    (H, W), S = feat_size, attn.window_size[0]
    place = torch.arange(H * W)
    row, column = place // W, place % W
    # Rolled to the end of its side, and so apart from what stands there.
    above, left = row < shift, column < shift
    row_window = torch.where(above, H - shift + row, row - shift) // S
    column_window = torch.where(left, W - shift + column, column - shift) // S
    parts = torch.stack([row_window, column_window, above.long(), left.long()])
    together = (parts[:, :, None] == parts[:, None]).all(0)
    offsets = (row[:, None] - row + S - 1) * (2 * S - 1) + column[:, None] - column + S - 1
    bias = attn.relative_position_bias_table[offsets.clamp(0, (2 * S - 1) ** 2 - 1)].permute(2, 0, 1)
    q, k, v = attn.qkv(x).unflatten(2, (3, attn.num_heads, -1)).permute(2, 0, 3, 1, 4)
    scores = (q @ k.mT * q.shape[-1] ** -0.5 + bias).masked_fill(~together, float("-inf"))
    return attn.proj((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


@pytest.mark.parametrize("feat_size", [(6, 9), (7, 8), (2, 5), (4, 4)], ids=str)
@pytest.mark.parametrize("shifted", [False, True])
def test_softmax_windows_leave_padding_and_far_pairs_out(feat_size: tuple[int, int], shifted: bool) -> None:
    """Also on maps that windows do not divide evenly, or that are smaller than a window."""
    torch.manual_seed(0)
    attn = SoftmaxWindows(8, 2, window_size=3).double()
    nn.init.normal_(attn.relative_position_bias_table)
    block = SoftmaxBlock(8, attn, window=3, shifted=shifted).double()
    x = torch.randn(2, feat_size[0] * feat_size[1], 8, dtype=torch.float64)
    shift = 1 if shifted and min(feat_size) > 3 else 0
    torch.testing.assert_close(block.mix(x, feat_size), dense(attn, x, feat_size, shift), rtol=1e-12, atol=1e-12)


WINDOWS = [((56, 112), 56, (56, 56), 0), ((28, 28), 56, (28, 28), 0), ((112, 112), 56, (56, 56), 28)]
WINDOWS += [((64, 64), 56, (64, 64), 0), ((18, 25), 56, (18, 25), 0)]


@pytest.mark.parametrize(("feat_size", "window", "size", "shift"), WINDOWS)
def test_linear_windows(feat_size: tuple[int, int], window: int, size: tuple[int, int], shift: int) -> None:
    assert linear_window(feat_size, window) == size
    assert window_shift(feat_size, size, True) == shift
    assert window_shift(feat_size, size, False) == 0


def test_masked_pairs_of_windows_have_no_weight() -> None:
    """Denormal weights, as of a mask of -100, would slow products down."""
    weights = window_mask(torch.zeros(1), (9, 7), (4, 4), 2).softmax(-1)
    assert set((weights == 0).unique().tolist()) == {False, True}
    assert weights[weights > 0].min() >= 1 / 16


def test_an_odd_map_is_padded_before_its_first_convolution() -> None:
    """The first convolution turns the padded strip into its bias; the next one sees that, not zeros."""
    torch.manual_seed(0)
    model = create("mila")
    # To multiples of 4 before the stem.
    x = images(1, 75, 98)
    with torch.no_grad():
        torch.testing.assert_close(model(x), model(F.pad(x, (0, 2, 0, 1))))
        narrow, wide, last = model.layers[0].downsample.conv
        features = model.forward_intermediates(x, [0], intermediates_only=True)[0]
        assert features.shape[2:] == (19, 25)
        hidden = narrow.conv.bias.relu()[None, :, None, None].expand(1, -1, 20, 26).clone()
        hidden[:, :, :19, :25] = narrow(features)
        expected = last(wide(hidden))
        torch.testing.assert_close(model.layers[0].downsample(features), expected)
    assert not torch.allclose(expected, last(wide(narrow(features))))


def test_what_does_not_fill_a_patch_of_weightformer_is_left_out() -> None:
    torch.manual_seed(0)
    model = create("wfm")
    x = images(1, 79, 65)
    with torch.no_grad():
        assert torch.equal(model(x), model(x[:, :, :64, :64]))


OTHERS = [
    ("wfm_tiny", "vssd_micro", {}),
    ("inline_deit_small", "inline_deit_tiny", {}),
    ("vil2_tiny", "vil_tiny", {}),
    ("vil_tiny", "vil2_tiny", {}),
    ("vrwkv_tiny", "vrwkv6_tiny", {}),
    ("vmamba_tiny_s1l8", "vmamba_tiny_s2l5", {}),
    ("efficientvit_seg_b1_ade20k", "efficientvit_seg_b2_ade20k", {}),
    ("efficientvit_seg_b1_ade20k", "efficientvit_seg_l1_ade20k", {"features_only": True}),
    ("efficientvit_sam_l0", "efficientvit_sam_l1", {}),
    # They differ only in the layer before the head, which timm drops from these models.
    ("ravlt_t", "mavit_t", {"features_only": True}),
    ("mavit_t", "ravlt_t", {"num_classes": 0}),
]


@pytest.mark.parametrize(("name", "other", "options"), OTHERS)
def test_weights_of_another_model_are_refused(name: str, other: str, options: dict) -> None:
    overlay = {"state_dict": {"model": hollow(shapes(family_of(other), other)), "epoch": 3}}
    with pytest.raises(ValueError, match=name):
        timm.create_model(name, pretrained=True, pretrained_cfg_overlay=overlay, device="meta", **options)


@pytest.mark.parametrize("family", ["vil", "vil2"])
def test_files_of_vil_have_the_names_of_its_training_code(family: str) -> None:
    """Written out here from the names of the authors' package, which are in the golden data."""
    packaged = {name: torch.rand(shape) for name, shape in shapes(family, f"{family}_tiny").items()}
    norms = {"legacy_norm.": "xlstm.post_blocks_norm.", "norm.": "head.0.", "head.": "head.1."}
    if family == "vil2":
        norms = {"norm.": "xlstm.post_blocks_norm.", "legacy_norm.": "head.0.", "head.": "head.1."}
    trained = {}
    for name, value in packaged.items():
        if name.startswith("blocks."):
            _, number, *rest = name.split(".")
            if family == "vil2":
                number, rest = str(2 * int(number) + rest[0].endswith("bot_right")), rest[1:]
                rest = [{"conv": "conv1d"}.get(part, part) for part in rest]
            rest[0] = {"norm": "xlstm_norm", "layer": "xlstm"}[rest[0]]
            name = ".".join(["xlstm.blocks", number, *rest])
        else:
            prefix = next((prefix for prefix in norms if name.startswith(prefix)), "")
            name = norms.get(prefix, "") + name.removeprefix(prefix)
        trained[name] = value
    model = timm.create_model(f"{family}_tiny", device="meta")
    found, expected = model.from_released(trained), model.from_released(packaged)
    assert found.keys() == expected.keys() == model.state_dict().keys()
    assert all(torch.equal(found[name], value) for name, value in expected.items())


# A warning would say that the map is not known.
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("family", ["vil", "vil2"])
def test_files_of_vil_tell_the_map_of_their_positions(family: str) -> None:
    """Also one of as many positions as the model has."""
    model = create(family, img_size=(64, 96))
    released = model.to_released(model.state_dict())
    assert released["pos_embed.embed"].shape == (1, 4, 6, 24)
    for size in ((64, 96), (96, 64)):
        other = create(family, img_size=size, pretrained=True, pretrained_cfg_overlay={"state_dict": released})
        model.set_input_size(size)
        torch.testing.assert_close(other.state_dict(), model.state_dict(), rtol=0, atol=0)


def test_the_largest_vision_rwkv_keeps_the_positions_of_smaller_images() -> None:
    """Under the released names, also the norms and the layer before the head that it has alone."""
    model = timm.create_model("vrwkv_large", embed_dim=24, depth=2, num_classes=7).eval()
    assert (model.img_size, model.pos_embed.shape) == ((384, 384), (1, 144, 24))
    model.set_input_size((64, 96))
    assert model.pos_embed.shape == (1, 144, 24)
    released = model.to_released(model.state_dict())
    names = {"backbone.layers.0.att.key_norm.bias", "backbone.layers.1.ffn.key_norm.weight", "head.0.bias"}
    assert names < released.keys()
    again = timm.create_model("vrwkv_large", embed_dim=24, depth=2, num_classes=7, img_size=128).eval()
    again.load_state_dict(again.from_released(released))
    x = images(1, 70, 102)
    with torch.no_grad():
        assert torch.equal(again(x), model(x))
    model.reset_classifier(0)
    assert model(x).shape == (1, 24)


def test_patches_of_vil_may_overlap() -> None:
    model = timm.create_model("vil_tiny", embed_dim=24, depth=2, stride=8, num_classes=0)
    assert model.grids((224, 224))[0] == (27, 27)
    assert model.forward_features(images(1, 224, 200)).shape == (1, 24, 27, 25)
    assert model.pos_embed.shape == (1, 196, 24)


@pytest.mark.parametrize("family", ["ravlt", "efficientvit_seg"])
def test_the_layer_before_the_head_goes_with_it(family: str) -> None:
    """The head takes the channels of that layer, so both are removed together. Fewer stages may have a new head."""
    model, x = create(family), images(1, 64, 64)
    with torch.no_grad():
        expected = model.forward_intermediates(x, norm=True)[1][-1]
        assert model.prune_intermediate_layers([3], prune_norm=True, prune_head=False) == [3]
        assert torch.equal(model(x), expected)
        model.prune_intermediate_layers([1])
        model.reset_classifier(5, model.global_pools[0])
    assert model(x).shape[:2] == (1, 5)


def test_the_head_of_efficientvit_goes_with_the_classes() -> None:
    """Without classes, the model is timm's backbone with another eps, and loads its classifiers."""
    model, x = create("efficientvit_seg"), images(2, 70, 101)
    scores, features = model(x), model.forward_features(x)
    assert scores.shape == (2, 7, 9, 13)
    assert features.shape == (2, model.head_hidden_size, 9, 13)
    scores.square().sum().backward()
    assert [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()] == []
    maps = model.forward_intermediates(x, intermediates_only=True)
    assert [y.shape[1:] for y in maps] == [(8, 18, 26), (16, 9, 13), (24, 5, 7), (32, 3, 4)]
    model.reset_classifier(5)
    assert torch.equal(model.forward_features(x), features)
    assert model(x).shape == (2, 5, 9, 13)
    model.reset_classifier(0)
    assert torch.equal(model(x), maps[-1])
    model.reset_classifier(3)
    assert model(x).shape == (2, 3, 9, 13)
    model.set_grad_checkpointing()
    torch.testing.assert_close(model.train()(x), model(x))
    theirs = timm.create_model("efficientvit_b0", num_classes=9).eval()
    overlay = {"state_dict": theirs.state_dict()}
    options = {"features_only": True, "pretrained": True, "pretrained_cfg_overlay": overlay}
    ours = timm.create_model("efficientvit_seg_b0_cityscapes", **options).eval()
    for module in theirs.modules():
        if hasattr(module, "aggreg"):
            module.eps = EPS
    with torch.no_grad():
        torch.testing.assert_close(ours(x), theirs.forward_intermediates(x, intermediates_only=True))


@pytest.mark.parametrize("autocast", [False, True])
def test_sums_of_efficientvit_exceed_float16(autocast: bool) -> None:
    """Weights of a token that sum up to more than 65,504, and tokens whose queries meet no key."""
    torch.manual_seed(0)
    attn, x = ReLUAttention(Conv, 16, 8, 3).eval(), 20 * images(1, 40, 24)[:, :1].repeat(1, 16, 1, 1)
    x[:, :, 20:] = 0
    q, k, _ = attn.qkv(x)[:, :24].flatten(2).relu().split(8, 1)
    assert (q * k.sum(2, keepdim=True)).sum(1).max() > torch.finfo(torch.float16).max
    with torch.no_grad():
        expected = attn(x)
        with torch.autocast("cpu", torch.float16, enabled=autocast):
            y = attn(x) if autocast else attn.half()(x.half())
    assert not expected[:, :, -1].isnan().any()
    assert relative_error(y, expected) < 0.01


@pytest.mark.parametrize("training", [False, True])
def test_efficientvit_computes_few_images_at_a_time(training: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outside of training. Statistics and hooks are of all images."""
    x, results, seen = torch.randn(3, 3, 64, 96, generator=torch.Generator().manual_seed(0)), [], set()
    for size in (1 << 30, 1):
        monkeypatch.setattr("soft_vit.layers.mlp.HIDDEN_SIZE", size)
        torch.manual_seed(0)
        model = timm.create_model("efficientvit_seg_b0_cityscapes").eval()
        norm = model.stem.in_conv.norm.train(training)
        model.stages[0].blocks[0].main.inverted_conv.register_forward_hook(lambda *of: seen.add(len(of[2])))
        with torch.no_grad():
            results.append((model(x), norm.running_var))
    for parts, whole in zip(*results, strict=True):
        torch.testing.assert_close(parts, whole, rtol=1e-4, atol=1e-5)
    assert seen == {3}
