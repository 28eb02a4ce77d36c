"""The matrix of an attention, what it costs, and curves of logs."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from attention_cases import DIM, FORMULAS, HEADS, Case, case, every, make, output_by, relative_error, using
from attention_cases import tokens as tokens_of_map
from torch import Tensor, nn

from soft_vit.layers import Attention
from soft_vit.probe import matrix as module
from soft_vit.probe.attentions import switched_off
from soft_vit.probe.complexity import complexity_table, count_complexity
from soft_vit.probe.curves import read_run
from soft_vit.probe.matrix import attention_matrix, watch_attention

# The matrix of every attention: it reproduces the attention's output, and it is the one of the published formula.


GRID = (7, 9)
N = GRID[0] * GRID[1]

# Float64 on both sides, sums of some hundred terms in another order, 1e3 roundings of 2.2e-16; an inverse of a kernel
# with a ridge of 0.01 enlarges them by at most 1e2.
TOLERANCE = 1e-10

RANDOM = case("soft", sampling="random", local_kernel=0)
# `none` has the matrix zero, and what is not linear in its values has none.
WITH_MATRIX = [case for case in using("contract") if case.kind not in ("none", "ttt", "ttt_glu", "wfm")]


def tokens() -> Tensor:
    return tokens_of_map(2, N)


def error_of(matrix: Tensor, attn: Attention, x: Tensor, expected: Tensor) -> float:
    return relative_error(output_by(matrix, attn, x, 0, GRID), expected)


@every([*WITH_MATRIX, RANDOM])
def test_matrix_reproduces_the_output(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    # Several runs of columns, the last one shorter.
    monkeypatch.setattr(module, "COLUMNS", 20)
    attn, x, matrices = make(case, GRID), tokens(), []
    expected = attn(x, GRID)
    with watch_attention(attn, matrices.append):
        watched = attn(x, GRID)
    assert torch.equal(watched, expected)
    assert watched.requires_grad
    (matrix,) = matrices
    count = {"gau": 1, "polaformer": 2 * HEADS, "ssm": DIM * case.options.get("ssm_ratio", 1)}
    count |= dict.fromkeys(("hydra", "rwkv", "circulant"), DIM)
    assert matrix.shape[:3] == (2, count.get(case.kind, HEADS), N)
    with torch.no_grad():
        assert error_of(matrix, attn, x, expected) <= TOLERANCE


# The formulas of other attentions are in their own tests, in tests/layers/attention.
@every(FORMULAS)
def test_matrix_is_that_of_the_formula(case: Case) -> None:
    attn, x = make(case, GRID), tokens()
    with torch.no_grad():
        expected = case.formula(attn, x, 0, GRID)
    matrix = attention_matrix(attn, x, GRID)
    assert matrix.shape == expected.shape
    assert relative_error(matrix, expected) <= TOLERANCE


def test_random_choices_are_those_of_the_watched_forward() -> None:
    attn, x, matrices = make(case("soft", sampling="random"), GRID).train(), tokens(), []
    with torch.no_grad():
        for _ in range(2):
            with watch_attention(attn, matrices.append):
                y = attn(x, GRID)
            assert error_of(matrices[-1], attn, x, y) <= TOLERANCE
    assert not torch.equal(*matrices)


def test_dropout_of_the_attention_is_left_out() -> None:
    attn, x = make(case("softmax", attn_drop=0.5), GRID), tokens()
    matrix = attention_matrix(attn, x, GRID)
    assert torch.equal(attention_matrix(attn.train(), x, GRID), matrix)
    assert attn.training


def test_contexts_lie_within_one_another_and_end() -> None:
    attn, x, outer, inner = make(case("soft"), GRID), tokens(), [], []
    matrix, expected = attention_matrix(attn, x, GRID), attn(x, GRID)

    def fail(found: Tensor) -> None:
        inner.append(found)
        raise RuntimeError("enough")

    with watch_attention(attn, outer.append):
        with pytest.raises(RuntimeError, match="enough"), watch_attention(attn, fail):
            attn(x, GRID)
        assert torch.equal(attn(x, GRID), expected)
        with switched_off(attn):
            assert not attention_matrix(attn, x, GRID).any()
            off = attn(x, GRID)
        assert not torch.equal(off, expected)
    assert len(inner) == 1
    assert torch.equal(outer[1], matrix)
    assert torch.equal(inner[0], matrix)
    assert "attend" not in vars(attn)
    assert not attn.training


def test_an_attention_without_a_matrix_is_refused() -> None:
    with pytest.raises(ValueError, match="method attend"):
        attention_matrix(make(case("ttt"), GRID), tokens(), GRID)


# Counts against numbers worked out by hand or published by fvcore.


# fvcore 0.1.5 on timm's models at 224, fused attention off (fvcore does not see it), in GFLOPs. It also counts norms.
FVCORE = {"resnet50": 4.111512576, "deit_small_patch16_224": 4.608338304, "pvt_v2_b1": 2.120272384}


COUNTED = [pytest.param(*row, marks=[pytest.mark.slow] * (row[0] == "resnet50")) for row in FVCORE.items()]


@pytest.mark.parametrize(("name", "expected"), COUNTED)
def test_agrees_with_fvcore_within_a_percent(name, expected):
    assert count_complexity(timm.create_model(name).to("meta")).macs / 1e9 == pytest.approx(expected, rel=0.01)


def test_by_hand():
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.Flatten(), nn.Linear(8 * 5 * 7, 4))
    complexity = count_complexity(model, (2, 3, 5, 7))
    convolution, linear = 2 * 5 * 7 * 8 * 3 * 9, 2 * 8 * 5 * 7 * 4
    assert complexity.macs == convolution + linear
    assert complexity.by_module["0"] == (3 * 9 * 8 + 8, convolution)
    assert complexity.by_module["2"] == (8 * 5 * 7 * 4 + 4, linear)
    assert model.training


def test_what_a_model_calls_beside_a_stage_is_counted_in_it():
    parts = count_complexity(timm.create_model("mlla_tiny", device="meta")).by_module
    assert sum(macs for name, (_, macs) in parts.items() if name and "." not in name) == parts[""][1]


def test_inverse_is_counted():
    """Newton: 20 steps of two products of [M, M] for each head of each block; Cholesky: M^3 / 6 and M^2 D."""
    models = {name: timm.create_model("soft_tiny", device="meta", inverse=name) for name in ("newton", "cholesky")}
    macs = {name: count_complexity(model).macs for name, model in models.items()}
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


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_transforms_by_hand(device):
    """5 N log2(N) / 2 operations for N real numbers, there and back, or half as many multiply-adds."""
    model = nn.Linear(1, 1, device=device)
    model.forward = lambda x: torch.fft.irfft2(torch.fft.rfft2(x))
    assert count_complexity(model, (3, 1, 4, 8)).macs == 3 * 2 * (5 * 32 * 5 / 4)


def test_meta_and_real_counts_agree_and_make_a_table():
    real = count_complexity(timm.create_model("soft_pico", img_size=64), (1, 3, 64, 64))
    assert real == count_complexity(timm.create_model("soft_pico", img_size=64, device="meta"), (1, 3, 64, 64))
    assert torch.is_grad_enabled()
    table = complexity_table(real, depth=1)
    stages = next(line for line in table.splitlines() if "| stages |" in line)
    assert float(stages.split("|")[-2]) == pytest.approx(real.macs / 1e9, rel=5e-2)
    assert "stages.0" not in table
    assert table.splitlines()[-1].startswith("| **total** |")


# Logs are joined where runs were resumed, and drawn.


def train_line(step: int, loss: float, **more) -> dict:
    """Ten iterations are an epoch."""
    return {"loss": loss, "lr": 1e-3, "time": 0.5, "epoch": (step - 1) // 10 + 1, "iter": step, "step": step, **more}


def val_line(epoch: int, top1: float) -> dict:
    return {"accuracy/top1": top1, "time": 0.1, "step": epoch}


def write_log(folder: Path, start: str, lines: list[dict], ending: str = "") -> None:
    target = folder / start / "vis_data"
    target.mkdir(parents=True)
    (target / "scalars.json").write_text("".join(json.dumps(line) + "\n" for line in lines) + ending)


FIRST = [train_line(5, 5.0), train_line(10, 4.0), val_line(1, 10.0), train_line(15, 3.0), train_line(20, 2.0)]


ITERATIONS = [{"loss": 5, "iter": 5, "step": 5}, val_line(10, 10), {"loss": 3, "iter": 20, "step": 20}, val_line(20, 9)]


RESUMED = [
    # Killed after iteration 20 before the validation, resumed from 10.
    (FIRST, [[train_line(15, 3.5), train_line(20, 2.5), val_line(2, 20.0)]], [5, 4, 3.5, 2.5], {1: 10, 2: 20}),
    # Resumed from the end of the first epoch, whose validation is repeated.
    (FIRST, [[val_line(1, 11.0), train_line(15, 3.5)]], [5, 4, 3.5], {1: 11}),
    # Resumed from iteration 12, in the second epoch, before its validation.
    (FIRST, [[train_line(20, 2.5)]], [5, 4, 3, 2.5], {1: 10}),
    # Resumed from before the last validation, which no longer counts.
    ([*FIRST, val_line(2, 20.0)], [[train_line(15, 3.5)]], [5, 4, 3.5], {1: 10}),
    # Started again from the beginning.
    ([*FIRST, val_line(2, 20.0)], [[train_line(5, 9.0)]], [9], {}),
    # Runs that count in iterations log no epoch, but with what is measured between two lines.
    (ITERATIONS, [[{"loss": 3.5, "iter": 15, "step": 15}]], [5, 3.5], {10: 10}),
    (ITERATIONS, [[{"share": 0.5, "epoch": 1, "iter": 14, "step": 14}]], [5], {10: 10}),
    # Ended before it logged anything, and resumed after it measured something between two lines.
    (FIRST, [[], [{"residual": 0.5, "iter": 14, "step": 14}, train_line(15, 3.2)]], [5, 4, 3.2], {1: 10}),
]


@pytest.mark.parametrize(("first", "later", "loss", "top1"), RESUMED)
def test_the_later_log_counts(tmp_path, first, later, loss, top1):
    # Written in the wrong order; names are times.
    for number, lines in reversed([*enumerate([first, *later])]):
        write_log(tmp_path, f"2026010{number}_000000", lines)
    run = read_run(tmp_path)
    assert run["loss"][2] == loss
    assert run["loss"][1] == sorted(set(run["loss"][1]))
    _, steps, values = run.get("accuracy/top1", ("epoch", [], []))
    assert dict(zip(steps, values, strict=True)) == top1


def test_incomplete_line_null_and_text(tmp_path):
    # A mode in the log decides whether a line is of training.
    first = {"mode": "train", "loss": 3.0, "step": 3}
    lines = [first, train_line(5, 2.0, grad_norm=None), train_line(10, 1.0, note="text", grad_norm=3)]
    write_log(tmp_path, "1", lines, ending='{"loss": 0.')
    run = read_run(tmp_path / "1" / "vis_data" / "scalars.json")
    assert run["loss"] == ("iteration", [3, 5, 10], [3.0, 2.0, 1.0])
    np.testing.assert_equal(run["grad_norm"][2], [math.nan, 3])
    assert "note" not in run


def test_other_files_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_run(tmp_path)
    for number, content in enumerate(["", "x", '{"step": 1}\n[]\n{"step": 2}']):
        write_log(tmp_path / str(number), "1", [], content)
        with pytest.raises(ValueError, match=f"line {number}" if number else "empty"):
            read_run(tmp_path / str(number))
