"""Weights from files, by name and by path: what is recognised, adapted and refused."""

import copy
import os
import pickle
import re
import sys
from argparse import Namespace
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import timm
import torch
from crafted import Call, saved
from file_server import file_server
from released import hollow, released_shapes
from safetensors.torch import load_file, save_file
from timm.models._features import FeatureGetterNet
from timm.utils import ModelEmaV3

import soft_vit
from soft_vit.models import load_weights
from soft_vit.weights import RECORDED_WEIGHTS, Entry, WeightsError
from soft_vit.weights.files import INDEX_FILE
from soft_vit.weights.load import fit
from soft_vit.weights.spec import MULTI_LABEL, NOTES_KEY, ModelSpec

# Weights from files: what is recognised, what is adapted, and what is refused.


def released(depths: tuple[int, ...] = (1, 2, 3, 2)) -> dict[str, torch.Tensor]:
    return hollow(released_shapes(depths))


def pico_state(**options) -> dict[str, torch.Tensor]:
    """Weights that note the size of their images; dict() of them does not."""
    return timm.create_model("soft_pico", **options).state_dict()


def load(path, name: str = "soft_tiny", **kwargs):
    return timm.create_model(name, pretrained=True, pretrained_cfg_overlay={"file": str(path)}, **kwargs)


@pytest.fixture(scope="module")
def pico_weights() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return pico_state(num_classes=11, img_size=64)


@pytest.fixture
def pico_file(pico_weights, tmp_path):
    path = tmp_path / "pico.pth"
    torch.save(pico_weights, path)
    return path


def wrong(weights: dict) -> dict:
    return {name: torch.zeros_like(value) for name, value in weights.items()}


LAYOUTS = {
    "bare": lambda w: w,
    "state_dict": lambda w: {"state_dict": w, "epoch": 3},
    "averaged weights first": lambda w: {"state_dict": wrong(w), "state_dict_ema": w},
    "model": lambda w: {"model": w, "optimizer": {"lr": 0.1}},
    "model_ema": lambda w: {"model": wrong(w), "model_ema": w},
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


# A head is left out without a warning if a number of classes was asked for.
ADAPTED = [dict(num_classes=5), dict(num_classes=0), dict(num_classes=11, in_chans=4)]
ADAPTED += [dict(num_classes=11, img_size=(96, 80)), dict(num_classes=11, inverse="cholesky", max_bottleneck=(2, 2))]


@pytest.mark.filterwarnings("error:.*num_classes")
@pytest.mark.parametrize("options", ADAPTED, ids=str)
def test_adapted_to_the_model(options, pico_file, pico_weights):
    model = load(pico_file, "soft_pico", **{"img_size": 64, **options}).eval()
    kept = "stages.2.blocks.1.mlp.fc1.weight"
    torch.testing.assert_close(model.state_dict()[kept], pico_weights[kept], rtol=0, atol=0)
    if options.get("num_classes") == 11:
        torch.testing.assert_close(model.head.weight, pico_weights["head.weight"], rtol=0, atol=0)
    x = torch.randn(1, options.get("in_chans", 3), 64, 64)
    assert model(x).shape[1] == (options["num_classes"] or model.num_features)


def test_a_head_is_left_out_on_request(pico_file, pico_weights):
    """As timm's train.py does with --pretrained-path."""
    torch.manual_seed(1)
    overlay = {"file": str(pico_file), "num_classes": -1}
    model = timm.create_model("soft_pico", pretrained=True, pretrained_cfg_overlay=overlay, num_classes=11, img_size=64)
    for name, value in model.state_dict().items():
        assert torch.equal(value, pico_weights[name]) == (name != "head.weight"), name


@pytest.mark.parametrize("source", ["file", "state_dict"])
def test_a_part_that_weights_lack_is_left_out_on_request(source, pico_file, pico_weights):
    overlay = dict(num_classes=11, **{source: str(pico_file) if source == "file" else dict(pico_weights)})
    arguments = dict(pretrained=True, pretrained_cfg_overlay=overlay, img_size=64, global_pool="attn")
    with pytest.raises(ValueError, match="attn_pool"):
        timm.create_model("soft_pico", **arguments)
    model = timm.create_model("soft_pico", **arguments, pretrained_strict=False)
    for name, value in pico_weights.items():
        assert torch.equal(model.state_dict()[name], value), name


@pytest.mark.parametrize("options", [{"fuse_stages": True}, {"num_bottleneck": 16}], ids=str)
def test_a_folder_of_timm_has_the_size_and_the_pooling_that_were_set(options, tmp_path):
    """Bottleneck tokens stay counted at the size before, also in a model that is saved again."""
    size = (32, 48)
    model = timm.create_model("soft_pico", num_classes=5, img_size=64, **options).eval()
    model.set_input_size(size)
    model.reset_classifier(3, "")
    for folder in ("first", "second"):
        timm.models.save_for_hf(model, tmp_path / folder)
        loaded = timm.create_model(f"local-dir:{tmp_path / folder}", pretrained=True).eval()
        assert loaded.img_size == size
        x = torch.randn(1, 3, *size)
        assert torch.equal(loaded(x), model(x))
        model = loaded


def touch(path) -> Call:
    return Call(os.system, f"touch {path}")


NO_CHECKPOINT = {
    "text": lambda _: b"<html>not found</html>",
    "empty": lambda _: b"",
    "truncated": lambda _: saved({"a": torch.zeros(9)})[:-100],
    "number": lambda _: saved(3),
    "dictionary without tensors": lambda _: saved({"state_dict": {"a": 1}}),
    "torch file that runs code": lambda s: saved({"a": torch.zeros(1), "b": touch(s)}),
    "pickle that runs code": lambda s: pickle.dumps(touch(s), protocol=2),
    # torch's reader stops at the first byte of this protocol.
    "newer pickle that runs code": lambda s: pickle.dumps(touch(s), protocol=4),
}


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")  # the attack is written with pickle's own protocol
@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
@pytest.mark.parametrize("write", NO_CHECKPOINT.values(), ids=NO_CHECKPOINT.keys())
def test_files_that_are_not_checkpoints(write, suffix, tmp_path):
    """They are refused in one line that names the file, and their code does not run."""
    path, sentinel = tmp_path / f"file{suffix}", tmp_path / "executed"
    path.write_bytes(write(sentinel))
    with pytest.raises(ValueError, match=f"^.*{re.escape(str(path))}.*$"):
        load_weights(path)
    assert not sentinel.exists()


FEW = {"num_bottleneck": 16}
OTHER_MODELS = [
    (lambda: released((1, 3, 20, 4)), "soft_small", {}, r"stages\.2\.blocks\.7"),
    (released, "soft_tiny", {"class_token": False, "global_pool": "avg"}, r"stages\.3\.cls_token"),
    (pico_state, "soft_pico", {"reversible": True}, r"\.reversible\.0"),
    (lambda: dict(pico_state(reversible=True)), "soft_pico", {}, r"stages\.0\.blocks"),
    (lambda: {**released(), "norm.bias": torch.full((512,), torch.inf)}, "soft_tiny", {}, r"norm\.bias .*finite"),
    (lambda: pico_state(img_size=64, **FEW), "soft_pico", {"img_size": 128, **FEW}, r"sample\.weight"),
    (lambda: dict(pico_state(img_size=(64, 96))), "soft_pico", {"img_size": 64}, r"0\.pos_embed .*\(1, 384, 32\)"),
]


@pytest.mark.parametrize(("weights", "name", "options", "message"), OTHER_MODELS)
def test_weights_of_another_model(weights, name, options, message):
    model = timm.create_model(name, device="meta", **options)
    with pytest.raises(ValueError, match=f"^.*{message}.*$") as refused:
        fit(weights(), model)
    assert "finite" in message or "check_checkpoint.py" in str(refused.value)


WRAPPERS = {
    "features_only": lambda model: FeatureGetterNet(model, out_indices=(0, 3)),
    "average": ModelEmaV3,
    "own module": lambda model: torch.nn.ModuleDict({"parts": torch.nn.Sequential(torch.nn.Flatten(), model)}),
}


OTHER_SHAPES = {
    "foreign": (lambda: {"stages.0.pos_embed": torch.zeros(3)}, r"stages\.0\.pos_embed"),
    "channels": (lambda: {"stages.0.patch_embed.0.conv.weight": torch.zeros(32, 4, 3, 3)}, r"conv\.weight"),
    "oblong": (lambda: dict(pico_state(img_size=(64, 96))), "pos_embed"),
}


class TestLoadStateDict:
    """torch's load_state_dict, which timm calls for `checkpoint_path` and MMEngine for its checkpoints."""

    @pytest.mark.parametrize(
        "way", ["load_state_dict", "file", "file of a ViT", "checkpoint_path", "folder", "mmengine", *WRAPPERS]
    )
    def test_weights_are_resampled_from_the_noted_image_size(self, way, tmp_path):
        """A map of 8 x 32 has as many positions as one of 16 x 16. timm's `checkpoint_path` drops the note."""
        name, small = "linformer_pyramid_pico", {"depths": (1, 1, 1, 1)}
        if "ViT" in way:
            name, small = "linformer_vit_tiny_patch16", {"depth": 1, "embed_dim": 24, "num_heads": 3}
        create = partial(timm.create_model, name, num_classes=3, **small)
        wrap = WRAPPERS.get(way, torch.nn.Sequential)
        trained, file = create(img_size=96 if way == "checkpoint_path" else (32, 128)), tmp_path / "file.pth"
        # As of a model that is distributed and compiled.
        saved_from = torch.nn.ModuleDict({"module": torch.compile(trained)}) if way == "file" else trained
        torch.save(saved_from.state_dict(), file)
        if way.startswith("file"):
            found = wrap(create(img_size=64, pretrained=True, pretrained_cfg_overlay={"file": str(file)}))
        elif way == "checkpoint_path":
            found = wrap(copy.deepcopy(create(img_size=64, checkpoint_path=str(file))))
        elif way == "folder":
            timm.models.save_for_hf(trained, tmp_path)
            found = wrap(timm.create_model(f"local-dir:{tmp_path}", pretrained=True, img_size=64))
        elif way == "mmengine":
            # It keeps the metadata of torch, and leaves out a head for other classes.
            checkpoint = pytest.importorskip("mmengine.runner.checkpoint")
            found = wrap(create(img_size=64, num_classes=5))
            state_dict = checkpoint.weights_to_cpu(checkpoint.get_state_dict(wrap(trained)))
            checkpoint.save_checkpoint({"state_dict": state_dict, "meta": {}}, str(file))
            checkpoint.load_state_dict(found, torch.load(file, weights_only=True)["state_dict"])
        else:
            found = wrap(create(img_size=64))
            given = wrap(trained).state_dict()
            shapes = {name: value.shape for name, value in given.items()}
            found.load_state_dict(given)
            assert {name: value.shape for name, value in given.items()} == shapes
        trained.set_input_size((64, 64))
        weights = found.state_dict()
        for name, value in wrap(trained).state_dict().items():
            assert (way == "mmengine" and "head" in name) or torch.equal(weights[name], value), name

    @pytest.mark.parametrize("name", ["soft_pico", "softmax_vit_tiny_patch16", "mlla_tiny", "inline_pvt_tiny"])
    def test_on_the_meta_device(self, name):
        options = dict(num_classes=0, device="meta")
        given = timm.create_model(name, img_size=(96, 64), **options).state_dict()
        model = timm.create_model(name, img_size=(64, 96), **options)
        assert model.load_state_dict(given, assign=True) == ([], [])
        assert {value.device.type for value in model.state_dict().values()} == {"meta"}

    @pytest.mark.parametrize("strict", [True, False])
    @pytest.mark.parametrize(("weights", "name"), OTHER_SHAPES.values(), ids=OTHER_SHAPES)
    def test_other_shapes_are_refused_by_mmengine_too(self, weights, name, strict):
        """MMEngine itself would keep the random weights of such a layer."""
        checkpoint = pytest.importorskip("mmengine.runner.checkpoint")
        model = torch.nn.ModuleDict({"backbone": timm.create_model("soft_pico", img_size=64)})
        given = {f"backbone.{key}": value for key, value in weights().items()}
        for load_state_dict in (model.load_state_dict, partial(checkpoint.load_state_dict, model)):
            with pytest.raises(WeightsError, match=rf"backbone.*{name}"):
                load_state_dict(given, strict=strict)


NOTED = [
    ({"arch": "soft_norm_tiny"}, True),
    ({"arch": "softmaxfreevisiontransformer"}, False),
    ({"args": Namespace(model="soft_norm_tiny")}, True),
    ({"meta": {NOTES_KEY: {"model": "soft_tiny", "options": {"attention": "soft_norm"}}}}, False),
    ({"meta": {NOTES_KEY: [1]}}, False),
]


@pytest.mark.parametrize(("content", "refused"), NOTED, ids=str)
def test_notes_of_the_other_attention(content, refused, tmp_path):
    """Soft and soft_norm have equal parameters."""
    torch.save({"state_dict": released(), **content}, tmp_path / "file.pth")
    with pytest.raises(ValueError, match="soft_norm") if refused else nullcontext():
        load(tmp_path / "file.pth", device="meta")


def test_noted_reversible_weights_are_refused_under_plain_names(pico_weights):
    """The names of parameters of a reversible model differ from those of a plain one, except in files of 0.2.0."""
    meta = {NOTES_KEY: ModelSpec("soft_pico", {"reversible": True}).to_dict()}
    with pytest.raises(ValueError, match="reversible"):
        fit({"state_dict": pico_weights, "meta": meta}, timm.create_model("soft_pico", num_classes=11, img_size=64))


# pretrained=True: shipped weights, the order of folders, and errors of one line if no file is found.


SHAPES = INDEX_FILE.parent / "soft_pico.shapes.safetensors"


@pytest.fixture
def folders(tmp_path, monkeypatch) -> dict[str, Path]:
    """The three folders, empty and out of the user's way."""
    found = {name: tmp_path / name for name in ("named", "checkpoints", "hub")}
    for folder in found.values():
        folder.mkdir()
    monkeypatch.setenv("SOFT_VIT_CHECKPOINTS", str(found["named"]))
    monkeypatch.setattr("soft_vit.weights.fetch.RESOURCES", tmp_path)
    monkeypatch.setattr("soft_vit.weights.fetch.hub_folder", lambda cache_dir=None: Path(cache_dir or found["hub"]))
    return found


def test_options_that_a_file_notes_are_those_of_the_model(tmp_path):
    """Names and shapes do not determine them; options of the caller come first."""
    torch.manual_seed(0)
    options = {"global_pool": "avg", "inverse": "cholesky"}
    given = timm.create_model("soft_pico", img_size=64, num_classes=2, **options).eval()
    cfg = {"input_size": (3, 64, 64), "mean": (0.1,) * 3, "std": (0.2,) * 3, "label_names": ("a", "b")}
    meta = {NOTES_KEY: ModelSpec("soft_pico", {**options, "img_size": 64, "drop_path_rate": 0.1}, cfg).to_dict()}
    torch.save({"state_dict": given.state_dict(), "meta": meta}, tmp_path / "own.pth")
    overlay = {"file": str(tmp_path / "own.pth"), "std": (0.3,) * 3}
    create = partial(timm.create_model, "soft_pico", pretrained=True, pretrained_cfg_overlay=overlay)
    images = torch.randn(2, 3, 64, 64)
    assert torch.equal(create().eval()(images), given(images))
    assert {name: create().pretrained_cfg[name] for name in cfg} == {**cfg, "std": (0.3,) * 3}
    assert create(global_pool="token").global_pool == "token"


@pytest.mark.parametrize("name", ["soft_pico", "linear_vit_tiny_patch16"])
def test_a_new_head_has_other_classes(name):
    overlay = {"num_classes": 2, "label_names": ("a", "b"), "notes": (MULTI_LABEL,)}
    model = timm.create_model(name, device="meta", num_classes=2, pretrained_cfg_overlay=overlay)
    for names in (("a", "b"), ()):
        assert (ModelSpec.of(model).label_names, ModelSpec.of(model).multi_label) == (names, bool(names))
        model.reset_classifier(2)


def test_few_files_run_for_a_name():
    """Building a model with weights runs code of at most 23 files of the package."""
    package = str(Path(soft_vit.__file__).parent)
    files = set()

    def record(frame, event, argument):
        if frame.f_code.co_filename.startswith(package):
            files.add(frame.f_code.co_filename.removeprefix(f"{package}/"))

    sys.setprofile(record)
    try:
        timm.create_model("soft_pico", pretrained=True)
    finally:
        sys.setprofile(None)
    assert len(files) <= 23, sorted(files)


class TestShapes:
    """Weights that come with the package."""

    def test_another_source_has_its_own_classes(self, tmp_path):
        state_dict = pico_state()
        torch.save(state_dict, tmp_path / "own.pth")
        for overlay in ({"file": str(tmp_path / "own.pth")}, {"state_dict": state_dict}):
            model = timm.create_model("soft_pico", pretrained=True, pretrained_cfg_overlay=overlay)
            assert (model.num_classes, model.img_size) == (1000, (224, 224))
            assert torch.equal(model.head.weight, state_dict["head.weight"])
            assert "state_dict" not in model.pretrained_cfg

    def test_checkpoint_path_keeps_what_the_name_and_the_caller_say(self, tmp_path):
        """Weights alone are those of the tag's size and preprocessing. No path of this machine is noted."""
        model, overlay = timm.create_model("soft_pico.shapes", pretrained=True).eval(), {"crop_pct": 0.5}
        save_file(dict(model.state_dict()), file := str(tmp_path / "bare.safetensors"))
        timm.models.save_for_hf(model, tmp_path)
        for name in (f"local-dir:{tmp_path}", "soft_pico.shapes"):
            found = timm.create_model(name, checkpoint_path=file, pretrained_cfg_overlay=overlay).eval()
            assert torch.equal(found(x := torch.randn(1, 3, 64, 64)), model(x))
        assert found.pretrained_cfg == {**model.pretrained_cfg, **overlay}
        assert str(INDEX_FILE.parent) not in str(model.pretrained_cfg)

    def test_a_changed_file_is_refused(self, folders):
        weights = load_file(SHAPES)
        weights["head.bias"] += 1
        save_file(weights, folders["checkpoints"] / SHAPES.name)
        with pytest.raises(WeightsError, match=r"soft_pico\.shapes"):
            timm.create_model("soft_pico", pretrained=True)


class TestOrder:
    """Files of one model with a mark in the head for each folder."""

    @staticmethod
    def record(monkeypatch, *sources: str, file: str = "pico.safetensors", **kwargs) -> None:
        monkeypatch.setitem(RECORDED_WEIGHTS, "soft_pico.shapes", Entry("soft_pico", "shapes", file, sources, **kwargs))

    @staticmethod
    def put(folder: Path, mark: float) -> None:
        weights = load_file(SHAPES)
        weights["head.bias"] = torch.full_like(weights["head.bias"], mark)
        save_file(weights, folder / "pico.safetensors")

    @staticmethod
    def mark(**options) -> float:
        return timm.create_model("soft_pico", pretrained=True, **options).head.bias[0].item()

    def test_folders(self, folders, tmp_path, monkeypatch):
        self.record(monkeypatch, "https://example.org/pico.safetensors")
        for mark, folder in enumerate(("hub", "checkpoints", "named")):
            self.put(folders[folder], mark)
            assert self.mark() == mark
        (tmp_path / "cache").mkdir()
        self.put(tmp_path / "cache", 5)
        assert self.mark(cache_dir=tmp_path / "cache") == 2
        for folder in ("named", "checkpoints"):
            (folders[folder] / "pico.safetensors").unlink()
        assert self.mark(cache_dir=tmp_path / "cache") == 5

    def test_source(self, folders, tmp_path, monkeypatch):
        folder = folders["named"]
        self.put(tmp_path, 7)
        with file_server(body=(tmp_path / "pico.safetensors").read_bytes()) as server:
            self.record(monkeypatch, f"{server.url}/pico.safetensors")
            assert self.mark() == 7
            assert self.mark() == 7
        assert len(server.requests) == 1
        assert {path.name for path in folder.glob("pico*")} == {"pico.safetensors", "pico.safetensors.sha256"}
        # The recorded digest is held against the file from then on.
        with (folder / "pico.safetensors").open("r+b") as file:
            file.seek(-1, os.SEEK_END)
            file.write(b"\x01")
        with pytest.raises(WeightsError, match="pico"):
            self.mark()

    @pytest.mark.parametrize("kind", ["another size", "not finite"])
    def test_a_source_with_something_else(self, kind, folders, tmp_path, monkeypatch):
        """It is refused, and nothing stays of it; the weights come from the second source if there is one."""
        path, message = tmp_path / "file.pth", "soft_pico.*stages"
        torch.save({"state_dict": released()}, path)
        if kind == "not finite":
            weights, message = load_file(SHAPES), r"norm\.bias"
            weights["norm.bias"][0] = float("nan")
            torch.save(weights, path)
        torch.save(load_file(SHAPES), tmp_path / "right.pth")
        bodies = [file.read_bytes() for file in (path, tmp_path / "right.pth")]
        with file_server(body=bodies[0]) as wrong, file_server(body=bodies[1]) as right:
            self.record(monkeypatch, f"{wrong.url}/pico.pth", file="pico.pth")
            with pytest.raises(WeightsError, match=f"^.*{message}.*$"):
                self.mark()
            assert not list(folders["named"].glob("pico*"))
            self.record(monkeypatch, f"{wrong.url}/pico.pth", f"{right.url}/pico.pth", file="pico.pth")
            assert self.mark() == load_file(SHAPES)["head.bias"][0]

    def test_options_of_an_entry_are_those_of_the_model(self, folders, monkeypatch):
        self.record(monkeypatch, options={"global_pool": "avg"})
        self.put(folders["named"], 3)
        assert timm.create_model("soft_pico", pretrained=True).global_pool == "avg"
        assert timm.create_model("soft_pico", pretrained=True, global_pool="token").global_pool == "token"


class TestReleased:
    def test_offline_all_say_where_the_file_is_and_belongs(self, folders, monkeypatch):
        def download(*args, **kwargs):
            raise ConnectionError("out of reach")

        monkeypatch.setitem(sys.modules, "gdown", SimpleNamespace(download=download))
        for function in ("soft_vit.weights.fetch.urlopen", "huggingface_hub.hf_hub_download"):
            monkeypatch.setattr(function, download)
        for entry in (entry for entry in RECORDED_WEIGHTS.values() if entry.sources):
            with pytest.raises(WeightsError, match=r"^.*out of reach.*$") as refused:
                timm.create_model(entry.name, pretrained=True)
            path = folders["named"] / entry.file
            for part in (entry.page, f"{path},", f"check_checkpoint.py {path}`"):
                assert part in str(refused.value)

    @pytest.mark.filterwarnings("ignore:.*copying from a non-meta parameter")
    def test_plain_names_give_the_normalised_weights(self, folders, logged):
        """soft_small loads normalised weights; the released file has the depths of one of two models."""
        torch.save({"state_dict": released((1, 3, 7, 4))}, folders["named"] / "SOFT_Small_norm.pth")
        model = timm.create_model("soft_small", pretrained=True, device="meta")
        assert [message for message in logged if "soft_norm_small" in message]
        assert model.attention[0] == "soft_norm"
        assert (model.pretrained_cfg["architecture"], model.pretrained_cfg["tag"]) == ("soft_norm_small", "fudan_in1k")
        assert model.pretrained_cfg["crop_pct"] == 0.9
        with pytest.raises(ValueError, match=r"soft_norm_base.*stages\.2\.blocks\.7"):
            timm.create_model("soft_base", pretrained=True, device="meta")
        with pytest.raises(ValueError, match="soft_norm_small"):
            timm.create_model("soft_small", pretrained=True, attention="soft")
