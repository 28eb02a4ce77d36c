"""Checkpoints and addresses that are read, and those that are refused."""

import os
import pickle
import re
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from crafted import Call, saved
from engine.runs import DEMO, tiny
from file_server import file_server
from mmengine.logging import HistoryBuffer
from mmengine.optim import OneCycleLR
from mmengine.runner import CheckpointLoader, load_checkpoint

import soft_vit.engine  # noqa: F401  replaces the loaders of MMEngine
from soft_vit.dense import SOFT
from soft_vit.engine import evaluate, train
from soft_vit.engine.resume.read import find_newest_checkpoint, load_checkpoint_file
from soft_vit.predict import load_predictor
from soft_vit.weights.fetch import lookup_folders
from soft_vit.weights.save import convert

# No checkpoint runs code; every honest one loads.


def attacks(target: Path) -> dict[str, object]:
    return {
        "mkdir": Call(os.mkdir, str(target)),
        "eval": Call(eval, f"__import__('os').mkdir({str(target)!r})"),
        "getattr of a class": Call(getattr, HistoryBuffer, "__init__"),
        "getattr of a schedule": Call(getattr, OneCycleLR, "build_iter_from_epoch"),
        "getattr of a function": Call(getattr, os.mkdir, "__self__"),
        "getattr of builtins": Call(getattr, Call(getattr, HistoryBuffer, "mean"), "__globals__"),
    }


@pytest.mark.parametrize("name", attacks(Path("x")))
@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
def test_crafted_file_is_refused_and_not_run(tmp_path, name, legacy):
    target, file = tmp_path / "owned", tmp_path / "crafted.pth"
    torch.save({"state_dict": attacks(target)[name]}, file, _use_new_zipfile_serialization=not legacy)
    for load in (load_checkpoint_file, lambda path: load_checkpoint(torch.nn.Linear(1, 1), str(path))):
        with pytest.raises(ValueError, match=r"crafted\.pth"):
            load(file)
        assert not target.exists()


def run(options: dict, folder: Path, resume: str | None = None) -> None:
    train(DEMO, work_dir=folder, resume=resume, validate=False, options=tiny(4, 4, 1) | options)


def timm_model(name: str, **options: object) -> None:
    timm.create_model(name, pretrained=True, **options)


# Every way in which the path of a file gets into a run or a model.
READERS = {
    "resume": lambda file, folder: run({}, folder, file),
    "load_from": lambda file, folder: run({"load_from": file}, folder),
    "init_cfg": lambda file, folder: run({"model.init_cfg": {"type": "Pretrained", "checkpoint": file}}, folder),
    "overlay": lambda file, folder: run(
        {"model.pretrained": True, "model.pretrained_cfg_overlay": {"file": file}}, folder
    ),
    "checkpoint_path": lambda file, folder: run({"model.checkpoint_path": file}, folder),
    "teacher": lambda file, folder: run(
        {"model.type": "DistillClassifier", "model.teacher": {"model_name": "soft_pico", "checkpoint": file}}, folder
    ),
    "convert": lambda file, folder: convert(file, folder / "out.pth", "timm"),
    "test": lambda file, folder: evaluate(DEMO, file, work_dir=folder),
    "weights of a test": lambda file, folder: evaluate(DEMO, "soft_pico", weights=file, work_dir=folder),
    "overlay of timm": lambda file, folder: timm_model("soft_pico", pretrained_cfg_overlay={"file": file}),
    "backbone": lambda file, folder: SOFT(
        "soft_pico", init_cfg={"type": "Pretrained", "checkpoint": file}
    ).init_weights(),
    "predict": lambda file, folder: load_predictor("test_vit", checkpoint=file),
    # These timm reads itself.
    "timm: file": lambda file, folder: timm.create_model("soft_pico", checkpoint_path=file),
    "timm: overlay": lambda file, folder: timm_model("pvt_v2_b0", pretrained_cfg_overlay={"file": file}),
}


@pytest.mark.parametrize("reader", READERS)
def test_no_reader_runs_a_crafted_file(tmp_path, reader):
    target, file = tmp_path / "owned", tmp_path / "crafted.pth"
    torch.save({"state_dict": {}, "message_hub": attacks(target)["mkdir"]}, file)
    with pytest.raises((ValueError, RuntimeError, pickle.UnpicklingError)) as caught:
        READERS[reader](str(file), tmp_path / "run")
    assert not target.exists()
    assert "checkpoint" in str(caught.value)
    assert isinstance(caught.value, ValueError) or reader.startswith("timm:")


@pytest.mark.parametrize("strategy", ["cos", "linear"])
def test_schedule_that_keeps_its_curve(tmp_path, strategy):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    state = OneCycleLR(optimizer, eta_max=1.0, total_steps=5, anneal_strategy=strategy).state_dict()
    torch.save({"param_schedulers": [state]}, tmp_path / "epoch_1.pth")
    assert load_checkpoint_file(tmp_path / "epoch_1.pth")["param_schedulers"] == [state]


def test_newest_checkpoint_that_is_crafted_is_passed_over(tmp_path, capsys):
    target = tmp_path / "owned"
    torch.save({"state_dict": attacks(target)["mkdir"]}, tmp_path / "epoch_1.pth")
    (tmp_path / "last_checkpoint").write_text("epoch_1.pth")
    assert find_newest_checkpoint(tmp_path) is None
    assert not target.exists()
    assert "posix.mkdir" in capsys.readouterr().out


def test_a_config_inside_a_checkpoint_is_dropped(tmp_path):
    """MMEngine would run it when a run resumes."""
    torch.save({"state_dict": {}, "meta": {"config": "import os", "cfg": "a = 1"}}, tmp_path / "crafted.pth")
    assert CheckpointLoader.load_checkpoint(str(tmp_path / "crafted.pth"))["meta"] == {"cfg": "a = 1"}


def test_everything_that_mmengine_writes(tmp_path):
    history = HistoryBuffer([1.0, 3.0], [1, 1])
    checkpoint = {
        "state_dict": {"w": torch.arange(3.0)},
        "message_hub": {"log_scalars": {"loss": history}, "runtime_info": {"score": np.float32(2), "n": np.int64(3)}},
        "meta": {"epoch": 1, "seed": None, "dataset_meta": {"classes": ("a",)}, "list": np.array([True, False])},
    }
    file = tmp_path / "honest.pth"
    torch.save(checkpoint, file)
    loaded = CheckpointLoader.load_checkpoint(str(file))
    assert loaded["message_hub"]["log_scalars"]["loss"].mean() == 2
    assert loaded["message_hub"]["log_scalars"]["loss"].statistics("max") == 3
    assert loaded["message_hub"]["runtime_info"] == checkpoint["message_hub"]["runtime_info"]
    assert loaded["meta"]["list"].tolist() == [True, False]
    torch.testing.assert_close(loaded["state_dict"], checkpoint["state_dict"])


@pytest.mark.parametrize("address", ["none.pth", "torchvision://resnet18", "s3://b/k.pth", "openmmlab://x"])
def test_sources_that_are_refused(address):
    with pytest.raises((ValueError, FileNotFoundError), match=address):
        CheckpointLoader.load_checkpoint(address)


# Checkpoints from an address: what the cache keeps apart, and one sentence for what cannot be fetched.


@pytest.fixture(autouse=True)
def hub(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.delenv("SOFT_VIT_CHECKPOINTS", raising=False)
    return tmp_path / "hub" / "checkpoints"


def load(address: str) -> dict:
    return CheckpointLoader.load_checkpoint(address)


def refusal(address: str) -> str:
    with pytest.raises(ValueError, match=re.escape(address)) as refused:
        load(address)
    return str(refused.value)


def test_addresses_that_end_in_one_name(hub):
    with file_server(body=saved({"w": 1})) as first, file_server(body=saved({"w": 2})) as second:
        for _ in range(2):
            assert load(f"{first.url}/a/epoch_300.pth") == {"w": 1}
            assert load(f"{second.url}/epoch_300.pth?token=1") == {"w": 2}
        assert load(f"{first.url}/b/epoch_300.pth") == {"w": 1}
    assert (len(first.requests), len(second.requests)) == (2, 1)
    assert len(list(hub.rglob("????????????????-epoch_300.pth"))) == 3


def test_recorded_weights_are_not_replaced(hub):
    with file_server(body=saved({"w": 1})) as server:
        load(f"{server.url}/SOFT_Tiny.pth")
    assert hub in lookup_folders()
    assert not any((folder / "SOFT_Tiny.pth").exists() for folder in lookup_folders())


@pytest.mark.parametrize("path", ["/", "/x", "/x.ckpt", "/../..", "/a%2Fb+c.pth", f"/{'x' * 300}.pth"])
def test_names_that_are_no_file_of_weights(path, hub):
    with file_server(body=saved({"w": 1})) as server:
        assert load(server.url + path) == {"w": 1}
    (folder,) = hub.iterdir()
    assert [file.suffix for file in folder.iterdir() if not file.name.startswith(".")].count(".pth") == 1


PLAIN_HTTP = ["http://example.org/x.pth", "http://127.0.0.1@example.org/x.pth", "http://[x/y.pth"]


@pytest.mark.parametrize("address", PLAIN_HTTP)
def test_plain_http_is_refused(address, hub):
    refusal(address)
    assert not hub.exists()


@pytest.mark.parametrize("kind", ["missing", "cut off", "runs code"])
def test_what_is_no_checkpoint_is_not_kept(kind, hub, tmp_path):
    body = saved({"w": Call(os.mkdir, str(tmp_path / "owned"))} if kind == "runs code" else {"w": torch.ones(9)})
    with file_server(body=body[:-30] if kind == "cut off" else body) as server:
        server.status = [404] if kind == "missing" else []
        refusal(f"{server.url}/x.pth")
    assert not list(hub.rglob("*.pth"))
    assert not (tmp_path / "owned").exists()
