"""Write the pages, tables and pictures that are generated from classes and from measured tables.

python -m docs.generate

Models without a row in docs/zoo.csv are counted, which takes some seconds each. Delete a row to count its model again.
"""

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks import deploy, large
from benchmarks.atlas.table import read_table
from benchmarks.published import published
from docs.generate.cost import cost_curves
from docs.generate.face import measured_table, runtimes_table
from docs.generate.gym import scores_map, tasks_table
from docs.generate.kinds import choices_table, gym_means, kinds_page
from docs.generate.masks import kinds_table, places_table
from docs.generate.pretrain import pretrain_chart, pretrain_tables
from docs.generate.real import bags_table, real_tables, students_chart
from docs.generate.scatter import read_rates, scatter, speed_table
from docs.generate.weights import metafile, readme_table
from docs.generate.zoo import COUNTED, count_model, counted_name, read_counts, zoo_table
from soft_vit.cli import ArgumentParser, command_line
from soft_vit.layers.choice import SHIPPED
from soft_vit.text_tables import csv_table, read_csv
from soft_vit.weights import load_index
from soft_vit.weights.files import write_atomically
from studies.claims import claims_table, load_entries
from studies.gym.report import off_and_share, read_cells, report, table
from studies.real import runs
from studies.timm_models import models_tables, read_rows

ROOT = Path(__file__).parents[2]
RESULTS, STUDIES = ROOT / "benchmarks" / "results", ROOT / "studies" / "results"
GYM = STUDIES / "gym" / "results.csv"
ENTRIES = load_index()
SIZES = ("224 x 224", "512 x 512", "800 x 1333")
SPEEDS = {size: RESULTS / f"published_{size.replace(' ', '')}_cpu.csv" for size in SIZES}
SHOWN = ("soft_tiny", "care_s2", "mlla_tiny", "pvt_v2_b1", "deit_small_patch16_224", "swin_tiny_patch4_window7_224")
"""The models of the table of performance."""


def counts() -> dict[str, dict[str, str]]:
    """Return the rows of docs/zoo.csv by name, after counting the missing ones."""
    known = read_counts(ROOT / "docs" / "zoo.csv")
    return {name: known.get(name) or count_model(entry) for entry in ENTRIES if (name := counted_name(entry))}


def head(name: str, end: str) -> str:
    """Return the text of a page above the generated part, which begins with `end`."""
    return (ROOT / name).read_text().partition(end)[0]


def face_table() -> str:
    """Return the table of softmax and what replaces it."""
    return measured_table(SPEEDS["800 x 1333"], RESULTS / "large_cpu.csv", published())


def runtimes_speed(size: str) -> str:
    """Return the table of speeds in runtimes at a size; LiteRT is measured in an environment of its own."""
    files = RESULTS.glob(f"deploy*_{size.replace(' ', '')}_cpu.csv")
    return deploy.rates_table([row for file in sorted(files) for row in read_csv(file)], size)


PAGES: dict[str, Callable[[], str]] = {
    "model-index.yml": lambda: metafile(ENTRIES),
    "docs/zoo.csv": lambda: csv_table(COUNTED, [row.values() for row in counts().values()]),
    "soft_vit/layers/gym.csv": lambda: gym_means(GYM),
    "docs/kinds.md": lambda: head("docs/kinds.md", "Measured for heads") + kinds_page(GYM, read_table(SHIPPED)),
    "docs/gym/results.md": lambda: report(read_cells(GYM.read_text()), head("docs/gym/results.md", "\n\n## Accuracy")),
    "docs/gym/scores.svg": lambda: scores_map(read_cells(GYM.read_text())),
    "docs/pretrain.md": lambda: head("docs/pretrain.md", "| images |") + pretrain_tables(runs.load("pretrain")),
    "docs/real.md": lambda: head("docs/real.md", "### ") + real_tables(),
    "docs/images/pretrain.svg": lambda: pretrain_chart(runs.load("pretrain")),
    "docs/images/real_students.svg": lambda: students_chart(runs.load("linearise")),
    "docs/images/scatter.svg": lambda: scatter({size: SPEEDS[size] for size in SIZES[::2]}, published()),
    "docs/images/resolution.svg": lambda: cost_curves(RESULTS / "resolution_cpu.md"),
}
"""Files that are generated as a whole."""
TABLES: dict[str, Callable[[], list[str]]] = {
    "README.md": lambda: [face_table(), runtimes_table()],
    "docs/index.md": lambda: [face_table()],
    "checkpoints/README.md": lambda: [readme_table(ENTRIES)],
    "docs/anywhere.md": lambda: [kinds_table()],
    "docs/bags.md": lambda: [bags_table()],
    "docs/choose.md": lambda: [choices_table()],
    "docs/claims.md": lambda: [claims_table(load_entries(STUDIES / "claims.json"))],
    "docs/deploy.md": lambda: [runtimes_speed(size) for size in SIZES],
    "docs/gym/README.md": lambda: [table(read_cells(GYM.with_name("soft.csv").read_text()), off_and_share)],
    "docs/gym/tasks.md": lambda: [tasks_table()],
    "docs/large.md": lambda: [large.large_table(read_csv(RESULTS / "large_cpu.csv"))],
    "docs/performance.md": lambda: [speed_table(SHOWN, SPEEDS, published())],
    "docs/timm.md": lambda: models_tables(list(read_rows().values())),
    "docs/use.md": lambda: [places_table()],
    "docs/zoo_table.md": lambda: [zoo_table(ENTRIES, counts(), read_rates(SPEEDS["224 x 224"]))],
}
"""Pages with tables that are generated."""


def generated(name: str) -> str:
    """Return the text of a file by its path in the repository. Each table replaces the one with the same header."""
    if name in PAGES:
        return PAGES[name]()
    text = (ROOT / name).read_text()
    for new in TABLES[name]():
        header = new.partition("\n")[0]
        if header not in text:
            raise ValueError(f"{name} must have a table with the header {header}")
        old = re.escape(header) + r"\n(\|.*\n)*"
        text = re.sub(old, lambda _, new=new: f"{new.rstrip()}\n", text, count=1)
    return text


@command_line
def main(argv: Sequence[str]) -> None:
    parser = ArgumentParser(__doc__, prog="python -m docs.generate")
    parser.add_argument("--out", type=Path, default=ROOT, metavar="FOLDER", help="(default: the repository)")
    args = parser.parse_args(argv)
    for name in (*PAGES, *TABLES):
        write_atomically(args.out / name, generated(name).encode())
        print(f"Written: {args.out / name}")
