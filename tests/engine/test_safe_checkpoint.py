"""No checkpoint runs code; every honest one loads."""

import io
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine.logging import HistoryBuffer
from mmengine.runner import CheckpointLoader, load_checkpoint
from safetensors.torch import save_file

from soft_vit.engine import UserError
from soft_vit.engine.safe_checkpoint import load_checkpoint_file


class Call:
    """Pickles as a call of a function."""

    def __init__(self, function, *arguments):
        self.reduced = function, arguments

    def __reduce__(self):
        return self.reduced


def attacks(target: Path) -> dict[str, object]:
    return {
        "mkdir": Call(os.mkdir, str(target)),
        "eval": Call(eval, f"__import__('os').mkdir({str(target)!r})"),
        "getattr of a class": Call(getattr, HistoryBuffer, "__init__"),
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
    with pytest.raises(UserError, match="not a checkpoint that can be read safely"):
        load_checkpoint(torch.nn.Linear(1, 1), str(file))
    assert not target.exists()


def test_plain_pickle_is_refused(tmp_path):
    target, file = tmp_path / "owned", tmp_path / "plain.pth"
    file.write_bytes(pickle.dumps(Call(os.mkdir, str(target)), protocol=2))
    with pytest.raises(ValueError, match="not a checkpoint that can be read safely"):
        load_checkpoint_file(file)
    assert not target.exists()


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
    torch.testing.assert_close(load_checkpoint_file(tmp_path / "a.safetensors"), {"state_dict": {"w": torch.ones(2)}})


def saved(value) -> bytes:
    stream = io.BytesIO()
    torch.save(value, stream)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("content", "suffix", "message"),
    [
        (b"", ".pth", "not a checkpoint that can be read safely"),
        (b"not a checkpoint", ".pth", "not a checkpoint that can be read safely"),
        (saved({"w": torch.ones(100)})[:-300], ".pth", "not a checkpoint that can be read safely"),
        (saved([1, 2]), ".pth", "holds a list"),
        (b"junk", ".safetensors", "not a checkpoint that can be read safely"),
    ],
    ids=["empty", "text", "cut off", "list", "safetensors"],
)
def test_what_is_no_checkpoint(tmp_path, content, suffix, message):
    file = tmp_path / f"x{suffix}"
    file.write_bytes(content)
    with pytest.raises(UserError, match=message) as caught:
        load_checkpoint_file(file)
    assert "\n" not in str(caught.value)


def test_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match="There is no checkpoint"):
        CheckpointLoader.load_checkpoint(str(tmp_path / "none.pth"))


@pytest.mark.parametrize("address", ["torchvision://resnet18", "s3://b/k.pth", "openmmlab://x", "mmcls://x"])
def test_sources_with_their_own_readers_are_refused(address):
    with pytest.raises(UserError, match="download the file"):
        CheckpointLoader.load_checkpoint(address)
