"""The cells of the tutorial run, and its text agrees with the figures that they print."""

import io
import json
import re
from contextlib import redirect_stdout

import pytest
from documents import ROOT

CELLS = json.loads((ROOT / "docs" / "tutorial.ipynb").read_text())["cells"]


def figures(text: str, line: str) -> list[float]:
    """Return the numbers after the beginning of a line."""
    (rest,) = re.findall(rf"^{re.escape(line)}(.*)$", text, re.MULTILINE)
    return [float(number) for number in re.findall(r"\d+\.?\d*(?:e[+-]\d+)?", rest)]


def agrees(text: str) -> None:
    """Check the figures in what all cells print."""
    assert figures(text, "| 1 | 56 x 56 |") == [3136, 8, 49, 3136**2, 2 * 3136 * 49 + 49**2]

    # Attention of the shipped weights for shapes is small, and that for tiles is not.
    rank, *sums, whole, off, pyramid_off = figures(text, "| soft_pico.shapes |")
    assert rank <= 4
    assert max(sums) < 0.01
    assert whole > 90 > off
    # One image of 100 is a point.
    assert pyramid_off == pytest.approx(whole, abs=2)
    _, *sums, whole, off, pyramid_off = figures(text, "| soft_plus_pico.tiles |")
    assert min(sums) > 0.1
    assert whole > 95
    assert max(off, pyramid_off) < 40

    # Newton's iteration is far from the inverse of a flat kernel.
    for spread, far in (("| 1.0 |", False), ("| 0.03 |", True)):
        _, newton, longer, cholesky, residual = figures(text, spread)
        assert (newton > 0.5) == (residual > 0.5) == far
        assert max(longer, cholesky) < 1e-3

    # Trained weights help another task, and what is saved is the same model.
    random, trained = (figures(text, f"from {start}: ")[1] for start in ("random weights", "soft_pico.shapes"))
    assert trained > max(random, 70)
    assert figures(text, "Loaded again, the logits differ by ") == [0]

    # A bound keeps the cost linear; stage 4, of a 1024th of the pixels, has softmax.
    costs = figures(text, "| SOFT, max_bottleneck=(7, 7) |")
    assert costs[2] / costs[0] < 1.2 * 16
    assert figures(text, "| SOFT as released |")[-1] > 10 * costs[2]


def test_shown_outputs_agree_with_the_text():
    outputs = [output for cell in CELLS for output in cell.get("outputs", ())]
    agrees("".join(line for output in outputs for line in output.get("text", ())))
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 1


@pytest.mark.slow
def test_cells_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    printed, names = io.StringIO(), {}
    with redirect_stdout(printed):
        for cell in CELLS:
            if cell["cell_type"] == "code":
                exec("".join(cell["source"]).replace("STEPS, CURVED = 30,", "STEPS, CURVED = 4,"), names)
    agrees(printed.getvalue())
    assert {path.name for path in tmp_path.iterdir()} == {"attention.png", "curved.safetensors"}
