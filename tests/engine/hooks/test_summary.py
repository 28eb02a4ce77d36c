"""The first lines of a run, and what is in the log file alone."""

import re

import pytest
from engine.runs import DEMO, tiny

from soft_vit.engine import train
from soft_vit.engine.hooks import summary

FLOPS = summary._flops


def lines(text: str) -> dict[str, str]:
    """The sentence after each heading of the summary, without colours and times."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    return dict(re.findall(r"INFO - (Data|Model|Schedule|Device|Results): (.*)\.$", plain, re.MULTILINE))


@pytest.mark.slow
def test_first_screen_of_a_run_and_of_a_resumed_one(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(summary, "_flops", FLOPS)
    options = tiny(images=6, batch=2, epochs=1) | {"model.frozen_stages": 1, "param_scheduler": []}
    train(DEMO, work_dir=tmp_path, options=options)
    screen = capfd.readouterr().out
    (log,) = tmp_path.glob("*/*.log")
    first, *_ = screen.partition("Epoch(train)")
    assert first.count("\n") <= 8
    found = lines(first)
    assert "6 images to train on, 4 for validation, 10 classes: circle, " in found["Data"]
    assert re.match(r"soft_pico, 0\.93 M parameters, 0\.\d\d M of them trained, 0\.00487 GFLOPs", found["Model"])
    assert found["Results"] == f"{tmp_path}, log {log}"
    assert lines(log.read_text()) == found

    train(DEMO, work_dir=tmp_path, options=options | {"train_cfg.max_epochs": 2}, resume="auto", validate=False)
    model = lines(capfd.readouterr().out)["Model"]
    assert model.endswith(f"resumed from {tmp_path}/epoch_1.pth at iteration 3")
