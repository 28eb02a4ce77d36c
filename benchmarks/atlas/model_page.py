"""A page of the models' tables: images per second on each machine."""

from collections.abc import Sequence
from itertools import product
from pathlib import Path

from benchmarks.atlas.models import FORMS, SIZES
from benchmarks.atlas.table import UNSTABLE, ModelRow, read_table
from benchmarks.registry import SMALLEST
from benchmarks.timer import MODES
from soft_vit.text_tables import markdown_table

HEAD = """# Models of the atlas
Images per second of the smallest model of each family, as `python -m benchmarks atlas-models` measured them. Written by

```bash
python -m docs.generate
```

from the files that each section links, which have timm's columns, quartiles and commands. *best batch*: the fastest of
8, 16 and so on, up to the command's limit, in brackets; all other columns are of one image. A star marks an unstable
row, whose quartiles lie more than 10 % of the median apart; an empty cell was not measured; a model that fails has a
note in the file with the error. `+capped` is `max_bottleneck=(7, 7)`. [What the atlas shows](atlas.md) compares them.
"""


def models_page(folder: Path, link: str) -> str:
    """Return Markdown with a section for each machine whose tables of inference and training are in folder.

    link: the path from the page to folder.
    """
    sections = [HEAD.rstrip()]
    for infer_path in sorted(folder.glob("models_infer-*.csv")):
        train_path = infer_path.with_name(infer_path.name.replace("infer", "train"))
        infer, train = map(read_table, (infer_path, train_path))
        measured = [row for row in (*infer.rows, *train.rows) if row.samples_per_sec]
        unstable = sum(row.note == UNSTABLE for row in measured)
        sections.append(
            f"## {infer.machine.partition(';')[0]}\n\n[Inference]({link}/{infer_path.name}), "
            f"[training]({link}/{train_path.name}); {infer.date}; {infer.machine}. {unstable} of {len(measured)} rows "
            "are unstable."
        )
        sections += [rates_table(mode, table.rows) for mode, table in zip(MODES, (infer, train), strict=True)]
    return "\n\n".join(sections) + "\n"


def rates_table(mode: str, rows: Sequence[ModelRow]) -> str:
    """Return a row for each model in the order of `SMALLEST`, and a column for each size, form and batch measured."""
    cells = {(row.model, row.img_size, row.form, row.batch_size > 1): _cell(row) for row in rows}
    measured = {case[1:] for case in cells}
    sizes = [f"{height}" if height == width else f"{height}x{width}" for height, width in SIZES]
    columns = [case for case in product(sizes, FORMS, (False, True)) if case in measured]
    models = [model for model in SMALLEST if any(case[0] == model for case in cells)]
    lines = [[f"`{model}`", *(cells.get((model, *case), "") for case in columns)] for model in models]
    return markdown_table([mode, *(_title(*case) for case in columns)], lines)


def _title(size: str, form: str, best_batch: bool) -> str:
    return ", ".join([size, *["compiled"] * (form == "compiled"), *["best batch"] * best_batch])


def _cell(row: ModelRow) -> str:
    if row.samples_per_sec is None:
        return "fails"
    batch = f" ({row.batch_size})" if row.batch_size > 1 else ""
    return f"{row.samples_per_sec:.3g}{'*' * (row.note == UNSTABLE)}{batch}"
