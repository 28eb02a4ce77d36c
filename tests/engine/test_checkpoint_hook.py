"""Which checkpoints are kept and found."""

import pytest

from soft_vit.engine import SafeCheckpointHook
from soft_vit.engine.checkpoint_hook import find_newest_checkpoint


@pytest.mark.parametrize("keep", [0, 1])
def test_keeping_too_few_is_refused(keep):
    with pytest.raises(ValueError, match=f"max_keep_ckpts is {keep}"):
        SafeCheckpointHook(interval=1, max_keep_ckpts=keep)


@pytest.mark.parametrize("keep", [-1, 2, 5])
def test_writing_is_atomic(keep):
    hook = SafeCheckpointHook(interval=1, max_keep_ckpts=keep)
    assert hook.backend_args == {"backend": "soft_vit.atomic"}
    assert hook.max_keep_ckpts == keep


@pytest.mark.parametrize(
    ("files", "note", "newest"),
    [
        ([], None, None),
        (["epoch_2.pth", "epoch_10.pth"], None, "epoch_10.pth"),
        (["iter_500.pth", "iter_1000.pth"], None, "iter_1000.pth"),
        # A second, shorter run in the same folder.
        (["epoch_3.pth", "epoch_10.pth"], "/moved/elsewhere/epoch_3.pth", "epoch_3.pth"),
        # Damaged or outdated notes.
        (["epoch_3.pth"], "", "epoch_3.pth"),
        (["epoch_3.pth"], "/gone/epoch_9.pth", "epoch_3.pth"),
        # Others' files.
        (["best_top1_epoch_3.pth", ".epoch_4.pth.x.tmp", "epoch_x.pth"], None, None),
    ],
)
def test_find_newest(tmp_path, files, note, newest):
    for name in files:
        (tmp_path / name).touch()
    if note is not None:
        (tmp_path / "last_checkpoint").write_text(note)
    found = find_newest_checkpoint(tmp_path)
    assert (found and found.name) == newest
