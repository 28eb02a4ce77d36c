import re

from documents import ROOT

from soft_vit.analysis.zoo_table import count_model, cpu_rates, read_counts, zoo_page
from soft_vit.weights import ENTRIES, load_index

COUNTS = read_counts(ROOT / "docs" / "zoo.csv")


def test_page_is_what_the_tool_writes():
    rates = cpu_rates(ROOT / "tools" / "benchmark_results" / "cpu_2_cores.csv")
    assert rates.keys() >= {"soft_tiny", "soft_norm_tiny"}
    page = (ROOT / "docs" / "zoo_table.md").read_text()
    assert zoo_page(load_index(), COUNTS, rates) == page, "run python tools/write_docs.py"


def test_counts_are_those_of_the_models():
    assert COUNTS.keys() == {entry.model for entry in ENTRIES.values()}
    for name in ("soft_pico.shapes", "soft_plus_pico.tiles"):
        assert count_model(ENTRIES[name]) == COUNTS[ENTRIES[name].model]


def test_softmax_is_where_the_ledger_finds_it():
    """The ledger looks for softmax in the exported graph of one model of each family."""
    ledger = (ROOT / "docs" / "softmax.md").read_text().partition("## Other families\n")[2].partition("\n## ")[0]
    compared = 0
    for line in ledger.splitlines()[2:]:
        name, *cells = (cell.strip() for cell in line.split("|")[1:-1])
        model, stages = name.strip("*"), [cell for cell in cells[:4] if cell]
        if model in COUNTS:
            expected = [str(number) for number, cell in enumerate(stages, 1) if not cell.startswith("none")]
            assert re.findall(r"\d+", COUNTS[model].softmax) == expected, model
            compared += 1
    assert compared > 10
