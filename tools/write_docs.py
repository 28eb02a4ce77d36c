"""Write the pages that come from classes and measured tables: kinds.md, zoo_table.md and its zoo.csv, atlas_models.md

python tools/write_docs.py

Models that docs/zoo.csv lacks are counted, which takes some seconds each; delete a row to have its model counted again.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from tqdm import tqdm

from benchmarks.atlas.model_page import models_page
from benchmarks.atlas.table import InferRow, Row, read_table
from soft_vit.analysis.kind_pages import kinds_page
from soft_vit.analysis.zoo_table import atlas_rates, count_model, read_counts, zoo_page
from soft_vit.cli import command_line
from soft_vit.layers.choice import SHIPPED
from soft_vit.text_tables import rows_as_csv
from soft_vit.weights import load_index
from soft_vit.weights.files import write_atomically

ROOT = Path(__file__).parents[1]
DOCS, RESULTS = ROOT / "docs", ROOT / "benchmarks" / "results"


@command_line
def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=DOCS, metavar="FOLDER", help="(default: docs)")
    args = parser.parse_args(argv)
    entries = load_index()
    counts = read_counts(DOCS / "zoo.csv")
    missing = {entry.model: entry for entry in entries if entry.model not in counts}
    for model, entry in tqdm(missing.items(), desc="models", disable=not missing):
        counts[model] = count_model(entry)
    rates: dict[str, float] = {}
    for path in RESULTS.glob("models_infer-*-cpu-epyc.csv"):
        rates |= atlas_rates(read_table(path, InferRow))
    pages = {
        "zoo.csv": rows_as_csv([counts[model] for model in dict.fromkeys(entry.model for entry in entries)]),
        "kinds.md": kinds_page(DOCS / "gym" / "results.csv", read_table(SHIPPED, Row)),
        "zoo_table.md": zoo_page(entries, counts, rates),
        "atlas_models.md": models_page(RESULTS, "../benchmarks/results"),
    }
    for name, page in pages.items():
        write_atomically(args.out / name, page.encode())
        print(f"Written: {args.out / name}")


if __name__ == "__main__":
    main()
