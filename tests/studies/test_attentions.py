"""One config with several attentions: a run that fails does not end the others."""

from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import pytest

from studies.attentions import AccuracyRow, accuracy_table, compare_accuracy
from studies.runs import LOG_NAME

DEMO = Path(__file__).parents[2] / "configs" / "demo" / "soft_pico_shapes.py"
SHORT = {
    "train_cfg.max_epochs": 1,
    "train_dataloader.dataset.length": 16,
    "val_dataloader.dataset.length": 7,
    "train_dataloader.batch_size": 8,
}


@pytest.mark.slow
def test_runs_have_their_own_process_and_one_that_dies_leaves_the_others(tmp_path):
    # The first process to read this config dies, as if out of memory.
    config, flag = tmp_path / "config.py", tmp_path / "died"
    die = f"open({str(flag)!r}, 'w').close() or __import__('os')._exit(9)"
    config.write_text(f"_base_ = [{str(DEMO)!r}]\nonce = __import__('os').path.exists({str(flag)!r}) or {die}\n")
    seen = []
    for rows in compare_accuracy(["softmax", "linear"], config, work_dir=tmp_path, options=SHORT, progress=False):
        seen.append([bool(row.error) or row.top1 is not None for row in rows])
    died, trained = rows
    assert died.error.startswith("BrokenProcessPool")
    assert died.top1 is None
    assert not trained.error
    assert trained.images == 7
    assert 0 <= trained.top1 <= 100
    assert "linear_pyramid_pico" in (tmp_path / "linear_pyramid_pico" / LOG_NAME).read_text()
    assert len(seen) == 2
    assert seen[-1] == [True, True]
    resumed = list(compare_accuracy(["linear", "softmax"], config, work_dir=tmp_path, options=SHORT, resume="auto"))[-1]
    assert resumed[0].top1 == trained.top1
    assert "resumed epoch: 1" in (tmp_path / "linear_pyramid_pico" / LOG_NAME).read_text()
    assert resumed[1].images == 7


def test_run_that_fails_leaves_the_others(tmp_path, monkeypatch):
    def run(config, options, *arguments):
        if options["model.model_name"].startswith("softmax"):
            raise BrokenProcessPool("it died")
        return 50.0, 7, 0.1

    monkeypatch.setattr("studies.runs._in_own_process", run)
    first, rows = compare_accuracy(["softmax", "linear"], DEMO, work_dir=tmp_path, progress=False)
    assert len(first) == len(rows) == 2
    assert [(row.attention, row.top1, row.error) for row in rows] == [
        ("softmax", None, "BrokenProcessPool: it died"),
        ("linear", 50.0, ""),
    ]


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"size": "huge"}, ValueError, "huge"),
        ({}, FileNotFoundError, "config.py"),
    ],
)
def test_mistakes_are_seen_before_the_first_run(change, error, message, tmp_path):
    with pytest.raises(error, match=message):
        list(compare_accuracy(["linear"], "config.py", work_dir=tmp_path / "runs", **change))
    assert not (tmp_path / "runs").exists()


def test_tables():
    rows = [AccuracyRow("linear", "linear_pyramid_pico", 91.25, 1000, 2.5), AccuracyRow("gau", "g", error="OSError: x")]
    assert accuracy_table(rows).splitlines()[2:] == [
        "| linear | linear_pyramid_pico | 91.2 | 2.5 |",
        "| gau | g | OSError: x |  |",
    ]
