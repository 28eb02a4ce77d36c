"""The matrix of every attention: it reproduces the attention's output, and it is the one of the published formula."""

import pytest
import torch
from attention_cases import DIM, FORMULAS, HEADS, Case, case, every, make, output_by, relative_error, using
from attention_cases import tokens as tokens_of_map
from torch import Tensor

from soft_vit.layers import Attention
from soft_vit.probe import matrix as module
from soft_vit.probe.attentions import switched_off
from soft_vit.probe.matrix import attention_matrix, watch_attention

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
    assert matrix.shape[:3] == (2, {"gau": 1, "hydra": DIM, "polaformer": 2 * HEADS}.get(case.kind, HEADS), N)
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
