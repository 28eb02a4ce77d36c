"""pretrained=True: what ships with the package, the order of places, and one sentence where nothing is found."""

import dataclasses
import os
import re
import socket
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from file_server import file_server
from PIL import Image
from released import GOLDEN, released_shapes, released_state_dict
from safetensors.torch import load_file, save_file
from timm.data import create_transform, resolve_model_data_config

from soft_vit.data.shape_drawing import CLASSES
from soft_vit.data.shapes import ShapeImages
from soft_vit.models import pretrained
from soft_vit.weights import Entry, WeightsError, load_index
from soft_vit.weights import download as download_module
from soft_vit.weights.folders import INDEX_FILE

SHAPES = INDEX_FILE.parent / "soft_pico.shapes.safetensors"


@pytest.fixture
def places(tmp_path, monkeypatch) -> dict[str, Path]:
    """The three folders, empty and out of the user's way."""
    folders = {name: tmp_path / name for name in ("named", "checkpoints", "hub")}
    for folder in folders.values():
        folder.mkdir()
    monkeypatch.setenv("SOFT_VIT_CHECKPOINTS", str(folders["named"]))
    monkeypatch.setattr("soft_vit.weights.folders.RESOURCES", tmp_path)
    monkeypatch.setattr("soft_vit.weights.folders.hub_folder", lambda cache_dir=None: Path(cache_dir or folders["hub"]))
    return folders


def save_released(path: Path, depths: tuple[int, ...] = (1, 2, 3, 2), **content) -> None:
    """A file of a few kilobytes with the released names and shapes, and one number in each."""
    weights = {name: torch.zeros(()).expand(shape) for name, shape in released_shapes(depths).items()}
    torch.save({"state_dict": weights, **content}, path)


@pytest.fixture(scope="module")
def tiny() -> dict[str, torch.Tensor]:
    return released_state_dict()


@pytest.fixture
def offline(monkeypatch) -> None:
    def look_up(*args, **kwargs):
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setattr(download_module, "PATIENCE", 0.1)


class TestShapes:
    """Weights that come with the package."""

    def test_predicts(self, offline):
        model = timm.create_model("soft_pico", pretrained=True).eval()
        data = resolve_model_data_config(model)
        assert data["input_size"] == (3, 64, 64)
        transform = create_transform(**data, is_training=False)
        samples = list(ShapeImages(50, split="test"))
        images = torch.stack([transform(Image.fromarray(sample.image)) for sample in samples])
        with torch.no_grad():
            found = model(images).argmax(1).tolist()
        # 97.7 % of a thousand.
        assert sum(label == sample.label for label, sample in zip(found, samples, strict=True)) >= 46
        assert model.pretrained_cfg["label_names"] == CLASSES
        assert str(INDEX_FILE.parent) not in str(model.pretrained_cfg)

    @pytest.mark.parametrize("name", ["soft_pico", "soft_pico.shapes"])
    @pytest.mark.parametrize(
        "options",
        [{}, {"num_classes": 3}, {"num_classes": 0}, {"in_chans": 1}, {"img_size": (96, 80)}, {"global_pool": "avg"}],
        ids=str,
    )
    def test_as_in_timm(self, name, options):
        model = timm.create_model(name, pretrained=True, **options).eval()
        weights = load_file(SHAPES)
        own = model.state_dict()
        head = ("head.weight", "head.bias") if "num_classes" not in options else ()
        for parameter in ("stages.2.blocks.1.mlp.fc1.weight", "stages.0.patch_embed.0.norm.running_mean", *head):
            torch.testing.assert_close(own[parameter], weights[parameter], rtol=0, atol=0)
        classes = options.get("num_classes", 10)
        size = (2, options.get("in_chans", 3), *model.img_size)
        with torch.no_grad():
            assert model(torch.randn(size)).shape == (2, classes or model.num_features)

    def test_features_only(self):
        backbone = timm.create_model("soft_pico", pretrained=True, features_only=True, out_indices=(1, 3)).eval()
        model = timm.create_model("soft_pico", pretrained=True).eval()
        x = torch.randn(1, 3, 96, 64)
        with torch.no_grad():
            features, expected = backbone(x), model.forward_intermediates(x, indices=[1, 3], intermediates_only=True)
        for a, b in zip(features, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=0)

    def test_without_weights_it_is_the_architecture(self):
        """As all of its family, for comparisons; the tag's own classes and size come with the tag."""
        assert timm.create_model("soft_pico", device="meta").num_classes == 1000
        tagged = timm.create_model("soft_pico.shapes", device="meta")
        assert (tagged.num_classes, tagged.img_size) == (10, (64, 64))

    def test_another_file_has_its_own_classes(self, tmp_path):
        torch.save(timm.create_model("soft_pico", num_classes=1000, img_size=224).state_dict(), tmp_path / "own.pth")
        overlay = {"file": str(tmp_path / "own.pth")}
        model = timm.create_model("soft_pico", pretrained=True, pretrained_cfg_overlay=overlay)
        assert (model.num_classes, model.img_size) == (1000, (224, 224))

    def test_published_again_it_is_another_file(self, tmp_path):
        """The saved configuration keeps the tag, and has weights of its own."""
        model = timm.create_model("soft_pico", pretrained=True, num_classes=3)
        torch.nn.init.constant_(model.head.bias, 5.0)
        timm.models.save_for_hf(model, tmp_path)
        assert str(INDEX_FILE.parent) not in (tmp_path / "config.json").read_text()
        again = timm.create_model(f"local-dir:{tmp_path}", pretrained=True)
        for name, value in again.state_dict().items():
            torch.testing.assert_close(value, model.state_dict()[name], rtol=0, atol=0, msg=name)

    def test_the_registered_configuration_as_an_argument(self):
        cfg = timm.get_pretrained_cfg("soft_pico.shapes")
        for given in (cfg, cfg.to_dict()):
            assert timm.create_model("soft_pico", pretrained=True, pretrained_cfg=given).num_classes == 10

    def test_weights_from_memory(self):
        state_dict = timm.create_model("soft_pico", num_classes=1000).state_dict()
        model = timm.create_model("soft_pico", pretrained=True, pretrained_cfg_overlay={"state_dict": state_dict})
        torch.testing.assert_close(model.head.weight, state_dict["head.weight"], rtol=0, atol=0)


class TestOrder:
    """Files of one model with heads that tell where they come from."""

    @pytest.fixture(autouse=True)
    def unknown_digest(self, monkeypatch):
        entry = Entry("soft_pico", "shapes", "pico.safetensors", ("https://example.org/pico.safetensors",))
        monkeypatch.setitem(pretrained.ENTRIES, "soft_pico.shapes", entry)

    @staticmethod
    def put(folder: Path, mark: float) -> None:
        weights = load_file(SHAPES)
        weights["head.bias"] = torch.full_like(weights["head.bias"], mark)
        save_file(weights, folder / "pico.safetensors")

    @staticmethod
    def mark(**options) -> float:
        return timm.create_model("soft_pico", pretrained=True, **options).head.bias[0].item()

    def test_folders(self, places, offline, tmp_path):
        for mark, place in enumerate(("hub", "checkpoints", "named")):
            self.put(places[place], mark)
            assert self.mark() == mark
        (tmp_path / "cache").mkdir()
        self.put(tmp_path / "cache", 5)
        assert self.mark(cache_dir=tmp_path / "cache") == 2
        for place in ("named", "checkpoints"):
            (places[place] / "pico.safetensors").unlink()
        assert self.mark(cache_dir=tmp_path / "cache") == 5

    @pytest.mark.parametrize("variable", [True, False])
    def test_source(self, variable, places, tmp_path, monkeypatch):
        if not variable:
            monkeypatch.delenv("SOFT_VIT_CHECKPOINTS")
        folder = places["named" if variable else "hub"]
        self.put(tmp_path, 7)
        with file_server(body=(tmp_path / "pico.safetensors").read_bytes(), cuts=[1_000_000]) as server:
            entry = Entry("soft_pico", "shapes", "pico.safetensors", (f"{server.url}/pico.safetensors",))
            monkeypatch.setitem(pretrained.ENTRIES, "soft_pico.shapes", entry)
            assert self.mark() == 7
            assert self.mark() == 7
        assert len(server.requests) == 2
        assert {path.name for path in folder.glob("pico*")} == {"pico.safetensors", "pico.safetensors.sha256"}
        # The recorded digest is held against the file from then on.
        with (folder / "pico.safetensors").open("r+b") as file:
            file.seek(-1, os.SEEK_END)
            file.write(b"\x01")
        with pytest.raises(WeightsError, match="was changed"):
            self.mark()

    @pytest.mark.parametrize("kind", ["another size", "not finite", "a pickle that runs code"])
    @pytest.mark.filterwarnings("ignore:Detected pickle protocol")
    def test_a_source_with_something_else(self, kind, places, tmp_path, monkeypatch):
        if kind == "another size":
            save_released(tmp_path / "file.pth")
            message = "of size 'tiny' .* recorded for soft_pico"
        elif kind == "not finite":
            weights = load_file(SHAPES)
            weights["norm.bias"][0] = float("nan")
            torch.save(weights, tmp_path / "file.pth")
            message = r"norm\.bias in .* not finite"
        else:
            torch.save(
                {"state_dict": load_file(SHAPES), "extra": RunsCode(tmp_path / "executed")}, tmp_path / "file.pth"
            )
            message = "could run code"
        with file_server(body=(tmp_path / "file.pth").read_bytes()) as server:
            entry = Entry("soft_pico", "shapes", "pico.pth", (f"{server.url}/pico.pth",))
            monkeypatch.setitem(pretrained.ENTRIES, "soft_pico.shapes", entry)
            with pytest.raises(WeightsError, match=message) as refused:
                self.mark()
        assert len(str(refused.value).splitlines()) == 1
        assert not list(places["named"].glob("pico*"))
        assert not (tmp_path / "executed").exists()


class RunsCode:
    def __init__(self, sentinel: Path) -> None:
        self.sentinel = sentinel

    def __reduce__(self):
        return os.system, (f"touch {self.sentinel}",)


def test_a_changed_shipped_file_is_refused(places):
    weights = load_file(SHAPES)
    weights["head.bias"] += 1
    save_file(weights, places["checkpoints"] / SHAPES.name)
    with pytest.raises(WeightsError, match=r"is not the file of soft_pico\.shapes"):
        timm.create_model("soft_pico", pretrained=True)


RELEASED = [entry for entry in load_index() if entry.sources]


def test_a_published_figure_is_that_of_one_network():
    """A file that is recorded for two depths has one of them, and the figure was published for one."""
    claimed = [entry.file for entry in RELEASED if entry.metrics]
    assert sorted(claimed) == sorted({entry.file for entry in RELEASED})


@pytest.mark.parametrize("name", [entry.name for entry in RELEASED])
def test_offline(name, offline, places):
    entry = pretrained.ENTRIES[name]
    with pytest.raises(WeightsError) as refused:
        timm.create_model(name, pretrained=True)
    message = str(refused.value)
    assert len(message.splitlines()) == 1
    assert f"https://drive.google.com/file/d/{entry.sources[0].removeprefix('gdrive:')}/view" in message
    place = places["named"] / entry.file
    assert f"save it as {place}, and check it with `python -m soft_vit.models.check {place}`" in message
    assert refused.value.__suppress_context__


@pytest.mark.parametrize(
    ("name", "hint"), [("soft_small", "soft_norm_small.fudan_in1k"), ("soft_huge", "list_pretrain")]
)
def test_models_without_weights(name, hint):
    with pytest.raises(WeightsError, match=f"No pretrained weights exist for {name}; .*{hint}"):
        timm.create_model(name, pretrained=True)


@pytest.mark.parametrize(
    ("file", "name", "golden"),
    [
        ("SOFT_Tiny.pth", "soft_tiny", "soft_tiny_b1_256x320_seed3_s1.0"),
        ("SOFT_Tiny_cuda.pth", "soft_tiny.fudan_cuda_in1k", "soft_tiny_b1_256x320_seed3_s1.0"),
        ("SOFT_Tiny_norm.pth", "soft_norm_tiny", "soft_norm_tiny_b1_224x224_seed0_s1.0"),
    ],
)
def test_released_layout_gives_the_golden_numbers(file, name, golden, tiny, places, offline):
    torch.save({"state_dict": tiny, "epoch": 299}, places["checkpoints"] / file)
    expected = torch.from_numpy(np.load(GOLDEN / f"{golden}.npz")["logits"]).double()
    height, width, seed = (int(n) for n in re.search(r"_(\d+)x(\d+)_seed(\d+)_", golden).groups())
    images = np.random.RandomState(seed).standard_normal((1, 3, height, width)).astype(np.float32)
    model = timm.create_model(name, pretrained=True).eval()
    with torch.no_grad():
        logits = model(torch.from_numpy(images)).double()
    # The budget of tests/models/test_golden.py.
    assert (logits - expected).norm() < 1e-5 * expected.norm()


@pytest.mark.filterwarnings("ignore:.*copying from a non-meta parameter")
def test_the_released_small_is_recognised_by_its_depth(places, offline):
    """One file, recorded for two models: the one whose depths it has takes it, the other says which one does."""
    save_released(places["named"] / "SOFT_Small_norm.pth", (1, 3, 20, 4))
    assert timm.create_model("soft_norm_base", pretrained=True).depths == (1, 3, 20, 4)
    with pytest.raises(
        ValueError, match=r"depths 1 3 20 4 .*soft_norm_small is size 'small'.*soft_norm_base"
    ) as refused:
        timm.create_model("soft_norm_small", pretrained=True)
    assert len(str(refused.value).splitlines()) == 1


def test_a_released_file_under_the_name_of_another(places, offline):
    save_released(places["named"] / "SOFT_Medium_norm.pth")
    with pytest.raises(ValueError, match=r"of size 'tiny'.*soft_norm_medium is size 'medium'.*create soft_tiny or"):
        timm.create_model("soft_norm_medium", pretrained=True, device="meta")


def test_a_wrong_index_does_not_leave_its_folder(places, monkeypatch):
    """Entry refuses such names; none gets in by another way either."""
    with pytest.raises(ValueError, match="without a folder"):
        dataclasses.replace(pretrained.ENTRIES["soft_pico.shapes"], file="../named/x.pth")
