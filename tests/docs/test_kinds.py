import re

import pytest

from benchmarks.atlas.table import AttentionRow, Table
from docs.generate import kinds
from soft_vit.layers import ATTENTIONS


@pytest.mark.parametrize("kind", ATTENTIONS)
def test_each_kind_begins_with_its_formula(kind):
    """In its own docstring, not in an inherited one."""
    assert re.match(r"`[^`]+`", ATTENTIONS[kind].__dict__["__doc__"])


def test_atlas_adds_crossovers(tmp_path, monkeypatch):
    monkeypatch.setattr(kinds, "kind_row", lambda kind: [kind, *"123456"])
    (tmp_path / "runs.csv").write_text(
        "task,kind,model,num_tokens,difficulty,seed,accuracy\nrank,linear,m,64,,0,0.5\nrank,linear,m,64,,1,0.7"
    )

    def row(kind: str, tokens: int, seconds: float, megabytes: float) -> AttentionRow:
        ratio = seconds / tokens**2
        return AttentionRow(kind, "N", "training", 32, tokens, 5, *[seconds] * 3, *[ratio] * 3, megabytes)

    rows = [row("softmax", 100, 1e4, 1), row("softmax", 400, 16e4, 4)]
    rows += [row("linear", 100, 2e4, 2), row("linear", 400, 8e4, 8)]
    page = kinds.kinds_page(tmp_path / "runs.csv", Table("a machine", "2026-01-31", "a command", rows))
    assert "2026-01-31; a machine." in page
    assert "| gym | rank 60.0 ± 14.1 |" in page
    # Twice as slow at 100, twice as fast at 400.
    assert "| ahead of softmax from N = | training 200, memory never (2.00 at 400) |" in page
    assert page.count("ahead of softmax") == 1
