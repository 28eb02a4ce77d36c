"""No checkpoint runs code; every honest one loads."""

import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from crafted import Call
from mmengine.logging import HistoryBuffer
from mmengine.optim import OneCycleLR
from mmengine.runner import CheckpointLoader, load_checkpoint
from safetensors.torch import save_file

from soft_vit.dense import SOFT
from soft_vit.engine import evaluate, train
from soft_vit.engine.resume.read import find_newest_checkpoint, load_checkpoint_file
from soft_vit.predict import load_predictor
from soft_vit.weights.save import convert

DEMO = Path(__file__).parents[3] / "configs" / "demo" / "soft_pico_shapes.py"
TINY = {
    "model.depths": [1, 1, 1, 1],
    "train_dataloader.dataset.length": 4,
    "image_size": 32,
    "train_dataloader.batch_size": 4,
    "train_cfg.max_epochs": 1,
}


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
    with pytest.raises(ValueError, match="not a checkpoint that can be read safely") as caught:
        load_checkpoint_file(file)
    assert not target.exists()
    assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match="not a checkpoint that can be read safely"):
        load_checkpoint(torch.nn.Linear(1, 1), str(file))
    assert not target.exists()


def train_tiny(work_dir: Path, resume: str | None = None, **options: object) -> None:
    options = {**TINY, **{name.replace("__", "."): value for name, value in options.items()}}
    train(DEMO, work_dir=work_dir, resume=resume, validate=False, options=options)


# Every way in which the path of a file gets into a run or a model.
READERS = {
    "resume": lambda file, folder: train_tiny(folder, resume=file),
    "load_from": lambda file, folder: train_tiny(folder, load_from=file),
    "init_cfg": lambda file, folder: train_tiny(folder, model__init_cfg={"type": "Pretrained", "checkpoint": file}),
    "overlay": lambda file, folder: train_tiny(
        folder, model__pretrained=True, model__pretrained_cfg_overlay={"file": file}
    ),
    "checkpoint_path": lambda file, folder: train_tiny(folder, model__checkpoint_path=file),
    "teacher": lambda file, folder: train_tiny(
        folder, model__type="DistillClassifier", model__teacher={"model_name": "soft_pico", "checkpoint": file}
    ),
    "convert": lambda file, folder: convert(file, folder / "out.pth", "timm"),
    "test": lambda file, folder: evaluate(DEMO, file, work_dir=folder),
    "weights of a test": lambda file, folder: evaluate(DEMO, "soft_pico", weights=file, work_dir=folder),
    "overlay of timm": lambda file, folder: timm.create_model(
        "soft_pico", pretrained=True, pretrained_cfg_overlay={"file": file}
    ),
    "backbone": lambda file, folder: SOFT(
        "soft_pico", init_cfg={"type": "Pretrained", "checkpoint": file}
    ).init_weights(),
    "predict": lambda file, folder: load_predictor("test_vit", checkpoint=file),
    # These timm reads itself.
    "timm: file": lambda file, folder: timm.create_model("soft_pico", checkpoint_path=file),
    "timm: overlay": lambda file, folder: timm.create_model(
        "pvt_v2_b0", pretrained=True, pretrained_cfg_overlay={"file": file}
    ),
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
    assert "posix.mkdir, which could run code" in capsys.readouterr().out


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


def test_safetensors(tmp_path):
    save_file({"w": torch.ones(2)}, tmp_path / "a.safetensors")
    assert torch.equal(load_checkpoint_file(tmp_path / "a.safetensors")["state_dict"]["w"], torch.ones(2))


def test_what_is_no_checkpoint(tmp_path):
    """Other cases: tests/models/test_checkpoint.py."""
    torch.save([1, 2], tmp_path / "x.pth")
    with pytest.raises(ValueError, match="holds a list"):
        load_checkpoint_file(tmp_path / "x.pth")


def test_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none\.pth"):
        CheckpointLoader.load_checkpoint(str(tmp_path / "none.pth"))


@pytest.mark.parametrize("address", ["torchvision://resnet18", "s3://b/k.pth", "openmmlab://x", "mmcls://x"])
def test_sources_with_their_own_readers_are_refused(address):
    with pytest.raises(ValueError, match="download the file"):
        CheckpointLoader.load_checkpoint(address)
