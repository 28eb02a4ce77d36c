"""One config with several attentions: a run that fails does not end the others."""

from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

from studies.attentions import accuracy_table, compare_accuracy

DEMO = Path(__file__).parents[2] / "configs" / "demo" / "soft_pico_shapes.py"


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
