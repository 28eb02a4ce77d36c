"""Replace the attention of a trained model by others, and measure how much accuracy remains.

python -m studies linearise configs/linearise/linear_pico_shapes.py linear performer none

Trains the teacher, then the config once for each attention. Run a stopped command again to resume it.
"""

import json
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.report import Report
from benchmarks.timer import machine_description
from soft_vit.cli import ArgumentParser
from soft_vit.engine.config import resolve
from soft_vit.engine.resume.read import find_newest_checkpoint
from soft_vit.layers import ATTENTIONS, attention_class
from soft_vit.models import model_name
from soft_vit.text_tables import error_cell, markdown_table
from soft_vit.weights.files import ensure_writable
from studies.runs import add_run_options, train_each

TOP1 = "accuracy/top1"
# Share of the teacher's accuracy to reach, in percent.
AIM = 95


@dataclass
class LinearisedRow:
    """A run of a linearising config: top-1 in percent of the teacher and after each part of the run, or its error.

    share: last top-1 in percent of the teacher's. agreement, kl: with the teacher at the end, see `TeacherAgreement`.
    cpu_minutes: see `LineariseHook`.
    """

    attention: str
    seed: int
    teacher: float | None = None
    swap: float | None = None
    phase1: float | None = None
    phase2: float | None = None
    share: float | None = None
    agreement: float | None = None
    kl: float | None = None
    cpu_minutes: float | None = None
    error: str = ""


def compare_linearised(
    kinds: Sequence[str],
    config: str | Path,
    teacher_config: str | Path,
    *,
    seeds: Sequence[int] = (0,),
    work_dir: str | Path = "work_dirs",
    jobs: int = 1,
    options: dict[str, Any] | None = None,
    progress: bool = True,
) -> Iterator[list[LinearisedRow]]:
    """Train teacher_config, then `config` with each attention and seed, and yield all rows, in order, as runs end.

    Runs are in the folders `work_dir/<name of teacher_config>` and `work_dir/<name of config>/<model>_seed<n>`. A
    stopped run is resumed. A run that has ended is read from its log, and the first rows yielded are those.

    options: of `config`, by dotted name.

    Raises ValueError for an unknown attention, a teacher whose training fails and a config whose model is not named
    after an attention, and the errors of `train_each`.
    """
    for kind in kinds:
        attention_class(kind)
    cfg = resolve(config, options)
    found = re.fullmatch(r"[a-z_]+_(vit|pyramid)_(\w+)", cfg.model.get("model_name", ""))
    if found is None or "phase1_epochs" not in cfg.model:
        raise ValueError(f"config must be one of configs/linearise/, got {config}.")
    body, size = found.groups()
    names = {kind: model_name(kind, size) if body == "pyramid" else f"{kind}_vit_{size}" for kind in kinds}
    work_dir = Path(work_dir)
    teacher = _train_teacher(teacher_config, work_dir, progress)
    checkpoint = str(find_newest_checkpoint(work_dir / Path(teacher_config).stem))
    rows, runs = {}, {}
    for seed in seeds:
        for kind, name in names.items():
            folder = f"{Path(config).stem}/{name}_seed{seed}"
            rows[folder] = LinearisedRow(kind, seed, teacher)
            own = {"model.model_name": name, "model.teacher.checkpoint": checkpoint, "randomness.seed": seed}
            if not _read(rows[folder], work_dir / folder, cfg):
                runs[folder] = {**(options or {}), **own}
    yield list(rows.values())
    for folder, outcome in train_each(config, runs, work_dir=work_dir, jobs=jobs, resume="auto", progress=progress):
        if isinstance(outcome, Exception):
            rows[folder].error = error_cell(outcome)
        _read(rows[folder], work_dir / folder, cfg)
        yield list(rows.values())


def _train_teacher(config: str | Path, work_dir: Path, progress: bool) -> float:
    """Return top-1 of the teacher, after training it unless its run has ended."""
    folder = Path(config).stem
    last = resolve(config).train_cfg.max_epochs
    if last not in validations(work_dir / folder):
        for _, outcome in train_each(config, {folder: {}}, work_dir=work_dir, resume="auto", progress=progress):
            if isinstance(outcome, Exception):
                raise ValueError(f"Training the teacher {config} failed: {error_cell(outcome)}") from outcome
    return validations(work_dir / folder)[last][TOP1]


def validations(folder: Path) -> dict[int, dict[str, float]]:
    """Return the metrics of a run's validations by epoch, from all logs of a run that was resumed."""
    lines = [line for log in sorted(folder.glob("*/vis_data/scalars.json")) for line in log.read_text().splitlines()]
    # A killed run may have left its last line incomplete.
    entries = [json.loads(line) for line in lines if line.endswith("}")]
    return {entry["step"]: entry for entry in entries if entry["mode"] == "val"}


def _read(row: LinearisedRow, folder: Path, cfg: Any) -> bool:
    """Fill a row from the log of its run, and return whether the run has ended."""
    found = validations(folder)
    epochs = {"swap": 0, "phase1": cfg.model.phase1_epochs, "phase2": cfg.train_cfg.max_epochs}
    for name, epoch in epochs.items():
        setattr(row, name, found.get(epoch, {}).get(TOP1))
    last = found.get(epochs["phase2"])
    if last is None:
        return False
    row.share = 100 * last[TOP1] / row.teacher if row.teacher else None
    row.agreement, row.kl, row.cpu_minutes = last["teacher/agreement"], last["teacher/kl"], last["cpu_minutes"]
    return True


def linearised_table(rows: Sequence[LinearisedRow]) -> str:
    """Return a Markdown table. The cells of unfinished runs are empty."""

    def cells(row: LinearisedRow) -> list[str]:
        figures = [row.swap, row.phase1, row.phase2, row.share, row.agreement, row.cpu_minutes]
        reached = "" if row.share is None else "yes" if row.share >= AIM else "no"
        kl = "" if row.kl is None else f"{row.kl:.3f}"
        shown = ["" if figure is None else f"{figure:.1f}" for figure in figures]
        return [row.attention, str(row.seed), *shown[:4], reached, shown[4], kl, row.error or shown[5]]

    header = ["attention", "seed", "after swap (%)", "after phase 1 (%)", "after phase 2 (%)", "of the teacher (%)"]
    header += [f">= {AIM} %", "agreement (%)", "KL", "CPU minutes"]
    return markdown_table(header, [cells(row) for row in rows])


def main(argv: Sequence[str]) -> None:
    parser = ArgumentParser(__doc__, prog="python -m studies linearise")
    parser.add_argument("config", metavar="CONFIG", help="path of a config, whose model_name is replaced")
    teacher = "configs/linearise/softmax_pico_shapes.py"
    parser.add_argument("--teacher", default=teacher, metavar="CONFIG", help="(default: %(default)s)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], metavar="N", help="(default: 0)")
    add_run_options(parser, list(ATTENTIONS), work_dir="work_dirs", table="linearised")
    args = parser.parse_args(argv)
    out = args.out or args.work_dir / "linearised"
    ensure_writable(f"{out}.md")
    command = shlex.join(["python", "-m", "studies", "linearise", *argv])
    how = dict(seeds=args.seeds, work_dir=args.work_dir, jobs=args.jobs, options=args.cfg_options)
    for rows in compare_linearised(args.attentions, args.config, args.teacher, **how):
        case = f"{args.config}; teacher {rows[0].teacher:.1f} %"
        report = Report("Linearised models", case, [linearised_table(rows)], list(map(asdict, rows)))
        report.write(out, command, machine_description())
    print(report.page(command, machine_description()))
