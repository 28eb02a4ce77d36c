"""Curves of runs, and their smoothing, as pictures and as tables."""

import csv
import math

import numpy as np
import pytest
from PIL import Image
from run_logs import train_line, val_line, write_log

from soft_vit.analysis.curves import choose_keys, curves_csv, plot_curves, smoothed
from soft_vit.analysis.run_logs import read_runs


def test_smoothing_is_a_mean_of_as_many_before_as_after():
    values = np.random.default_rng(0).normal(size=23)
    values[7] = np.nan
    for window in (0, 1, 2, 5, 9, 100):
        expected = []
        for i, value in enumerate(values):
            half = min(window // 2, i, len(values) - 1 - i)
            expected.append(np.nanmean(values[i - half : i + half + 1]) if np.isfinite(value) else np.nan)
        np.testing.assert_allclose(smoothed(values, window), expected, rtol=1e-12)
    # A straight line, such as a warm-up, stays where it is.
    np.testing.assert_allclose(smoothed(np.arange(30.0), 7), np.arange(30.0), rtol=1e-12)


@pytest.fixture
def runs(tmp_path):
    write_log(tmp_path / "a", "1", [train_line(step, 9 - step / 10, grad_norm=10.0**step) for step in range(1, 40)])
    write_log(tmp_path / "b", "1", [train_line(3, 8.0), val_line(1, 40.0), train_line(13, math.inf)])
    return read_runs([tmp_path / "a", tmp_path / "b"])


def test_keys(runs):
    assert choose_keys(runs) == ["loss", "accuracy/top1", "lr", "grad_norm"]
    assert choose_keys(runs[1:], ["time", "loss"]) == ["time", "loss"]
    with pytest.raises(ValueError, match="No run has logged 'top1'; choose from accuracy/top1, grad_norm, loss, lr, "):
        choose_keys(runs, ["loss", "top1"])
    runs[0].series = {"other": runs[0].series["loss"]}
    with pytest.raises(ValueError, match="any of loss, accuracy/top1, lr, grad_norm; choose from other"):
        choose_keys(runs[:1])


@pytest.mark.parametrize(
    ("keys", "smoothing"), [(None, 0), (["loss"], 5), (["loss", "lr", "time", "grad_norm", "accuracy/top1"], 5)]
)
def test_picture(runs, tmp_path, keys, smoothing):
    plot_curves(runs, tmp_path / "new" / "curves.png", keys, smoothing)
    pixels = np.asarray(Image.open(tmp_path / "new" / "curves.png").convert("RGB"))
    # Blue and orange, matplotlib's first two colours: both runs are there.
    for colour in ((31, 119, 180), (255, 127, 14)):
        assert (np.abs(pixels.astype(int) - colour).max(axis=2) < 3).sum() > 50
    rows, columns = {1: (1, 1), 4: (2, 2), 5: (2, 3)}[len(keys or "four")]
    assert pixels.shape[:2] == (540 * rows, 900 * columns)


def test_picture_with_a_mistake_is_not_drawn(runs, tmp_path):
    with pytest.raises(ValueError, match="smoothing is -1"):
        plot_curves(runs, tmp_path / "curves.png", smoothing=-1)
    with pytest.raises(ValueError, match="No run has logged"):
        plot_curves(runs, tmp_path / "curves.png", ["x"])
    assert not (tmp_path / "curves.png").exists()


def test_csv(runs):
    rows = list(csv.DictReader(curves_csv(runs, ["loss", "accuracy/top1"]).splitlines()))
    assert len(rows) == 39 + 2 + 1
    assert rows[0] == {"run": "a", "key": "loss", "axis": "iteration", "step": "1", "value": "8.9"}
    assert rows[40] == {"run": "b", "key": "loss", "axis": "iteration", "step": "13", "value": ""}
    assert rows[41] == {"run": "b", "key": "accuracy/top1", "axis": "epoch", "step": "1", "value": "40.0"}
