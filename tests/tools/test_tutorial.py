"""The tutorial runs, and its text agrees with the figures that it prints."""

import contextlib
import io
import re
from pathlib import Path

import pytest
from PIL import Image


@pytest.fixture(scope="module")
def tour(tool, tmp_path_factory) -> tuple[str, Path]:
    """Return what the tutorial prints, and the folder that it writes."""
    folder, text = tmp_path_factory.mktemp("tutorial"), io.StringIO()
    with contextlib.redirect_stdout(text):
        tool("tutorial")(["--out", str(folder), "--steps", "8"])
    return text.getvalue(), folder


def figures(text: str, line: str) -> list[float]:
    """Return the numbers after the beginning of a line."""
    (rest,) = re.findall(rf"^{re.escape(line)}(.*)$", text, re.MULTILINE)
    return [float(number) for number in re.findall(r"\d+\.?\d*(?:e[+-]\d+)?", rest)]


def test_has_eight_parts(tour):
    assert re.findall(r"^(\d)\. ", tour[0], re.MULTILINE) == [str(number) for number in range(1, 9)]


def test_writes_pictures_and_weights(tour):
    names = {"attention.png", "curved.safetensors", "shape.png"}
    assert {path.name for path in tour[1].iterdir()} == names
    assert all(Image.open(tour[1] / name).width >= 64 for name in names if name.endswith(".png"))


def test_bottleneck_tokens_are_fewer_numbers(tour):
    assert figures(tour[0], "| 1 | 56 x 56 |") == [3136, 8, 49, 3136**2, 2 * 3136 * 49 + 49**2]


def test_attention_of_the_trained_weights_is_small(tour):
    rank, *sums, whole, off, pyramid_off = figures(tour[0], "| soft_pico.shapes |")
    assert rank <= 4
    assert max(sums) < 0.01
    assert whole > 90 > off
    # One image of 100 is a point.
    assert pyramid_off == pytest.approx(whole, abs=2)


def test_attention_of_tiles_is_alive(tour):
    _, *sums, whole, off, pyramid_off = figures(tour[0], "| soft_plus_pico.tiles |")
    assert min(sums) > 0.1
    assert whole > 95
    assert max(off, pyramid_off) < 40


def test_newton_is_far_from_the_inverse_of_a_flat_kernel(tour):
    for spread, far in (("| 1.0 |", False), ("| 0.03 |", True)):
        _, newton, longer, cholesky, residual = figures(tour[0], spread)
        assert (newton > 0.5) == (residual > 0.5) == far
        assert max(longer, cholesky) < 1e-3


def test_trained_weights_help_another_task(tour):
    accuracies = [figures(tour[0], f"  from {start}: ")[1] for start in ("random weights", "soft_pico.shapes")]
    assert accuracies[1] > accuracies[0]
    assert accuracies[1] > 70


def test_a_bound_keeps_the_cost_linear(tour):
    costs = figures(tour[0], "| SOFT, max_bottleneck=(7, 7) |")
    # Stage 4, of a 1024th of the pixels, has softmax.
    assert costs[2] / costs[0] < 1.2 * 16
    assert figures(tour[0], "| SOFT as released |")[-1] > 10 * costs[2]


def test_what_was_saved_is_the_same_model(tour):
    assert figures(tour[0], f"{tour[1] / 'curved.safetensors'}: loaded again, the logits differ by ") == [0]
