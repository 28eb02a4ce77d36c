"""Weights from files: what is recognised, what is adapted, and what is refused in one sentence."""

import os
import pickle
import warnings

import pytest
import timm
import torch
from released import released_state_dict
from safetensors.torch import save_file
from timm.models._features import FeatureGetterNet
from timm.utils import ModelEmaV3

from soft_vit.models import checkpoint_filter_fn, load_weights
from soft_vit.models.checkpoint import fit_state_dict
from soft_vit.models.weight_files import state_dict_of


def load(path, name: str = "soft_tiny", **kwargs):
    return timm.create_model(name, pretrained=True, pretrained_cfg_overlay={"file": str(path)}, **kwargs)


@pytest.fixture(scope="module")
def pico_weights() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return timm.create_model("soft_pico", num_classes=11, img_size=64).state_dict()


@pytest.fixture
def pico_file(pico_weights, tmp_path):
    path = tmp_path / "pico.pth"
    torch.save(pico_weights, path)
    return path


def test_released_names_all_find_their_place():
    model = timm.create_model("soft_tiny")
    converted = checkpoint_filter_fn(released_state_dict(), model)
    assert {name: t.shape for name, t in converted.items()} == {n: t.shape for n, t in model.state_dict().items()}
    again = checkpoint_filter_fn(converted, model)
    assert again.keys() == converted.keys()
    assert all(torch.equal(again[name], converted[name]) for name in converted)


def wrong(weights: dict) -> dict:
    return {name: torch.zeros_like(value) for name, value in weights.items()}


LAYOUTS = {
    "bare": lambda w: w,
    "state_dict": lambda w: {"state_dict": w, "epoch": 3},
    "averaged weights first": lambda w: {"state_dict": wrong(w), "state_dict_ema": w},
    "model": lambda w: {"model": w, "optimizer": {"lr": 0.1}},
    "model_ema": lambda w: {"model": wrong(w), "model_ema": w},
    "DDP": lambda w: {"state_dict": {f"module.{name}": value for name, value in w.items()}},
    "no averaged weights": lambda w: {"state_dict": w, "state_dict_ema": None},
}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_layouts(layout, pico_weights, tmp_path):
    path = tmp_path / "file.pth"
    torch.save(layout(pico_weights), path)
    model = load(path, "soft_pico", num_classes=11, img_size=64)
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, pico_weights[name], rtol=0, atol=0, msg=name)


def test_safetensors(pico_weights, tmp_path):
    path = tmp_path / "file.safetensors"
    save_file({name: value.contiguous() for name, value in pico_weights.items()}, path)
    assert load_weights(path).keys() == pico_weights.keys()
    load(path, "soft_pico", num_classes=11, img_size=64)


@pytest.mark.parametrize(
    "options",
    [
        dict(num_classes=5),
        dict(num_classes=0),
        dict(num_classes=11, in_chans=1),
        dict(num_classes=11, in_chans=4),
        dict(num_classes=11, img_size=(96, 80)),
        dict(num_classes=11, inverse="cholesky", max_bottleneck=(2, 2)),
    ],
    ids=str,
)
def test_adapted_to_the_model(options, pico_file, pico_weights):
    model = load(pico_file, "soft_pico", **{"img_size": 64, **options}).eval()
    kept = "stages.2.blocks.1.mlp.fc1.weight"
    torch.testing.assert_close(model.state_dict()[kept], pico_weights[kept], rtol=0, atol=0)
    if options.get("num_classes") == 11:
        torch.testing.assert_close(model.head.weight, pico_weights["head.weight"], rtol=0, atol=0)
    x = torch.randn(1, options.get("in_chans", 3), 64, 64)
    assert model(x).shape[1] == (options["num_classes"] or model.num_features)


def test_a_head_that_is_left_out_is_said(pico_file):
    with pytest.warns(UserWarning, match=r"pico\.pth tells 11 classes .* model 1000: .* give num_classes=11") as warned:
        model = load(pico_file, "soft_pico")
    assert len(warned) == 1
    assert model(torch.zeros(1, 3, 64, 64)).shape == (1, 1000)


@pytest.mark.parametrize("options", [dict(num_classes=11), dict(num_classes=5), dict(num_classes=0)], ids=str)
def test_a_number_of_classes_that_was_asked_for_is_not(options, pico_file):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load(pico_file, "soft_pico", **options)
        timm.create_model("soft_pico.shapes", pretrained=True, **options)


def test_a_head_is_left_out_on_request(pico_file, pico_weights):
    """As timm's train.py does with --pretrained-path."""
    torch.manual_seed(1)
    overlay = {"file": str(pico_file), "num_classes": -1}
    model = timm.create_model("soft_pico", pretrained=True, pretrained_cfg_overlay=overlay, num_classes=11, img_size=64)
    assert not torch.equal(model.head.weight, pico_weights["head.weight"])
    kept = "stages.2.blocks.1.mlp.fc1.weight"
    assert torch.equal(model.state_dict()[kept], pico_weights[kept])


@pytest.mark.parametrize("source", ["file", "state_dict"])
@pytest.mark.parametrize(
    ("part", "options"), [("attn_pool", {"global_pool": "attn"}), ("stage_fusion", {"fuse_stages": True})]
)
def test_a_part_that_weights_lack_is_left_out_on_request(part, options, source, pico_file, pico_weights):
    overlay = dict(num_classes=11, **{source: str(pico_file) if source == "file" else dict(pico_weights)})
    arguments = dict(pretrained=True, pretrained_cfg_overlay=overlay, img_size=64, **options)
    with pytest.raises(ValueError, match=f"lacks {part}"):
        timm.create_model("soft_pico", **arguments)
    model = timm.create_model("soft_pico", **arguments, pretrained_strict=False)
    for name, value in pico_weights.items():
        assert torch.equal(model.state_dict()[name], value), name


def test_features_only_and_pruned(pico_file, pico_weights):
    backbone = load(pico_file, "soft_pico", features_only=True, out_indices=(0, 1), img_size=64)
    kept = "stages.1.blocks.0.attn.sample.weight"
    torch.testing.assert_close(backbone.model.state_dict()[kept], pico_weights[kept], rtol=0, atol=0)


class TestSavedByTimm:
    """What timm's save_for_hf writes and create_model("local-dir:...") reads."""

    @pytest.mark.parametrize("size", [(96, 96), (96, 64)], ids=str)
    def test_at_the_size_that_was_set(self, size, tmp_path):
        pytest.importorskip("timm.models._input", reason="this timm keeps no record of sizes")
        model = timm.create_model("soft_pico", num_classes=5, img_size=64).eval()
        model.set_input_size(size)
        timm.models.save_for_hf(model, tmp_path)
        loaded = timm.create_model(f"local-dir:{tmp_path}", pretrained=True).eval()
        assert loaded.img_size == size
        x = torch.randn(1, 3, *size)
        assert torch.equal(loaded(x), model(x))

    @pytest.mark.parametrize("size", [(128, 128), (32, 48)], ids=str)
    def test_with_bottleneck_tokens_counted_at_another_size(self, size, tmp_path):
        pytest.importorskip("timm.models._input", reason="this timm keeps no record of sizes")
        model = timm.create_model("soft_pico", num_classes=5, img_size=64, num_bottleneck=16).eval()
        model.set_input_size(size)
        for folder in ("first", "second"):
            timm.models.save_for_hf(model, tmp_path / folder)
            loaded = timm.create_model(f"local-dir:{tmp_path / folder}", pretrained=True).eval()
            x = torch.randn(1, 3, *size)
            assert torch.equal(loaded(x), model(x))
            model = loaded

    @pytest.mark.parametrize("size", [(64, 256), (64, 64), (96, 96)], ids=str)
    def test_of_an_oblong_map_with_a_square_number_of_tokens(self, size, tmp_path):
        model = timm.create_model("soft_pico", num_classes=5, img_size=(32, 128))
        timm.models.save_for_hf(model, tmp_path)
        loaded = timm.create_model(f"local-dir:{tmp_path}", pretrained=True, img_size=size)
        model.set_input_size(size)
        for name, value in loaded.state_dict().items():
            assert torch.equal(value, model.state_dict()[name]), name


class RunsCode:
    def __init__(self, sentinel):
        self.sentinel = sentinel

    def __reduce__(self):
        return os.system, (f"touch {self.sentinel}",)


def corrupt(kind: str, path, sentinel) -> None:
    if kind == "text":
        path.write_text("<html>not found</html>")
    elif kind == "empty":
        path.write_bytes(b"")
    elif kind == "truncated":
        torch.save(released_state_dict(), path)
        path.write_bytes(path.read_bytes()[:100_000])
    elif kind == "picture":
        path.write_bytes(bytes.fromhex("ffd8ffe000104a464946") + bytes(1000))
    elif kind == "number":
        torch.save(3, path)
    elif kind == "dictionary without tensors":
        torch.save({"state_dict": {"a": 1}}, path)
    elif kind == "torch file that runs code":
        torch.save({"state_dict": released_state_dict(), "extra": RunsCode(sentinel)}, path)
    elif kind == "pickle that runs code":
        path.write_bytes(pickle.dumps(RunsCode(sentinel), protocol=2))
    elif kind == "newer pickle that runs code":
        path.write_bytes(pickle.dumps(RunsCode(sentinel), protocol=4))


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("text", "damaged or of another kind"),
        ("empty", "damaged or of another kind"),
        ("truncated", "damaged or of another kind"),
        ("picture", "damaged or of another kind"),
        ("number", "holds no state dict"),
        ("dictionary without tensors", "holds no state dict"),
        ("torch file that runs code", "could run code"),
        ("pickle that runs code", "could run code"),
        # torch's reader stops at the first byte of this protocol.
        ("newer pickle that runs code", "damaged or of another kind"),
    ],
)
@pytest.mark.filterwarnings("ignore:Detected pickle protocol")  # the attack is written with pickle's own protocol
@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_what_is_no_checkpoint(kind, message, suffix, tmp_path):
    path, sentinel = tmp_path / f"file{suffix}", tmp_path / "executed"
    corrupt(kind, path, sentinel)
    if suffix == ".safetensors":
        message = "damaged or of another kind"
    with pytest.raises(ValueError, match=message) as refused:
        load(path)
    assert str(path) in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1
    assert not sentinel.exists()


def test_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nowhere\.pth"):
        load(tmp_path / "nowhere.pth")


@pytest.mark.parametrize(
    ("weights", "name", "options", "message"),
    [
        (lambda: released_state_dict((1, 3, 20, 4)), "soft_small", {}, "depths 1 3 20 4.*depths 1 3 7 4.*soft_base"),
        (lambda: released_state_dict(), "soft_norm_small", {}, "size 'tiny'.*size 'small'.*soft_norm_tiny"),
        (lambda: released_state_dict(), "soft_medium", {}, "widths 64 128 320 512.*widths 64 128 288 512"),
        (
            lambda: timm.create_model("resnet18").state_dict(),
            "soft_tiny",
            {},
            "not of a soft_vit pyramid.*'conv1.weight'",
        ),
        (lambda: released_state_dict(), "soft_tiny", {"stage4": "soft"}, "lacks stages.3.*options"),
        (lambda: released_state_dict(), "soft_tiny", {"local_kernel": 7}, r"local\.weight has shape.*trained with\.$"),
        (
            lambda: timm.create_model("soft_pico", img_size=64, num_bottleneck=16).state_dict(),
            "soft_pico",
            {"img_size": 128, "num_bottleneck": 16},
            r"sample\.weight has shape.*with, and their img_size as bottleneck_img_size\.$",
        ),
    ],
    ids=["depth", "size", "width", "foreign", "missing names", "shape", "window"],
)
def test_weights_of_another_model(weights, name, options, message, tmp_path):
    path = tmp_path / "file.pth"
    torch.save(weights(), path)
    with pytest.raises(ValueError, match=message) as refused:
        load(path, name, **options)
    assert len(str(refused.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("trained", "created", "message"),
    [
        (dict(), dict(class_token=False), r"grid and a class token, and the model has none; .* class_token=True\."),
        (dict(class_token=False), dict(), r"grid without a class token, and the model has one; .* class_token=False\."),
        (dict(img_size=(64, 96)), dict(), "384 positions, which are no square grid, and the model has 16 x 16"),
    ],
    ids=["class token", "no class token", "oblong"],
)
def test_positions_of_another_kind(trained, created, message):
    pool = dict(img_size=64, global_pool="avg")
    weights = timm.create_model("soft_pico", **{**pool, **trained}).state_dict()
    with pytest.raises(ValueError, match=message):
        checkpoint_filter_fn(weights, timm.create_model("soft_pico", **{**pool, **created}))


def test_a_refused_file_leaves_the_model_as_it_was(pico_weights, tmp_path):
    path = tmp_path / "file.pth"
    torch.save(released_state_dict(), path)
    model = timm.create_model("soft_pico", num_classes=11, img_size=64)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(ValueError, match="size 'tiny'"):
        model.load_pretrained(path)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


WRAPPERS = {
    "features_only": lambda model: FeatureGetterNet(model, out_indices=(0, 3)),
    "average": ModelEmaV3,
    "own module": lambda model: torch.nn.ModuleDict({"parts": torch.nn.Sequential(torch.nn.Flatten(), model)}),
}


class TestLoadStateDict:
    """What timm does with `checkpoint_path`: torch's own load_state_dict, strict."""

    def test_released_file(self, tmp_path):
        released = released_state_dict()
        torch.save({"state_dict": released}, tmp_path / "SOFT_Tiny.pth")
        model = timm.create_model("soft_tiny", checkpoint_path=str(tmp_path / "SOFT_Tiny.pth"))
        for name, value in state_dict_of(released).items():
            assert torch.equal(model.state_dict()[name], value), name

    @pytest.mark.parametrize("name", ["soft_pico", "linformer_pyramid_pico"])
    def test_another_image_size(self, name, tmp_path):
        torch.save(timm.create_model(name, img_size=64).state_dict(), tmp_path / "file.pth")
        options = dict(img_size=(96, 80))
        model = timm.create_model(name, checkpoint_path=str(tmp_path / "file.pth"), **options)
        expected = load(tmp_path / "file.pth", name, **options).state_dict()
        for parameter, value in model.state_dict().items():
            assert torch.equal(value, expected[parameter]), parameter

    @pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS.keys())
    def test_another_image_size_inside_of_another_module(self, wrap):
        name = "linformer_pyramid_pico"
        trained, model = timm.create_model(name, img_size=64), timm.create_model(name, img_size=(96, 80))
        wrapped, given = wrap(model), wrap(trained).state_dict()
        shapes = {parameter: value.shape for parameter, value in given.items()}
        wrapped.load_state_dict(given)
        assert {parameter: value.shape for parameter, value in given.items()} == shapes
        trained.set_input_size((96, 80))
        expected = wrap(trained).state_dict()
        for parameter, value in wrapped.state_dict().items():
            assert torch.equal(value, expected[parameter]), parameter

    def test_released_weights_inside_of_another_module(self):
        released = released_state_dict()
        model = torch.nn.ModuleDict({"backbone": timm.create_model("soft_tiny", img_size=64, device="meta")})
        given = {f"backbone.{name}": value for name, value in released.items()}
        assert model.load_state_dict(given, assign=True) == ([], [])
        with pytest.raises(ValueError, match=r"size 'base'.*soft_tiny is size 'tiny'"):
            model.load_state_dict({f"backbone.{n}": v for n, v in released_state_dict((1, 3, 20, 4)).items()})

    def test_of_an_oblong_map_inside_of_another_module(self):
        trained = torch.nn.Sequential(timm.create_model("soft_pico", img_size=(64, 96), device="meta"))
        with pytest.raises(ValueError, match="384 positions, which are no square grid"):
            torch.nn.Sequential(timm.create_model("soft_pico", img_size=64)).load_state_dict(trained.state_dict())

    @pytest.mark.parametrize(
        ("weights", "error", "message"),
        [
            (
                lambda: released_state_dict((1, 3, 20, 4)),
                ValueError,
                "size 'base'.*soft_tiny is size 'tiny'.*soft_base",
            ),
            (lambda: {"conv1.weight": torch.zeros(1)}, RuntimeError, "Missing key"),
            (lambda: {"stages.0.pos_embed": torch.zeros(3)}, RuntimeError, "size mismatch for stages.0.pos_embed"),
            (lambda: {**released_state_dict(), "more": torch.zeros(1)}, RuntimeError, 'Unexpected key.*"more"'),
        ],
        ids=["released depths", "foreign", "foreign shape", "surplus"],
    )
    def test_of_another_model(self, weights, error, message):
        with pytest.raises(error, match=f"(?s){message}"):
            timm.create_model("soft_tiny", device="meta").load_state_dict(weights(), assign=True)

    def test_own_weights_are_handed_on_as_they_are(self, pico_weights):
        model = timm.create_model("soft_pico", num_classes=11, img_size=64)
        assert fit_state_dict(pico_weights, model) is pico_weights

    def test_the_given_weights_stay_as_they_are(self, pico_weights):
        shapes = {name: value.shape for name, value in pico_weights.items()}
        timm.create_model("soft_pico", num_classes=11, img_size=96).load_state_dict(pico_weights)
        assert {name: value.shape for name, value in pico_weights.items()} == shapes

    def test_nothing_is_allocated_on_meta(self):
        model = timm.create_model("soft_pico", device="meta")
        other = timm.create_model("soft_pico", device="meta", img_size=64)
        assert other.load_state_dict(model.state_dict(), assign=True) == ([], [])
        assert {value.device.type for value in other.state_dict().values()} == {"meta"}
