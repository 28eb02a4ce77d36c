"""Tasks have right answers, a student that is the teacher loses nothing, a killed study repeats one run at most."""

from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from soft_vit.linearise import make_student
from studies.gym.task import NOT_ASKED
from studies.linearise.command import main, read_results
from studies.linearise.students import Judge, Run, linearise, load_teacher
from studies.linearise.tasks import TASKS, TwoHop


class Tiny(TwoHop):
    depth, side, tests, plan = 2, 5, 16, ((5, 2, 3), (6, 1, 2))


@pytest.fixture
def judge(tmp_path):
    return Judge(Tiny(), load_teacher(Tiny(), tmp_path / "teacher.safetensors"))


@pytest.mark.parametrize("side", [5, 9])
def test_two_hops_lead_to_the_answer(side):
    images, labels, targets = TwoHop().sample(3, 4, side)
    M, tokens = TwoHop.PAIRS, images.flatten(2).mT
    for row in range(4):
        first, second, value = (x.argmax(-1).where(x.any(-1), -1) for x in tokens[row].split([2 * M, 2 * M, 8], -1))
        links = dict(zip(*(part[(first >= 0) & (second >= 0)].tolist() for part in (first, second)), strict=True))
        stores = dict(zip(*(part[value >= 0].tolist() for part in (second, value)), strict=True))
        asks = (first >= 0) & (second < 0)
        assert labels[row, asks].tolist() == [stores[links[key]] for key in first[asks].tolist()]
        assert (labels[row, ~asks] == NOT_ASKED).all()
        assert int((targets[row] != NOT_ASKED).sum()) == 2 * M == 2 * int(asks.sum())


def test_a_student_that_is_the_teacher_loses_nothing(judge):
    found = judge.finish(make_student(judge.teacher, "softmax"))
    assert found["accuracy"] == found["teacher"]
    assert found["agreement"] == [100.0] * 3
    assert found["cosine"] == pytest.approx([1.0] * 3)
    assert found["block_error"] == pytest.approx([0.0] * 3, abs=1e-10)
    assert found["rank"] == pytest.approx(found["teacher_rank"])


def test_students_leave_the_teacher_alone_and_keep_softmax(judge):
    before = deepcopy(judge.teacher.state_dict())
    run = Run("tiny", "linear", seed=1, images=8, batch_size=4, steps1=2, steps2=2)
    result, hybrid = linearise(run, judge), linearise(replace(run, keep=1), judge)
    assert len(result["rank"]) == len(result["phase1_error"]) == 2
    assert len(hybrid["softmax"]["kept"]) == len(hybrid["rank"]) == 1
    assert result["phase1_error"] == hybrid["phase1_error"]
    control = linearise(replace(run, kind="none"), judge)
    assert control["swap_error"] == control["phase1_error"]
    assert control["rank"] == [0.0] * 2
    assert all(torch.equal(value, before[name]) for name, value in judge.teacher.state_dict().items())


def test_a_killed_study_repeats_its_last_run_alone(tmp_path, monkeypatch):
    monkeypatch.setitem(TASKS, "tiny", Tiny())
    done, out = [], tmp_path / "study"

    def record(run, judge):
        done.append(run)
        return linearise(replace(run, images=8, steps1=1, steps2=1), judge)

    monkeypatch.setattr("studies.linearise.command.linearise", record)
    words = ["--tasks", "tiny", "--kinds", "linear", "none", "--variants", "plain", "1 softmax", "--out", str(out)]
    main(words)
    runs = [Run("tiny", "linear"), Run("tiny", "none"), Run("tiny", "linear", keep=1), Run("tiny", "none", keep=1)]
    assert done == runs
    lines, written = Path(f"{out}.jsonl"), Path(f"{out}.md").read_text()
    teacher = next(Path(f"{out}_teachers").iterdir()).stat().st_mtime_ns
    assert list(read_results(lines)) == runs
    lines.write_text(lines.read_text()[:-9])
    main(words)
    assert done == [*runs, runs[-1]]
    assert next(Path(f"{out}_teachers").iterdir()).stat().st_mtime_ns == teacher
    # CPU minutes are all that may differ.
    assert "2 softmax" in written
    assert len(Path(f"{out}.csv").read_text().splitlines()) == 1 + len(runs)
