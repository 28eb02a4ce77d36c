"""One config with several attentions: a run that fails does not end the others."""

from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import pytest

from studies.attentions import LOG_NAME, accuracy_table, compare_accuracy

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
    arguments = dict(config=config, work_dir=tmp_path, options=SHORT)
    _, (died, trained) = compare_accuracy(["softmax", "linear"], **arguments)
    assert died["error"].startswith("BrokenProcessPool")
    assert "error" not in trained
    assert trained["images"] == 7
    resumed = list(compare_accuracy(["linear", "softmax"], **arguments, resume="auto"))[-1]
    assert resumed[0]["top1"] == trained["top1"]
    assert "resumed epoch: 1" in (tmp_path / "linear_pyramid_pico" / LOG_NAME).read_text()
    assert resumed[1]["images"] == 7


def test_run_that_fails_leaves_the_others(tmp_path, monkeypatch):
    def run(config, options, *arguments):
        if options["model.model_name"].startswith("softmax"):
            raise BrokenProcessPool("it died")
        return {"top1": 91.25, "images": 7, "minutes": 2.5}

    monkeypatch.setattr("studies.attentions._in_own_process", run)
    first, rows = compare_accuracy(["softmax", "linear"], DEMO, work_dir=tmp_path, progress=False)
    assert len(first) == len(rows) == 2
    assert accuracy_table(rows).splitlines()[2:] == [
        "| softmax | softmax_pyramid_pico | BrokenProcessPool: it died |  |",
        "| linear | linear_pyramid_pico | 91.2 | 2.5 |",
    ]


@pytest.mark.parametrize(("size", "error"), [("huge", ValueError), ("pico", FileNotFoundError)])
def test_mistakes_are_seen_before_the_first_run(size, error, tmp_path):
    with pytest.raises(error, match=r"huge|config\.py"):
        list(compare_accuracy(["linear"], "config.py", work_dir=tmp_path / "runs", size=size))
    assert not (tmp_path / "runs").exists()
