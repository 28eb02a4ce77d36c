import re

import pytest

from benchmarks.atlas.table import AttentionRow, Table
from docs.generate import kinds
from soft_vit.layers import ATTENTIONS


@pytest.mark.parametrize("kind", ATTENTIONS)
def test_each_kind_begins_with_its_formula(kind):
    """In its own docstring, not in one that it inherits."""
    assert re.match(r"`[^`]+`", ATTENTIONS[kind].__dict__["__doc__"])


def test_atlas_adds_crossovers(tmp_path, monkeypatch):
    monkeypatch.setattr(kinds, "kind_row", lambda kind: [kind, *"123456"])
    (tmp_path / "runs.csv").write_text("task,kind,model,num_tokens,difficulty,seed,accuracy\nrank,none,m,64,,0,0.5")

    def row(kind: str, tokens: int, seconds: float, megabytes: float) -> AttentionRow:
        ratio = seconds / tokens**2
        return AttentionRow(kind, "N", "training", 32, tokens, 5, *[seconds] * 3, *[ratio] * 3, megabytes)

    rows = [row("softmax", 100, 1e4, 1), row("softmax", 400, 16e4, 4)]
    rows += [row("linear", 100, 2e4, 2), row("linear", 400, 8e4, 8)]
    page = kinds.kinds_page(tmp_path / "runs.csv", Table("a machine", "2026-01-31", "a command", rows))
    assert "2026-01-31; a machine." in page
    # Twice as slow at 100, twice as fast at 400.
    assert "| ahead of softmax from N = | training 200, memory never (2.00 at 400) |" in page
    assert "ahead of softmax" not in kinds.kinds_page(tmp_path / "runs.csv")


def test_scores_are_of_the_size_with_most_runs(tmp_path):
    rows = [
        *("recall,soft,isotropic,64,,0,0.5", "recall,soft,isotropic,64,,1,0.7", "recall,none,isotropic,64,,0,0.125"),
        *("recall,soft,isotropic,256,,0,0.9", "rank,soft,pyramid,64,4,0,0.25"),
    ]
    (tmp_path / "runs.csv").write_text("\n".join(["task,kind,model,num_tokens,difficulty,seed,accuracy", *rows]))
    assert kinds.gym_scores(tmp_path / "runs.csv") == {
        "soft": {"recall": (50, 70), "rank": (25,)},
        "none": {"recall": (12.5,)},
    }
