"""The table of claims: its page, its command, and findings that are reproduced."""

import pytest
from documents import ROOT, run_tool

from studies.claims import CLAIMS, load_entries

ENTRIES = load_entries(ROOT / "studies" / "results" / "claims.json")
# Checks without timing or training; the slow ones take a second or more.
MATHEMATICS = [1, 2, 5, 8, 16, 17, 24, 29, 31, 32, 33, 34]
MATHEMATICS += [pytest.param(number, marks=pytest.mark.slow) for number in (10, 19, 22, 25)]


@pytest.mark.parametrize("number", MATHEMATICS)
def test_finding_is_reproduced(number):
    assert CLAIMS[number].check().verdict == ENTRIES[number]["verdict"]


def test_tool_adds_to_what_is_there(tmp_path, capsys):
    command = f"python -m studies claims --out {tmp_path}/claims.json"
    run_tool(command, ["--only", "17"])
    run_tool(command, ["--only", "14", "33"])
    assert load_entries(tmp_path / "claims.json").keys() == {14, 17, 33}
    capsys.readouterr()
    run_tool(command, ["--table"])
    assert capsys.readouterr().out.count("\n| ") == 3
