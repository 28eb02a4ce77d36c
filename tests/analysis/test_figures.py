"""Drawing changes nothing for whoever draws beside it."""

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
