"""Drawing changes nothing for whoever draws beside it."""

import sys

import pytest

from soft_vit.analysis.figures import new_figure
from soft_vit.analysis.lengths import Curve, plot_lengths


def test_no_backend_is_chosen_and_no_figure_kept(tmp_path):
    import matplotlib
    from matplotlib import pyplot

    before = matplotlib.get_backend()
    try:
        matplotlib.use("svg")
        plot_lengths([Curve("soft", [784, 1568], [10, 20], [])], tmp_path / "figure")
        assert matplotlib.get_backend() == "svg"
        assert not pyplot.get_fignums()
    finally:
        matplotlib.use(before)


def test_what_is_missing_is_said_in_a_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ModuleNotFoundError, match="Drawing needs matplotlib; pip install"):
        new_figure()
