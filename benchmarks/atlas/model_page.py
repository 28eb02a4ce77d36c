"""A page of the models' tables: images per second on each machine."""

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import NamedTuple

from benchmarks.atlas.models import FORMS, SIZES
from benchmarks.atlas.table import UNSTABLE, InferRow, TrainRow, read_table
from benchmarks.registry import SMALLEST
from soft_vit.text_tables import markdown_table

HEAD = """# Models of the atlas
Images per second of the smallest model of each family, as `python -m benchmarks atlas-models` measured them. Written by

```bash
python -m docs.generate
```

from the files that each section links, which have timm's columns, quartiles and commands. *best batch*: the fastest of
8, 16 and so on, up to the command's limit, in brackets; all else is one image. A star marks an unstable row, whose
quartiles lie more than 10 % of the median apart; an empty cell was not measured; where a model fails, its note in the
file says why. `+capped` is `max_bottleneck=(7, 7)`. [What the atlas shows](atlas.md) compares them.
"""


class Rate(NamedTuple):
    """One measurement of a model; images per second are None where it failed."""

    model: str
    size: str
    form: str
    batch_size: int
    images_per_second: float | None
    note: str


def models_page(folder: Path, link: str) -> str:
    """Markdown with a section for each machine whose tables of inference and training are in folder.

    link: what leads from the page to folder.
    """
    sections = [HEAD.rstrip()]
    for infer_path in sorted(folder.glob("models_infer-*.csv")):
        train_path = infer_path.with_name(infer_path.name.replace("infer", "train"))
        infer, train = read_table(infer_path, InferRow), read_table(train_path, TrainRow)
        of_mode = {"inference": _rates("infer", infer.rows), "training": _rates("train", train.rows)}
        measured = [rate for rates in of_mode.values() for rate in rates if rate.images_per_second]
        unstable = sum(rate.note == UNSTABLE for rate in measured)
        sections.append(
            f"## {infer.machine.partition(';')[0]}\n\n[Inference]({link}/{infer_path.name}), "
            f"[training]({link}/{train_path.name}); {infer.date}; {infer.machine}. {unstable} of {len(measured)} rows "
            "are unstable."
        )
        sections += [rates_table(mode, rates) for mode, rates in of_mode.items()]
    return "\n\n".join(sections) + "\n"


def rates_table(mode: str, rates: Sequence[Rate]) -> str:
    """A row for each model in the order of `SMALLEST`, and a column for each size, form and batch that was measured."""
    cells = {(rate.model, rate.size, rate.form, rate.batch_size > 1): _cell(rate) for rate in rates}
    measured = {case[1:] for case in cells}
    sizes = [f"{height}" if height == width else f"{height}x{width}" for height, width in SIZES]
    columns = [case for case in product(sizes, FORMS, (False, True)) if case in measured]
    models = [model for model in SMALLEST if any(rate.model == model for rate in rates)]
    rows = [[f"`{model}`", *(cells.get((model, *case), "") for case in columns)] for model in models]
    return markdown_table([mode, *(_title(*case) for case in columns)], rows)


def _rates(mode: str, rows: Sequence[InferRow] | Sequence[TrainRow]) -> list[Rate]:
    columns = ("img_size", "batch_size", "samples_per_sec")
    found = ((row, *(getattr(row, f"{mode}_{name}") for name in columns)) for row in rows)
    return [Rate(row.model, size, row.form, batch_size, rate, row.note) for row, size, batch_size, rate in found]


def _title(size: str, form: str, best_batch: bool) -> str:
    return ", ".join([size, *["compiled"] * (form == "compiled"), *["best batch"] * best_batch])


def _cell(rate: Rate) -> str:
    if rate.images_per_second is None:
        return "fails"
    star = "*" if rate.note == UNSTABLE else ""
    batch = f" ({rate.batch_size})" if rate.batch_size > 1 else ""
    return f"{rate.images_per_second:.3g}{star}{batch}"
