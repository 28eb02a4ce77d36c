import re

import pytest
from documents import ROOT

from soft_vit.analysis.kind_pages import gym_scores, kinds_page
from soft_vit.layers import ATTENTIONS


@pytest.mark.parametrize("kind", ATTENTIONS)
def test_each_kind_begins_with_its_formula(kind):
    """In its own docstring, not in one that it inherits."""
    assert re.match(r"`[^`]+`", ATTENTIONS[kind].__dict__["__doc__"])


def test_page_is_what_the_tool_writes():
    page = (ROOT / "docs" / "kinds.md").read_text()
    assert kinds_page(ROOT / "docs" / "gym" / "results.csv") == page, "run python tools/write_docs.py"


def test_scores_are_of_the_size_with_most_runs(tmp_path):
    rows = [
        *("recall,soft,isotropic,64,,0,0.5", "recall,soft,isotropic,64,,1,0.7", "recall,none,isotropic,64,,0,0.125"),
        *("recall,soft,isotropic,256,,0,0.9", "rank,soft,pyramid,64,4,0,0.25"),
    ]
    (tmp_path / "runs.csv").write_text("\n".join(["task,kind,model,num_tokens,difficulty,seed,accuracy", *rows]))
    assert gym_scores(tmp_path / "runs.csv") == {
        "soft": {"recall": (50, 70), "rank": (25,)},
        "none": {"recall": (12.5,)},
    }
