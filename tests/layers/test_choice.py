"""The choice from a small table whose answers are known, and from the one that is shipped."""

import pytest

import soft_vit
from soft_vit.layers import choice
from soft_vit.layers.choice import Measurements

# softmax takes N^2, linear 500 N; hydra is fast and large. none and local do not mix all tokens.
FIGURES = {("softmax", "inference", n): (n * n * 1e-6, n / 100) for n in (100, 400, 1600)}
FIGURES |= {("linear", "inference", n): (n * 5e-4, n / 50) for n in (100, 400, 1600)}
FIGURES |= {("hydra", "inference", n): (n * 1e-4, n) for n in (100, 400)}
FIGURES |= {(kind, "inference", n): (1e-9, 1e-9) for kind in ("none", "local") for n in (100, 400, 1600)}
FIGURES |= {("sima", "inference", n): (n * 1e-2, n / 200) for n in (100, 400)}
FIGURES |= {("mala", "training", n): (n, 1) for n in (100, 400, 1600)}
SCORES = {"softmax": 80.0, "linear": 76.0, "hydra": 57.0, "sima": 56.0, "mala": 90.0}


@pytest.fixture
def table(monkeypatch):
    monkeypatch.setattr(choice, "shipped_table", lambda: Measurements("a machine", "2026-11-23", FIGURES))
    monkeypatch.setattr(choice, "gym_scores", lambda: SCORES)


FASTEST = [
    (100, {}, "softmax", 0.01, 1, "N = 100"),
    (400, {"memory": 300}, "softmax", 0.16, 4, "N = 400"),
    (400, {}, "softmax", 0.16, 4, "N = 400"),
    (200, {}, "softmax", 0.04, 2, "N = 100 and 400"),
    (200, {"kinds": ["hydra", "softmax"]}, "hydra", 0.02, 200, "N = 100 and 400"),
    # A type needs a measurement on both sides.
    (1000, {}, "linear", 0.5, 20, "N = 400 and 1600"),
    (400, {"training": True}, "mala", 400, 1, "N = 400"),
    (400, {"kinds": ["linear", "softmax"]}, "softmax", 0.16, 4, "N = 400"),
    (1600, {"kinds": ["linear", "local"]}, "local", 1e-9, 1e-9, "N = 1600"),
]


@pytest.mark.parametrize(("num_tokens", "options", "kind", "seconds", "megabytes", "place"), FASTEST)
def test_fastest_that_fits(table, num_tokens, options, kind, seconds, megabytes, place):
    found = choice.choose_attention(num_tokens, **options)
    assert found.kind == kind
    assert (found.seconds, found.megabytes) == pytest.approx((seconds, megabytes))
    assert found.source == f"measured at {place}, 2026-11-23, a machine"
    assert found.score == SCORES.get(kind)


def test_what_a_faster_kind_that_learns_less_would_gain(table):
    expected = "hydra takes 0.25 times as long; in the gym it has 57 % instead of 80 %"
    assert choice.choose_attention(400).trade == expected
    assert choice.choose_attention(1600).trade == ""


def test_what_is_lost_where_memory_leaves_no_kind_that_learns_as_softmax(table):
    found = choice.choose_attention(400, memory=3)
    assert found.kind == "sima"
    assert found.trade == "in the gym it has 56 % and softmax 80 %; softmax has 80 % and takes 4 MB"
    assert choice.choose_attention(400, memory=3, kinds=["sima", "hydra"]).trade == ""


REFUSALS = [(99, {}, "from 100 to 1600, got 99"), (400, {"kinds": ["linear", "sofd"]}, "sofd")]
REFUSALS += [(1600, {"kinds": ["hydra"]}, "hydra"), (400, {"memory": 1.9}, "at least 2 MB.*sima.*1.9")]


@pytest.mark.parametrize(("num_tokens", "options", "value"), REFUSALS)
def test_refusals(table, num_tokens, options, value):
    with pytest.raises(ValueError, match=value):
        choice.choose_attention(num_tokens, **options)


def test_shipped_table_answers_for_every_size():
    tokens = sorted({tokens for *_, tokens in choice.shipped_table().figures})
    for training in (False, True):
        few, many = (soft_vit.choose_attention(n, training=training) for n in (tokens[0], tokens[-1]))
        assert few.seconds < many.seconds
        assert "torch" in many.source
    assert isinstance(soft_vit.choose_attention(1000), soft_vit.Choice)
