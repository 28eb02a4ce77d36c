"""Files of weights: written atomically, with notes, and read again."""

import math
import os
import sys
import types
from collections import OrderedDict

import numpy as np
import pytest
import torch
from crafted import Call
from mmengine.logging import HistoryBuffer

from soft_vit.weights.files import ensure_writable, write_atomically
from soft_vit.weights.read import first_not_finite, load_weights, read_checkpoint_file, spec_of, unwrap_state_dict
from soft_vit.weights.save import safetensors_bytes
from soft_vit.weights.spec import NOTES_KEY, ModelSpec

# Notes, of which only plain values are kept, and the allowed contents of files.


FULL = ModelSpec(
    "soft_pico",
    {"img_size": [64, 96], "inverse": "cholesky", "qkv": None},
    {"input_size": (3, 64, 96), "mean": (0.5,) * 3, "std": (0.25,) * 3, "crop_pct": 0.9, "crop_mode": "center"},
    {"epochs": "5"},
)


def test_written_and_read_again():
    content = {"meta": {NOTES_KEY: FULL.to_dict()}, "state_dict": {"a": torch.zeros(1)}}
    assert spec_of(content) == unwrap_state_dict(content).spec == FULL
    # Unwrapped weights keep their notes.
    assert unwrap_state_dict(unwrap_state_dict(content)).spec == FULL
    assert FULL.img_size == (64, 96)


STRANGE = [
    *(
        ({"cfg": cfg}, {})
        for cfg in (
            {"file": "/etc/passwd", "url": "https://x", "num_classes": 3, "mean": {"a": 1}, "std": [0.5, 0.5, 0]},
            {"mean": [math.nan] * 3, "std": ["0.5"] * 3, "input_size": [64, 64], "crop_pct": "1"},
            {"input_size": [3, 64, 10**9], "crop_pct": -1, "label_names": "ab"},
            {"input_size": [3, 64.0, 64], "crop_mode": "none", "interpolation": "random", "label_names": [None]},
            3,
        )
    ),
    ({"options": {"a": [1, ["b", None]], "c": {"d": {1}}, "e": torch.zeros(1)}}, {"a": [1, ["b", None]]}),
    ({"options": [1], "training": {"epochs": 5}}, {}),
]


@pytest.mark.parametrize(("strange", "kept"), STRANGE, ids=str)
def test_strange_notes_are_left_out(strange, kept):
    assert spec_of({"meta": {NOTES_KEY: {"model": "soft_pico", **strange}}}) == ModelSpec("soft_pico", kept)
    assert spec_of({"meta": {NOTES_KEY: {"model": 3}}}) == ModelSpec()


@pytest.mark.parametrize("size", [None, 0, 10**9, "64", [64], [64, 64, 64], [64, "a"], True])
def test_a_strange_size(size):
    assert ModelSpec("soft_pico", {"img_size": size}).img_size is None


def test_a_yacs_config_is_read_as_plain_values(tmp_path, monkeypatch):
    """Swin's training scripts save theirs with the weights."""
    module = types.ModuleType("yacs.config")

    class CfgNode(dict):
        def __init__(self, values):
            super().__init__(values)
            self.__dict__["__immutable__"] = True

        def __setstate__(self, state):
            raise AssertionError("executed")

    CfgNode.__module__, CfgNode.__qualname__ = module.__name__, "CfgNode"
    module.CfgNode = CfgNode
    monkeypatch.setitem(sys.modules, "yacs", types.ModuleType("yacs"))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    config = CfgNode({"MODEL": CfgNode({"NAME": "mlla_tiny", "DEPTHS": [2, 4]})})
    torch.save({"model": {"weight": torch.ones(2)}, "config": config, "epoch": 3}, tmp_path / "a.pth")
    assert load_weights(tmp_path / "a.pth").keys() == {"weight"}
    content = read_checkpoint_file(tmp_path / "a.pth")["config"]
    assert content == {"MODEL": {"NAME": "mlla_tiny", "DEPTHS": [2, 4]}}
    assert type(content) is OrderedDict
    torch.save({"weight": torch.ones(2), "config": Call(print, 1)}, tmp_path / "b.pth")
    with pytest.raises(ValueError, match="could run code"):
        load_weights(tmp_path / "b.pth")


def test_contents_of_mmengine_are_left_out(tmp_path, monkeypatch):
    """Without an import of soft_vit.engine, which allows these classes."""
    content = {
        "state_dict": {"a": torch.ones(2)},
        "message_hub": {"log_scalars": {"loss": HistoryBuffer([1.0, 2.0], [1, 1])}},
        "meta": {NOTES_KEY: FULL.to_dict(), "seed": np.int64(3), "mean": np.ones(2), "classes": {np.float32(1): 2}},
    }
    torch.save(content, tmp_path / "a.pth")
    torch.save({**content, "more": Call(getattr, "a", "upper")}, tmp_path / "b.pth")
    torch.save({**content, "more": Call(print, 1)}, tmp_path / "c.pth")
    known = torch.serialization.get_safe_globals()
    torch.serialization.clear_safe_globals()
    monkeypatch.setattr("soft_vit.weights.read._methods", {})
    try:
        weights = load_weights(tmp_path / "a.pth")
        assert (weights.keys(), weights.spec) == ({"a"}, FULL)
        for name in ("b.pth", "c.pth"):
            with pytest.raises(ValueError, match="could run code"):
                load_weights(tmp_path / name)
        assert not torch.serialization.get_safe_globals()
    finally:
        torch.serialization.add_safe_globals(known)


VALUES = [([], True), ([1, 2], True), ([1, math.nan], False), ([math.inf, -math.inf], False), ("max", True)]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e5m2])
@pytest.mark.parametrize(("values", "is_finite"), VALUES)
def test_numbers_that_are_not_finite_are_named(values, is_finite, dtype):
    x = torch.full((3,), torch.finfo(dtype).max, dtype=dtype) if values == "max" else torch.tensor(values).to(dtype)
    content = {"epoch": 1, "weights": {"a": torch.zeros(2), "b": x}, "steps": torch.tensor([1])}
    assert first_not_finite(content) == (None if is_finite else "weights.b")


# Files of safetensors: equal bytes each time, with notes of the model.


WEIGHTS = {"odd": torch.arange(3, dtype=torch.uint8), "b": torch.randn(5, 3).mT, "number": torch.tensor(2)}


NOTES = [None, ModelSpec("soft_norm_pico", {"inverse": "cholesky"}, {"mean": (0.5,), "std": (1,)})]


@pytest.mark.parametrize("notes", NOTES)
def test_tensors_and_notes_come_back(notes, tmp_path):
    (tmp_path / "a.safetensors").write_bytes(safetensors_bytes(WEIGHTS, notes))
    read = load_weights(tmp_path / "a.safetensors")
    assert read.keys() == WEIGHTS.keys()
    assert all(read[name].dtype == value.dtype and torch.equal(read[name], value) for name, value in WEIGHTS.items())
    assert read.spec == (notes or ModelSpec())


def test_the_same_bytes_each_time():
    """The safetensors library writes metadata in random order."""
    assert len({safetensors_bytes(WEIGHTS, ModelSpec("soft_pico", {"a": 1})) for _ in range(20)}) == 1


# Files are written atomically.


@pytest.mark.parametrize(("step", "name"), [("fsync", "epoch_1.pth"), ("replace", f"{'猫' * 83}.pth")])
def test_failure_leaves_the_old_file(tmp_path, monkeypatch, step, name):
    path = tmp_path / name
    write_atomically(path, b"old")

    def fail(*arguments):
        raise OSError(28, "disk full")

    monkeypatch.setattr(os, step, fail)
    with pytest.raises(OSError, match="disk full"):
        write_atomically(path, b"new")
    monkeypatch.undo()
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == [name]


def test_replaces_and_creates_folders_with_usual_permissions(tmp_path):
    path = tmp_path / "a" / "b.bin"
    for content in (b"old", b"new"):
        write_atomically(path, content)
    assert path.read_bytes() == b"new"
    plain = tmp_path / "plain"
    plain.write_bytes(b"")
    assert path.stat().st_mode == plain.stat().st_mode


@pytest.mark.parametrize("path", ["file/rows.csv", "/proc/rows.csv", "/dev/null", "folder"])
def test_what_cannot_be_written(tmp_path, path):
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    with pytest.raises(ValueError, match=path):
        ensure_writable(tmp_path / path)
    ensure_writable(tmp_path / "new" / "rows.csv")
    assert list((tmp_path / "new").iterdir()) == []
