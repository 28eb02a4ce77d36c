"""The tutorial runs, and its text agrees with the figures that it prints."""

import re

import pytest


@pytest.mark.slow
def test_text_agrees_with_its_figures(tool, tmp_path, capsys):
    tool("tutorial")(["--out", str(tmp_path), "--steps", "4"])
    text = capsys.readouterr().out

    def figures(line: str) -> list[float]:
        """Return the numbers after the beginning of a line."""
        (rest,) = re.findall(rf"^{re.escape(line)}(.*)$", text, re.MULTILINE)
        return [float(number) for number in re.findall(r"\d+\.?\d*(?:e[+-]\d+)?", rest)]

    assert re.findall(r"^(\d)\. ", text, re.MULTILINE) == [str(number) for number in range(1, 9)]
    assert {path.name for path in tmp_path.iterdir()} == {"attention.png", "curved.safetensors", "shape.png"}
    assert figures("| 1 | 56 x 56 |") == [3136, 8, 49, 3136**2, 2 * 3136 * 49 + 49**2]

    # Attention of the shipped weights for shapes is small, and that for tiles is not.
    rank, *sums, whole, off, pyramid_off = figures("| soft_pico.shapes |")
    assert rank <= 4
    assert max(sums) < 0.01
    assert whole > 90 > off
    # One image of 100 is a point.
    assert pyramid_off == pytest.approx(whole, abs=2)
    _, *sums, whole, off, pyramid_off = figures("| soft_plus_pico.tiles |")
    assert min(sums) > 0.1
    assert whole > 95
    assert max(off, pyramid_off) < 40

    # Newton's iteration is far from the inverse of a flat kernel.
    for spread, far in (("| 1.0 |", False), ("| 0.03 |", True)):
        _, newton, longer, cholesky, residual = figures(spread)
        assert (newton > 0.5) == (residual > 0.5) == far
        assert max(longer, cholesky) < 1e-3

    # Trained weights help another task, and what is saved is the same model.
    accuracies = [figures(f"  from {start}: ")[1] for start in ("random weights", "soft_pico.shapes")]
    assert accuracies[1] > max(accuracies[0], 70)
    assert figures(f"{tmp_path / 'curved.safetensors'}: loaded again, the logits differ by ") == [0]

    # A bound keeps the cost linear; stage 4, of a 1024th of the pixels, has softmax.
    costs = figures("| SOFT, max_bottleneck=(7, 7) |")
    assert costs[2] / costs[0] < 1.2 * 16
    assert figures("| SOFT as released |")[-1] > 10 * costs[2]
