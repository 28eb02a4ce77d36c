"""Which checkpoints are written, kept and found."""

import os
import re
from pathlib import Path

import pytest
import torch

from soft_vit.engine.models.finetune import start_spec
from soft_vit.engine.resume.read import find_newest_checkpoint
from soft_vit.engine.resume.restart import choose_checkpoint, note_launchers


def write(path: Path) -> None:
    """A checkpoint of the iteration in its name, where an epoch has 100."""
    kind, number = re.search(r"(epoch|iter)_(\w+)\.pth", path.name).groups()
    iteration = int(number) * (100 if kind == "epoch" else 1) if number.isdigit() else 0
    torch.save({"meta": {"iter": iteration}, "state_dict": {"w": torch.arange(1000.0)}}, path)


FOLDERS = [
    ([], None, None),
    (["epoch_2.pth", "epoch_10.pth"], None, "epoch_10.pth"),
    (["iter_500.pth", "iter_1000.pth"], None, "iter_1000.pth"),
    (["epoch_1.pth", "stopped_iter_150.pth"], None, "stopped_iter_150.pth"),
    # A second, shorter run in the same folder.
    (["epoch_3.pth", "epoch_10.pth"], "/moved/elsewhere/epoch_3.pth", "epoch_3.pth"),
    # Damaged or outdated notes.
    (["epoch_3.pth"], "/gone/epoch_9.pth", "epoch_3.pth"),
    # Others' files.
    (["best_top1_epoch_3.pth", "epoch_x.pth"], None, None),
]


@pytest.mark.parametrize(("files", "note", "newest"), FOLDERS)
def test_find_newest(tmp_path, files, note, newest):
    for name in files:
        write(tmp_path / name)
    if note is not None:
        (tmp_path / "last_checkpoint").write_text(note)
    found = find_newest_checkpoint(tmp_path)
    assert (found and found.name) == newest


def test_checkpoints_of_another_folder(tmp_path):
    """The hook's out_dir has a folder of the name of the work_dir."""
    work_dir, out_dir = tmp_path / "run", tmp_path / "out" / "run"
    for folder in (work_dir, out_dir):
        folder.mkdir(parents=True)
    for number in (1, 2):
        write(out_dir / f"epoch_{number}.pth")
    (work_dir / "last_checkpoint").write_text(str(out_dir / "epoch_2.pth"))
    assert find_newest_checkpoint(work_dir) == out_dir / "epoch_2.pth"
    (out_dir / "epoch_2.pth").write_bytes(b"")
    assert find_newest_checkpoint(work_dir) == out_dir / "epoch_1.pth"


# The last changes one number in a tensor: the file can be loaded, and says nothing.
DAMAGE = {
    "cut": lambda content: content[: len(content) // 2],
    "empty": lambda content: b"",
    "zero": lambda content: b"\0" * len(content),
    "bit": lambda content: content[: (m := len(content) // 2)] + bytes([content[m] ^ 1]) + content[m + 1 :],
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("noted", [True, False])
def test_damaged_one_is_passed_over(tmp_path, capsys, damage, noted):
    for name in ("epoch_1.pth", "epoch_2.pth", "epoch_3.pth"):
        write(tmp_path / name)
    (tmp_path / "epoch_3.pth").write_bytes(DAMAGE[damage]((tmp_path / "epoch_3.pth").read_bytes()))
    if noted:
        (tmp_path / "last_checkpoint").write_text(str(tmp_path / "epoch_3.pth"))
    assert find_newest_checkpoint(tmp_path) == tmp_path / "epoch_2.pth"
    printed = capsys.readouterr().out
    assert printed.count("\n") == 1
    assert f"{tmp_path / 'epoch_3.pth'} is damaged" in printed
    (tmp_path / "epoch_1.pth").write_bytes(b"")
    (tmp_path / "epoch_2.pth").write_bytes(b"PK")
    assert find_newest_checkpoint(tmp_path) is None


RESTARTS = [
    # Without a launcher that restarts processes.
    ("auto", [None, None], [7], [3], "iter_3.pth"),
    (None, [None, None], [7], [3], None),
    # Restarted: from what the run has written, whatever an earlier one has left.
    (None, ["a", "a"], [7], [], None),
    (None, ["a", "a"], [7], [3], "iter_3.pth"),
    ("auto", ["a", "a"], [7], [], "iter_7.pth"),
    ("elsewhere.pth", ["a", "a"], [7], [], "elsewhere.pth"),
    ("elsewhere.pth", ["a", "a"], [7], [3, 5], "iter_5.pth"),
    # A launch of its own begins another run.
    (None, ["a", "b"], [7], [3], None),
]


@pytest.mark.parametrize(("resume", "launchers", "before", "since", "chosen"), RESTARTS)
def test_restarted_run_goes_on(tmp_path, monkeypatch, resume, launchers, before, since, chosen):
    def set_launcher(name: str | None, restarts: int) -> None:
        monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "3" if name else "0")
        monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", f"/{name}/attempt_{restarts}/0/error.json")

    for number in before:
        write(tmp_path / f"iter_{number}.pth")
        os.utime(tmp_path / f"iter_{number}.pth", (0, 0))
    set_launcher(launchers[0], 0)
    assert choose_checkpoint(tmp_path, None) is None
    note_launchers(tmp_path)
    for number in since:
        write(tmp_path / f"iter_{number}.pth")
        (tmp_path / "last_checkpoint").write_text(f"iter_{number}.pth")
    set_launcher(launchers[1], 1)
    # A process that is started again notes the same run.
    if launchers[0] == launchers[1]:
        note_launchers(tmp_path)
    found = choose_checkpoint(tmp_path, resume)
    assert (found and Path(found).name) == chosen


def test_finding_a_checkpoint_and_its_notes_reads_it_once(tmp_path):
    path = tmp_path / "iter_1.pth"
    torch.save({"meta": {"iter": 1}, "state_dict": {"w": torch.arange(1e6)}}, path)

    def bytes_read() -> int:
        return int(Path("/proc/self/io").read_text().split()[1])

    before = bytes_read()
    assert find_newest_checkpoint(tmp_path) == path
    assert not start_spec(str(path)).cfg
    # The tests for damage reads it all; index and notes have a few pages.
    assert bytes_read() - before < 1.1 * path.stat().st_size
