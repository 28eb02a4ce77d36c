"""Weights from files: what is recognised, what is adapted, and what is refused in one sentence."""

import os
import pickle
import warnings
from argparse import Namespace

import pytest
import timm
import torch
from crafted import Call, saved
from released import released_shapes
from safetensors.torch import save_file
from timm.models._features import FeatureGetterNet
from timm.utils import ModelEmaV3

from soft_vit.models import PYRAMID_SIZES, checkpoint_filter_fn, load_weights
from soft_vit.models.checkpoint import noted_attention, recognise, rename_released
from soft_vit.weights.load import load_into
from soft_vit.weights.read import NOTES_KEY, notes_of


def released(depths: tuple[int, ...] = (1, 2, 3, 2)) -> dict[str, torch.Tensor]:
    """The released names and shapes, with one number in each."""
    return {name: torch.zeros(()).expand(shape) for name, shape in released_shapes(depths).items()}


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
    model = timm.create_model("soft_tiny", device="meta")
    converted = checkpoint_filter_fn(released(), model)
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


def test_layouts(pico_weights, tmp_path):
    for layout in LAYOUTS.values():
        torch.save(layout(pico_weights), tmp_path / "file.pth")
        found = load_weights(tmp_path / "file.pth")
        assert found.keys() == pico_weights.keys()
        assert all(torch.equal(value, pico_weights[name]) for name, value in found.items())
    save_file({name: value.contiguous() for name, value in pico_weights.items()}, tmp_path / "file.safetensors")
    assert load_weights(tmp_path / "file.safetensors").keys() == pico_weights.keys()


@pytest.mark.parametrize(
    "options",
    [
        dict(num_classes=5),
        dict(num_classes=0),
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


def test_a_number_of_classes_that_was_asked_for_is_not(pico_file):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for classes in (11, 5, 0):
            load(pico_file, "soft_pico", num_classes=classes)
        timm.create_model("soft_pico.shapes", pretrained=True, num_classes=5)


def test_a_head_is_left_out_on_request(pico_file, pico_weights):
    """As timm's train.py does with --pretrained-path."""
    torch.manual_seed(1)
    overlay = {"file": str(pico_file), "num_classes": -1}
    model = timm.create_model("soft_pico", pretrained=True, pretrained_cfg_overlay=overlay, num_classes=11, img_size=64)
    assert not torch.equal(model.head.weight, pico_weights["head.weight"])
    kept = "stages.2.blocks.1.mlp.fc1.weight"
    assert torch.equal(model.state_dict()[kept], pico_weights[kept])


@pytest.mark.parametrize("source", ["file", "state_dict"])
def test_a_part_that_weights_lack_is_left_out_on_request(source, pico_file, pico_weights):
    overlay = dict(num_classes=11, **{source: str(pico_file) if source == "file" else dict(pico_weights)})
    arguments = dict(pretrained=True, pretrained_cfg_overlay=overlay, img_size=64, global_pool="attn")
    with pytest.raises(ValueError, match="missing, such as attn_pool"):
        timm.create_model("soft_pico", **arguments)
    model = timm.create_model("soft_pico", **arguments, pretrained_strict=False)
    for name, value in pico_weights.items():
        assert torch.equal(model.state_dict()[name], value), name


class TestSavedByTimm:
    """What timm's save_for_hf writes and create_model("local-dir:...") reads."""

    def test_at_the_size_that_was_set(self, tmp_path):
        size = (96, 64)
        pytest.importorskip("timm.models._input", reason="this timm keeps no record of sizes")
        model = timm.create_model("soft_pico", num_classes=5, img_size=64).eval()
        model.set_input_size(size)
        timm.models.save_for_hf(model, tmp_path)
        loaded = timm.create_model(f"local-dir:{tmp_path}", pretrained=True).eval()
        assert loaded.img_size == size
        x = torch.randn(1, 3, *size)
        assert torch.equal(loaded(x), model(x))

    def test_with_bottleneck_tokens_counted_at_another_size(self, tmp_path):
        size = (32, 48)
        pytest.importorskip("timm.models._input", reason="this timm keeps no record of sizes")
        model = timm.create_model("soft_pico", num_classes=5, img_size=64, num_bottleneck=16).eval()
        model.set_input_size(size)
        for folder in ("first", "second"):
            timm.models.save_for_hf(model, tmp_path / folder)
            loaded = timm.create_model(f"local-dir:{tmp_path / folder}", pretrained=True).eval()
            x = torch.randn(1, 3, *size)
            assert torch.equal(loaded(x), model(x))
            model = loaded

    @pytest.mark.parametrize("size", [(64, 256), (64, 64)], ids=str)
    def test_of_an_oblong_map_with_a_square_number_of_tokens(self, size, tmp_path):
        model = timm.create_model("soft_pico", num_classes=5, img_size=(32, 128))
        timm.models.save_for_hf(model, tmp_path)
        loaded = timm.create_model(f"local-dir:{tmp_path}", pretrained=True, img_size=size)
        model.set_input_size(size)
        for name, value in loaded.state_dict().items():
            assert torch.equal(value, model.state_dict()[name]), name


def touch(path) -> Call:
    return Call(os.system, f"touch {path}")


NO_CHECKPOINT = {
    "text": (lambda _: b"<html>not found</html>", "damaged or of another kind"),
    "empty": (lambda _: b"", "damaged or of another kind"),
    "truncated": (lambda _: saved({"a": torch.zeros(9)})[:-100], "damaged or of another kind"),
    "number": (lambda _: saved(3), "holds no state dict"),
    "dictionary without tensors": (lambda _: saved({"state_dict": {"a": 1}}), "holds no state dict"),
    "torch file that runs code": (lambda s: saved({"a": torch.zeros(1), "b": touch(s)}), "could run code"),
    "pickle that runs code": (lambda s: pickle.dumps(touch(s), protocol=2), "could run code"),
    # torch's reader stops at the first byte of this protocol.
    "newer pickle that runs code": (lambda s: pickle.dumps(touch(s), protocol=4), "damaged or of another kind"),
}


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")  # the attack is written with pickle's own protocol
@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
@pytest.mark.parametrize(("write", "message"), NO_CHECKPOINT.values(), ids=NO_CHECKPOINT.keys())
def test_what_is_no_checkpoint(write, message, suffix, tmp_path):
    path, sentinel = tmp_path / f"file{suffix}", tmp_path / "executed"
    path.write_bytes(write(sentinel))
    if suffix == ".safetensors":
        message = "damaged or of another kind"
    with pytest.raises(ValueError, match=message) as refused:
        load_weights(path)
    assert str(path) in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1
    assert not sentinel.exists()


def test_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nowhere\.pth"):
        load(tmp_path / "nowhere.pth")


@pytest.mark.parametrize(
    ("weights", "name", "options", "message"),
    [
        (lambda: released((1, 3, 20, 4)), "soft_small", {}, "depths 1 3 20 4.*depths 1 3 7 4.*soft_base"),
        (released, "soft_norm_small", {}, "size 'tiny'.*size 'small'.*soft_norm_tiny"),
        (released, "soft_medium", {}, "widths 64 128 320 512.*widths 64 128 288 512"),
        (lambda: {"conv1.weight": torch.zeros(1)}, "soft_tiny", {}, "not of a soft_vit pyramid.*'conv1.weight'"),
        (released, "soft_tiny", {"stage4": "soft"}, r"missing, such as stages\.3.*options"),
        (released, "soft_tiny", {"local_kernel": 7}, r"local\.weight has shape.*trained with\.$"),
        (lambda: {**released(), "more": torch.zeros(1)}, "soft_tiny", {}, "unknown to the model, such as more"),
        (lambda: {**released(), "norm.bias": torch.full((512,), torch.inf)}, "soft_tiny", {}, "norm.bias .*not finite"),
        (
            lambda: timm.create_model("soft_pico", img_size=64, num_bottleneck=16).state_dict(),
            "soft_pico",
            {"img_size": 128, "num_bottleneck": 16},
            r"sample\.weight has shape.*with, and their img_size as bottleneck_img_size\.$",
        ),
    ],
    ids=["depth", "size", "width", "foreign", "missing names", "shape", "surplus", "infinite", "window"],
)
def test_weights_of_another_model(weights, name, options, message):
    model = timm.create_model(name, device="meta", **options)
    with pytest.raises(ValueError, match=message) as refused:
        load_into(model, weights())
    assert len(str(refused.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("trained", "created", "message"),
    [
        (dict(), dict(class_token=False), r"grid and a class token, and the model has none; .* class_token=True\."),
        (dict(class_token=False), dict(), r"grid without a class token, and the model has one; .* class_token=False\."),
        (dict(img_size=(64, 96)), dict(), "384 positions, which is not a square grid, and the model has 16 x 16"),
    ],
    ids=["class token", "no class token", "oblong"],
)
def test_positions_of_another_kind(trained, created, message):
    pool = dict(img_size=64, global_pool="avg")
    weights = timm.create_model("soft_pico", **{**pool, **trained}).state_dict()
    with pytest.raises(ValueError, match=message):
        # Without the options that a state dict carries.
        checkpoint_filter_fn(dict(weights), timm.create_model("soft_pico", **{**pool, **created}))


def test_a_refused_file_leaves_the_model_as_it_was(pico_weights, tmp_path):
    path = tmp_path / "file.pth"
    torch.save(released(), path)
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
        weights = {name: value + i for i, (name, value) in enumerate(released().items())}
        torch.save({"state_dict": weights}, tmp_path / "SOFT_Tiny.pth")
        model = timm.create_model("soft_tiny", checkpoint_path=str(tmp_path / "SOFT_Tiny.pth"))
        for name, value in weights.items():
            assert torch.equal(model.state_dict()[rename_released(name)], value), name

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
        model = torch.nn.ModuleDict({"backbone": timm.create_model("soft_tiny", img_size=64, device="meta")})
        given = {f"backbone.{name}": value for name, value in released().items()}
        assert model.load_state_dict(given, assign=True) == ([], [])
        with pytest.raises(ValueError, match=r"size 'base'.*soft_tiny is size 'tiny'"):
            model.load_state_dict({f"backbone.{n}": v for n, v in released((1, 3, 20, 4)).items()})

    def test_of_an_oblong_map_inside_of_another_module(self):
        trained = torch.nn.Sequential(timm.create_model("soft_pico", img_size=(64, 96), device="meta"))
        with pytest.raises(ValueError, match="384 positions, which is not a square grid"):
            torch.nn.Sequential(timm.create_model("soft_pico", img_size=64)).load_state_dict(dict(trained.state_dict()))

    @pytest.mark.parametrize(
        ("weights", "error", "message"),
        [
            (
                lambda: released((1, 3, 20, 4)),
                ValueError,
                "size 'base'.*soft_tiny is size 'tiny'.*soft_base",
            ),
            (lambda: {"conv1.weight": torch.zeros(1)}, RuntimeError, "Missing key"),
            (lambda: {"stages.0.pos_embed": torch.zeros(3)}, RuntimeError, "size mismatch for stages.0.pos_embed"),
            (lambda: {**released(), "more": torch.zeros(1)}, RuntimeError, 'Unexpected key.*"more"'),
        ],
        ids=["released depths", "foreign", "foreign shape", "surplus"],
    )
    def test_of_another_model(self, weights, error, message):
        with pytest.raises(error, match=f"(?s){message}"):
            timm.create_model("soft_tiny", device="meta").load_state_dict(weights(), assign=True)

    def test_the_given_weights_stay_as_they_are(self, pico_weights):
        shapes = {name: value.shape for name, value in pico_weights.items()}
        timm.create_model("soft_pico", num_classes=11, img_size=96).load_state_dict(pico_weights)
        assert {name: value.shape for name, value in pico_weights.items()} == shapes

    def test_nothing_is_allocated_on_meta(self):
        model = timm.create_model("soft_pico", device="meta")
        other = timm.create_model("soft_pico", device="meta", img_size=64)
        assert other.load_state_dict(model.state_dict(), assign=True) == ([], [])
        assert {value.device.type for value in other.state_dict().values()} == {"meta"}


class TestRecognition:
    def test_every_size(self):
        for size, numbers in PYRAMID_SIZES.items():
            names = [f"stages.{i}.blocks.{j}.w" for i, depth in enumerate(numbers["depths"]) for j in range(depth)]
            embeddings = {f"stages.{i}.pos_embed": (1, 1, dim) for i, dim in enumerate(numbers["embed_dims"])}
            shapes = {"stages.0.patch_embed.0.conv.weight": (), **embeddings, **dict.fromkeys(names, ())}
            found = recognise({name: torch.zeros(()).expand(shape) for name, shape in shapes.items()})
            assert found.size == size
            assert size in str(found)
            model = timm.create_model(f"soft_norm_{size}", device="meta") if size in ("pico", "tiny") else None
            assert model is None or recognise(model.state_dict()) == found

    def test_an_unnamed_size(self):
        found = recognise(timm.create_model("soft_pico", depths=(1, 2, 2, 1), device="meta").state_dict())
        assert found.size is None
        assert str(found) == "an unnamed size with depths 1 2 2 1 and widths 32 64 128 160"

    @pytest.mark.parametrize("weights", [{"a": torch.ones(1)}, {"stages.0.blocks.0.norm.weight": torch.ones(1)}])
    def test_no_pyramid(self, weights):
        with pytest.raises(ValueError, match="not of a soft_vit pyramid"):
            recognise(weights)

    @pytest.mark.parametrize(
        ("content", "expected"),
        [
            ({"arch": "soft_norm_small"}, "soft_norm"),
            ({"arch": "soft_tiny"}, "soft"),
            ({"arch": "softmaxfreevisiontransformer"}, None),
            ({"arch": 3}, None),
            ({"args": Namespace(model="soft_norm_tiny")}, "soft_norm"),
            ({"meta": {NOTES_KEY: {"model": "soft_norm_pico"}}}, "soft_norm"),
            ({"meta": {NOTES_KEY: {"model": "soft_pico", "options": {"attention": "linformer"}}}}, "linformer"),
            ({"meta": {NOTES_KEY: [1]}}, None),
            ([], None),
        ],
        ids=str,
    )
    def test_noted_attention(self, content, expected):
        assert noted_attention(notes_of(content)) == expected

    def test_the_other_attention_is_refused_in_every_way(self, tmp_path):
        """The released training loop puts an argparse.Namespace into its checkpoints."""
        content = {"arch": "soft_norm_tiny", "state_dict": released(), "args": Namespace(lr=1e-3, aa=None)}
        torch.save(content, tmp_path / "file.pth")
        message = r"soft_norm_tiny, by what is noted.*soft_tiny has the attention 'soft'"
        with pytest.raises(ValueError, match=message):
            load(tmp_path / "file.pth", device="meta")
        with pytest.raises(ValueError, match=message):
            timm.create_model("soft_tiny", device="meta").load_pretrained(tmp_path / "file.pth")


class TestReversible:
    """The same parameters, and another function."""

    MESSAGE = r"trained with reversible=(True|False), and the model .*reversible=(True|False)"

    def test_recorded_weights_are_refused(self):
        with pytest.raises(ValueError, match=self.MESSAGE):
            timm.create_model("soft_pico", pretrained=True, reversible=True)

    @pytest.mark.parametrize("trained", [True, False])
    def test_own_files(self, trained, tmp_path):
        kwargs = dict(num_classes=5, img_size=64)
        model = timm.create_model("soft_pico", reversible=trained, **kwargs)
        torch.save(model.state_dict(), tmp_path / "file.pth")
        load(tmp_path / "file.pth", "soft_pico", reversible=trained, **kwargs)
        with pytest.raises(ValueError, match=self.MESSAGE):
            load(tmp_path / "file.pth", "soft_pico", reversible=not trained, **kwargs)
        other = torch.nn.Sequential(timm.create_model("soft_pico", reversible=not trained, **kwargs))
        with pytest.warns(UserWarning, match=self.MESSAGE):
            other.load_state_dict(torch.nn.Sequential(model).state_dict())

    @pytest.mark.parametrize(
        "content",
        [
            {"arch": "soft_pico"},
            {"args": Namespace(model="soft_pico", model_kwargs={"reversible": False})},
            {"meta": {NOTES_KEY: {"model": "soft_pico"}}},
        ],
        ids=["arch", "options of a training script", "notes"],
    )
    def test_notes_of_a_file(self, content, pico_weights):
        model = timm.create_model("soft_pico", num_classes=11, img_size=64, reversible=True)
        with pytest.raises(ValueError, match=self.MESSAGE):
            load_into(model, {"state_dict": dict(pico_weights), **content})

    def test_weights_without_a_record(self, pico_weights, tmp_path):
        """What timm's checkpoint_path makes of every file; only the reversible form is rare enough to ask."""
        kwargs = dict(num_classes=11, img_size=64)
        path = tmp_path / "plain.safetensors"
        save_file(dict(pico_weights), path)
        with pytest.warns(UserWarning, match="no record.*reversible=True"):
            timm.create_model("soft_pico", reversible=True, checkpoint_path=str(path), **kwargs)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            timm.create_model("soft_pico", checkpoint_path=str(path), **kwargs)
            model = timm.create_model("soft_pico", reversible=True, **kwargs)
            model.load_state_dict(model.state_dict())
            load_into(model, {"state_dict": model.state_dict()})


class TestGrids:
    """A map of 8 x 32 has as many positions as one of 16 x 16."""

    def test_a_state_dict_knows_its_grid(self, tmp_path):
        trained = timm.create_model("soft_pico", num_classes=3, img_size=(32, 128))
        torch.save(trained.state_dict(), tmp_path / "file.pth")
        trained.set_input_size((64, 64))
        expected = trained.state_dict()
        given = torch.load(tmp_path / "file.pth", weights_only=True)
        loaded = timm.create_model("soft_pico", num_classes=3, img_size=64)
        loaded.load_state_dict(given)
        for model in (loaded, load(tmp_path / "file.pth", "soft_pico", num_classes=3, img_size=64)):
            assert all(torch.equal(value, expected[name]) for name, value in model.state_dict().items())

    def test_a_note_that_is_wrong(self, pico_weights):
        content = {"state_dict": dict(pico_weights), "meta": {NOTES_KEY: {"options": {"img_size": [32, 64]}}}}
        with pytest.raises(ValueError, match=r"has 256 positions, and the file notes images of 32 x 64.* 128"):
            load_into(timm.create_model("soft_pico", img_size=64), content)
