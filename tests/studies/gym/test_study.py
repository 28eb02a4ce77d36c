"""Studies: reproducible runs, resuming, tables."""

import json
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.context import BaseContext

import pytest

from soft_vit.resume.stop import RunStopped
from studies.gym.command import write_report
from studies.gym.report import merged_csv
from studies.gym.study import LEARNING_RATES, STEPS, Study, parse_kind, train_and_save
from studies.gym.training import Result, Run, train

TINY = {"num_tokens": 16, "difficulty": 2}


@pytest.fixture(autouse=True)
def short_runs(monkeypatch):
    monkeypatch.setattr("studies.gym.training.TEST_EXAMPLES", 64)
    monkeypatch.setitem(STEPS, "rank", 3)


def tiny_run(**changes) -> Run:
    tiny = dict(task="recall", attention="linear", seed=0, lr=1e-2, steps=6, batch_size=4, task_options=TINY)
    return Run(**{**tiny, **changes})


def test_a_run_is_the_same_again():
    """Whatever ran before it in the same process."""
    first = train(tiny_run(), evaluations=2)
    train(tiny_run(seed=1, attention="performer"), evaluations=1)
    again = train(tiny_run(), evaluations=2)
    assert first.steps == [3, 6]
    assert (first.accuracy, first.loss) == (again.accuracy, again.loss)
    assert train(tiny_run(seed=1), evaluations=2).loss != first.loss


def in_this_process(jobs: int, context: BaseContext, initializer: Callable) -> ThreadPoolExecutor:
    """Return threads in place of processes, each of which would import torch."""
    return ThreadPoolExecutor(jobs)


def test_study(tmp_path, monkeypatch):
    """It ends at a signal after a run, resumes with the missing ones, and rejects results of other settings."""
    monkeypatch.setattr("studies.gym.study.ProcessPoolExecutor", in_this_process)
    study = Study(tmp_path, [tiny_run(attention=kind, steps=3) for kind in ("none", "softmax", "linear")], seeds=2)
    with monkeypatch.context() as patch:
        asking = lambda *run: train_and_save(*run) or signal.raise_signal(signal.SIGTERM)  # noqa: E731
        patch.setattr("studies.gym.study.train_and_save", asking)
        with pytest.raises(RunStopped):
            study.train(progress=False)
    assert 0 < len(list(tmp_path.rglob("*.json"))) < 3 * len(LEARNING_RATES)
    study.train(progress=False)
    files = sorted(tmp_path.rglob("*.json"))
    assert len(files) == 3 * (len(LEARNING_RATES) + 2)
    changed, lost = files[0], files[-1]
    kept = {path: path.read_bytes() for path in files}
    lost.unlink()
    study.train(progress=False)
    again = Result.load(lost)
    before = json.loads(kept[lost])
    assert (again.accuracy, again.loss) == (before["accuracy"], before["loss"])
    assert all(path.read_bytes() == data for path, data in kept.items() if path != lost)
    assert again.run.lr in LEARNING_RATES
    write_report(study, "the command")
    assert "`the command`" in (tmp_path / "results.md").read_text()
    assert (tmp_path / "results.csv").read_text().count("\n") == 1 + 6
    assert merged_csv(*2 * [(tmp_path / "results.csv").read_text()]) == (tmp_path / "results.csv").read_text()
    changed.write_text(changed.read_text().replace('"steps": 1', '"steps": 2'))
    with pytest.raises(ValueError, match=changed.name):
        study.train(progress=False)
    with pytest.raises(ValueError, match="normalize_rows"):
        parse_kind("soft:normalize_rows")
