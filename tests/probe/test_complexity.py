"""Counts against numbers worked out by hand or published by fvcore."""

import pytest
import timm
import torch
from torch import nn

from soft_vit.probe.complexity import complexity_table, count_complexity

# fvcore 0.1.5 on timm's models at 224, fused attention off (fvcore does not see it), in GFLOPs. It also counts norms.
FVCORE = {"resnet50": 4.111512576, "deit_small_patch16_224": 4.608338304, "pvt_v2_b1": 2.120272384}


@pytest.mark.parametrize(
    ("name", "expected"),
    [pytest.param(*row, marks=[pytest.mark.slow] * (row[0] == "resnet50")) for row in FVCORE.items()],
)
def test_agrees_with_fvcore_within_a_percent(name, expected):
    complexity = count_complexity(timm.create_model(name).to("meta"))
    assert complexity.macs / 1e9 == pytest.approx(expected, rel=0.01)


def test_by_hand():
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.Flatten(), nn.Linear(8 * 5 * 7, 4))
    complexity = count_complexity(model, (2, 3, 5, 7))
    convolution, linear = 2 * 5 * 7 * 8 * 3 * 9, 2 * 8 * 5 * 7 * 4
    assert complexity.macs == convolution + linear
    assert complexity.by_module["0"] == (3 * 9 * 8 + 8, convolution)
    assert complexity.by_module["2"] == (8 * 5 * 7 * 4 + 4, linear)
    assert model.training


def test_inverse_is_counted():
    """Newton: 20 steps of two products of [M, M] for each head of each block; Cholesky: M^3 / 6 and M^2 D."""
    macs = {
        inverse: count_complexity(timm.create_model("soft_tiny", device="meta", inverse=inverse)).macs
        for inverse in ("newton", "cholesky")
    }
    heads, m, d = 2 * 1 + 4 * 2 + 10 * 3, 49, 32
    newton = heads * (20 * 2 * m**3 + m * m * d)  # the iterations, and the inverse applied
    cholesky = heads * (m**3 / 6 + m * m * d)
    assert macs["newton"] - macs["cholesky"] == pytest.approx(newton - cholesky, rel=1e-3)
    # Published for Tiny, which leaves the inverse out: 1.9 G.
    assert macs["cholesky"] / 1e9 == pytest.approx(1.9, abs=0.05)


SOLVES = {
    "cholesky_solve": (lambda factor, x: torch.cholesky_solve(x, factor.expand(3, 2, 6, 6)), 2),
    "left": (lambda factor, x: torch.linalg.solve_triangular(factor, x, upper=False), 1),
    "right": (lambda factor, x: torch.linalg.solve_triangular(factor, x.mT, upper=False, left=False), 1),
}


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("name", SOLVES)
def test_solves_by_hand(name, device):
    """A triangle of M x M has M^2 / 2 elements, each multiplied once for each of K columns."""
    model, (solve, triangles) = nn.Bilinear(6, 6, 3, device=device), SOLVES[name]
    with torch.no_grad():
        model.weight[:] = torch.eye(6)
    model.forward = lambda x: solve(model.weight[:, None], x)
    assert count_complexity(model, (3, 2, 6, 8)).macs == triangles * (3 * 2) * 6 * 6 * 8 / 2


def test_meta_and_real_counts_agree_and_make_a_table():
    real = count_complexity(timm.create_model("soft_pico", img_size=64), (1, 3, 64, 64))
    assert real == count_complexity(timm.create_model("soft_pico", img_size=64, device="meta"), (1, 3, 64, 64))
    assert torch.is_grad_enabled()
    table = complexity_table(real, depth=1)
    stages = next(line for line in table.splitlines() if "| stages |" in line)
    assert float(stages.split("|")[-2]) == pytest.approx(real.macs / 1e9, rel=5e-2)
    assert "stages.0" not in table
    assert table.splitlines()[-1].startswith("| **total** |")
