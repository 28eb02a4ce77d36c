"""MMEngine writes whole checkpoints."""

import os

from mmengine.fileio import get_file_backend
from mmengine.runner import save_checkpoint

from soft_vit.engine.checkpoints.atomic_storage import AtomicBackend, remove_leftovers


def test_mmengine_writes_through_it(tmp_path, monkeypatch):
    backend = {"backend": "soft_vit.atomic"}
    assert isinstance(get_file_backend(str(tmp_path), backend_args=backend), AtomicBackend)
    replaced = []
    replace = os.replace
    monkeypatch.setattr(os, "replace", lambda a, b: (replaced.append(os.path.basename(b)), replace(a, b)))
    save_checkpoint({"state_dict": {}}, str(tmp_path / "x.pth"), backend_args=backend)
    assert replaced == ["x.pth"]


def test_leftovers_of_checkpoints_alone_are_removed(tmp_path):
    kept = ["epoch_1.pth", ".hidden", ".notes.txt.ab12.tmp", "x.pth.tmp"]
    for name in [*kept, ".epoch_2.pth.ab12.tmp", ".best_top1_epoch_3.pth.x_.tmp"]:
        (tmp_path / name).touch()
    remove_leftovers(tmp_path)
    assert sorted(os.listdir(tmp_path)) == sorted(kept)
