"""pretrained=True: shipped weights, the order of folders, and errors of one line if no file is found."""

import logging
import os
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import timm
import torch
from file_server import file_server
from PIL import Image
from released import released_shapes
from safetensors.torch import load_file, save_file
from timm.data import create_transform, resolve_model_data_config

import soft_vit
from soft_vit.data.demo.drawing import CLASSES
from soft_vit.data.demo.shapes import ShapeImages
from soft_vit.weights import ENTRIES, Entry, WeightsError
from soft_vit.weights.files import INDEX_FILE
from soft_vit.weights.read import NOTES_KEY, Notes

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


@pytest.fixture
def offline(monkeypatch) -> None:
    def download(**kwargs):
        raise ConnectionError("out of reach")

    monkeypatch.setitem(sys.modules, "gdown", SimpleNamespace(download=download))
    for function in ("soft_vit.weights.fetch.urlopen", "huggingface_hub.hf_hub_download"):
        monkeypatch.setattr(function, lambda *args, **kwargs: download())


def save_released(path: Path, depths: tuple[int, ...] = (1, 2, 3, 2), **content) -> None:
    """A file of a few kilobytes with the released names and shapes, and one number in each."""
    weights = {name: torch.zeros(()).expand(shape) for name, shape in released_shapes(depths).items()}
    torch.save({"state_dict": weights, **content}, path)


def test_options_that_a_file_notes_are_those_of_the_model(tmp_path):
    """Names and shapes do not determine them; options of the caller come first."""
    torch.manual_seed(0)
    options = {"global_pool": "avg", "inverse": "cholesky"}
    given = timm.create_model("soft_pico", img_size=64, **options).eval()
    meta = {NOTES_KEY: Notes("soft_pico", {**options, "img_size": 64, "drop_path_rate": 0.1}).to_dict()}
    torch.save({"state_dict": given.state_dict(), "meta": meta}, tmp_path / "own.pth")
    overlay = {"file": str(tmp_path / "own.pth")}
    create = partial(timm.create_model, "soft_pico", pretrained=True, pretrained_cfg_overlay=overlay, img_size=64)
    images = torch.randn(2, 3, 64, 64)
    assert torch.equal(create().eval()(images), given(images))
    assert create(global_pool="token").global_pool == "token"


def test_few_files_run_for_a_name():
    """Building a model with weights runs code of at most 14 files of the package."""
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
    assert len(files) <= 14, sorted(files)


class TestShapes:
    """Weights that come with the package."""

    def test_predicts(self):
        model = timm.create_model("soft_pico", pretrained=True).eval()
        data = resolve_model_data_config(model)
        assert data["input_size"] == (3, 64, 64)
        transform = create_transform(**data, is_training=False)
        samples = list(ShapeImages(50, split="test"))
        images = torch.stack([transform(Image.fromarray(sample.image)) for sample in samples])
        with torch.no_grad():
            found = model(images).argmax(1).tolist()
        # 97.3 % of a thousand.
        assert sum(label == sample.label for label, sample in zip(found, samples, strict=True)) >= 46
        assert model.pretrained_cfg["label_names"] == CLASSES
        assert str(INDEX_FILE.parent) not in str(model.pretrained_cfg)

    def test_another_source_has_its_own_classes(self, tmp_path):
        state_dict = timm.create_model("soft_pico").state_dict()
        torch.save(state_dict, tmp_path / "own.pth")
        for overlay in ({"file": str(tmp_path / "own.pth")}, {"state_dict": state_dict}):
            model = timm.create_model("soft_pico", pretrained=True, pretrained_cfg_overlay=overlay)
            assert (model.num_classes, model.img_size) == (1000, (224, 224))
            assert torch.equal(model.head.weight, state_dict["head.weight"])
            assert "state_dict" not in model.pretrained_cfg

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
        monkeypatch.setitem(ENTRIES, "soft_pico.shapes", Entry("soft_pico", "shapes", file, sources, **kwargs))

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
        save_released(path)
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
    def test_offline_all_say_where_the_file_is_and_belongs(self, offline, folders):
        for entry in (entry for entry in ENTRIES.values() if entry.sources):
            with pytest.raises(WeightsError, match=r"^.*out of reach.*$") as refused:
                timm.create_model(entry.name, pretrained=True)
            path = folders["named"] / entry.file
            for part in (entry.page, f"{path},", f"check_checkpoint.py {path}`"):
                assert part in str(refused.value)

    @pytest.mark.filterwarnings("ignore:.*copying from a non-meta parameter")
    def test_plain_names_give_the_normalised_weights(self, folders, caplog):
        """soft_small loads normalised weights; the released file has the depths of one of two models."""
        save_released(folders["named"] / "SOFT_Small_norm.pth", (1, 3, 7, 4))
        with caplog.at_level(logging.WARNING):
            model = timm.create_model("soft_small", pretrained=True, device="meta")
        assert [record.getMessage() for record in caplog.records if "soft_norm_small" in record.getMessage()]
        assert model.attention[0] == "soft_norm"
        assert (model.pretrained_cfg["architecture"], model.pretrained_cfg["tag"]) == ("soft_norm_small", "fudan_in1k")
        assert model.pretrained_cfg["crop_pct"] == 0.9
        with pytest.raises(ValueError, match=r"soft_norm_base.*stages\.2\.blocks\.7"):
            timm.create_model("soft_base", pretrained=True, device="meta")
        with pytest.raises(WeightsError, match="soft_norm_small"):
            timm.create_model("soft_small", pretrained=True, attention="soft")
