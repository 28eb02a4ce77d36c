"""The choice from a small table whose answers are known, and from the one that is shipped."""

import pytest
import timm

import soft_vit
from soft_vit.analysis.atlas import choice
from soft_vit.analysis.atlas.table import Row, Table


def row(kind: str, tokens: int, seconds: float | None, megabytes: float, mode: str = "inference", dim: int = 32) -> Row:
    return Row(kind, "N", mode, dim, tokens, 5, *[seconds] * 3, 1.0, 1.0, 1.0, megabytes, "" if seconds else "skipped")


# softmax takes N^2, linear 1000 N, hydra is fast and large; none and local mix no or few tokens.
ROWS = [row("softmax", n, n * n * 1e-6, n / 100) for n in (100, 400, 1600)]
ROWS += [row("linear", n, n * 5e-4, n / 50) for n in (100, 400, 1600)]
ROWS += [row("hydra", n, n * 1e-4, n) for n in (100, 400)] + [row("hydra", 1600, None, 1600)]
ROWS += [row(kind, n, 1e-9, 1e-9) for kind in ("none", "local") for n in (100, 400, 1600)]
ROWS += [row("sima", n, 1e-9, 1e-9, dim=64) for n in (100, 400, 1600)]
ROWS += [row("mala", n, n, 1, mode="training") for n in (100, 400, 1600)]


@pytest.fixture
def table(monkeypatch):
    monkeypatch.setattr(choice, "shipped_table", lambda: Table("a machine", "2026-11-23", "a command", ROWS))


@pytest.mark.parametrize(
    ("num_tokens", "options", "kind", "seconds", "megabytes", "place"),
    [
        (100, {}, "softmax", 0.01, 1, "N = 100"),
        (400, {"memory": 300}, "softmax", 0.16, 4, "N = 400"),
        (400, {}, "hydra", 0.04, 400, "N = 400"),
        (200, {}, "hydra", 0.02, 200, "N = 100 and 400"),
        (200, {"memory": 3}, "softmax", 0.04, 2, "N = 100 and 400"),
        # Without a measurement on both sides, a kind is no candidate.
        (1000, {}, "linear", 0.5, 20, "N = 400 and 1600"),
        (1600, {}, "linear", 0.8, 32, "N = 1600"),
        (1600, {"memory": 16}, "softmax", 2.56, 16, "N = 1600"),
        (400, {"training": True}, "mala", 400, 1, "N = 400"),
        (400, {"kinds": ["linear", "softmax"]}, "softmax", 0.16, 4, "N = 400"),
        (1600, {"kinds": ["linear", "local"]}, "local", 1e-9, 1e-9, "N = 1600"),
    ],
)
def test_fastest_that_fits(table, num_tokens, options, kind, seconds, megabytes, place):
    found = choice.choose_attention(num_tokens, **options)
    assert found.kind == kind
    assert (found.seconds, found.megabytes) == pytest.approx((seconds, megabytes))
    assert found.source == f"measured at {place}, 2026-11-23, a machine"


@pytest.mark.parametrize(
    ("num_tokens", "options", "message"),
    [
        (99, {}, "num_tokens=99 is outside of the table, which has 100 to 1600 tokens"),
        (1601, {}, "num_tokens=1601 is outside"),
        (400, {"kinds": ["linear", "sofd"]}, r"kinds=\['sofd'\] are not in the table; give names of"),
        (400, {"kinds": []}, "kinds is empty; give names of"),
        (1600, {"kinds": ["hydra"]}, r"None of kinds=\['hydra'\] was measured at 1600 tokens; give others"),
        (400, {"memory": 3.9}, "memory=3.9 MB hold no attention of 400 tokens; softmax takes the least, 4 MB"),
    ],
)
def test_refusals(table, num_tokens, options, message):
    with pytest.raises(ValueError, match=message):
        choice.choose_attention(num_tokens, **options)


def test_shipped_table_answers_for_every_size():
    tokens = sorted({row.tokens for row in choice.shipped_table().rows})
    for training in (False, True):
        few, many = (soft_vit.choose_attention(n, training=training) for n in (tokens[0], tokens[-1]))
        assert few.seconds < many.seconds
        assert "torch" in many.source
    assert isinstance(soft_vit.choose_attention(1000), soft_vit.Choice)


def test_the_answer_can_be_built():
    for kind in ("soft", "spatial_reduction", "linear"):
        found = soft_vit.choose_attention(196, kinds=[kind])
        model = timm.create_model(
            "vit_tiny_patch16_224", depth=1, attn_layer=soft_vit.attn_layer(kind, **found.options)
        )
        assert model.blocks[0].attn.cost == "N"
