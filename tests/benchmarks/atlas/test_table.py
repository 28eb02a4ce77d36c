"""Tables that are written are read as they were; files with a mistake are refused."""

from dataclasses import replace

from benchmarks.atlas.check import check
from benchmarks.atlas.table import AttentionRow, Table, read_table, write_table
from soft_vit.layers import ATTENTIONS
from soft_vit.layers.choice import SHIPPED

ROW = AttentionRow("soft", "N", "training", 32, 784, 9, 0.5, 0.25, 0.75, 2.0, 1.5, 2.5, 3.0, "unstable")
SKIPPED = replace(
    ROW, tokens=3136, rounds=0, seconds=None, seconds_lower=None, seconds_upper=None, note="skipped: too, large"
)
TABLE = Table("a machine; torch 2.15", "2026-11-23", "python -m benchmarks atlas", [ROW, SKIPPED])


def test_round_trip(tmp_path):
    write_table(tmp_path / "atlas.csv", TABLE)
    assert read_table(tmp_path / "atlas.csv") == TABLE


def test_shipped_table_could_be_submitted():
    check(SHIPPED)
    assert {row.kind for row in read_table(SHIPPED).rows} <= ATTENTIONS.keys()
