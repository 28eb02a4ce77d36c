"""Write the page and the table of a report on a GPU, from what benchmarks/gpu_report.sh has measured so far."""

import argparse
import re
from collections.abc import Iterable, Mapping
from datetime import date
from pathlib import Path

import torch

from soft_vit.ops.soft.triton.support import interpreter_unavailable_reason
from soft_vit.probe.cost import machine_description
from soft_vit.text_tables import csv_table, markdown_table, read_csv
from soft_vit.weights.files import write_atomically

FUSED, EAGER, SOFTMAX = "newton-triton", "newton-eager", "softmax"
# Lines shown of the output of a part that failed.
TAIL = 40

Row = Mapping[str, str]


def of_floor(row: Row) -> float:
    """Return the least time of an operator, to move its tensors at the speed of a copy, in percent of its time.

    Forward reads q and v (and k, which in softmax-free attention is q), and writes x. Between the passes dx is written.
    Backward reads the inputs and dx, and writes gradients of the inputs.
    """
    batch, heads, dim, _ = map(int, re.findall(r"\d+", row["case"]))
    inputs = 3 if row["operator"] in (SOFTMAX, "linear") else 2
    tensors = inputs + 1 if row["direction"] == "forward" else 3 * inputs + 3
    compulsory = tensors * 2 * batch * heads * dim * int(row["tokens"])
    return 100 * compulsory / float(row["bandwidth_gb_per_s"]) / 1e6 / float(row["median_ms"])


def fused_table(rows: Iterable[Row]) -> str:
    """Return how many times as fast the fused form is as eager and as softmax, and its share of `of_floor`."""
    timed = {(row["operator"], row["direction"], int(row["tokens"])): row for row in rows if row["median_ms"]}
    lines = []
    for (form, direction, tokens), row in timed.items():
        if form == FUSED:
            others = [timed.get((other, direction, tokens)) for other in (EAGER, SOFTMAX)]
            ratios = [f"{float(other['median_ms']) / float(row['median_ms']):.3g}" if other else "" for other in others]
            lines.append([tokens, direction, *ratios, f"{of_floor(row):.0f}"])
    return markdown_table(["N", "pass", "times as fast as eager", "as softmax", "% of the bandwidth floor"], lines)


def machine(dry: bool) -> str:
    """Describe the measured machine. ValueError without a GPU, or without an interpreter for a dry run."""
    if dry and (reason := interpreter_unavailable_reason()):
        raise ValueError(f"The dry run {reason}; the run on a GPU does not need it.")
    if not dry and not torch.cuda.is_available():
        raise ValueError("torch must see an NVIDIA GPU; run this on a machine with one, or try it with --dry.")
    import triton

    words = f"{machine_description('cpu' if dry else 'cuda')}, triton {triton.__version__}, CUDA {torch.version.cuda}"
    return f"{words}; dry run, whose numbers mean nothing" if dry else f"{torch.cuda.device_count()} x {words}"


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(out=Path("work_dirs/gpu"))
    parser.add_argument("--dry", action="store_true", help="tiny sizes on a CPU, kernels in Triton's interpreter")
    parser.add_argument("--check", action="store_true", help="only check that the folder is of this machine")
    parser.add_argument("--final", action="store_true", help="end with exit code 1 if a part is not done")


def page(head: str, states: Mapping[str, str], logs: Mapping[str, list[str]], figures: Mapping[str, list[Row]]) -> str:
    """Return the report in Markdown, without the pages of its parts; states, logs and figures are by name of a part."""
    operators = [row for rows in figures.values() for row in rows if "operator" in row]
    copies = dict.fromkeys(f"{float(row['bandwidth_gb_per_s']):.3g}" for row in operators)
    parts = [[name, state, logs[name][-1].strip("= ") * name.startswith("tests")] for name, state in states.items()]
    blocks = [
        f"# GPU report\n\n{head}",
        f"## Fused form\n\nThe floor is the time in which a copy moves the tensors of N tokens, inputs, results and "
        f"gradients, each once. A copy in memory moves {', '.join(copies)} GB/s, read and written. Bottleneck tokens "
        f"are given, and their sampling is not timed.\n\n{fused_table(operators)}",
        f"## Parts\n\n{markdown_table(['part', 'state', 'last line of tests'], parts)}",
    ]
    for name, state in states.items():
        if not state.startswith("done"):
            lines = "\n".join(logs[name][-TAIL:])
            blocks.append(f"## {name}: {state}\n\n~~~\n{lines}\n~~~")
    return "\n\n".join(blocks) + "\n"


def run(args: argparse.Namespace) -> None:
    """Write report.md and report.csv."""
    out, here = args.out, machine(args.dry)
    known = out / "machine.txt"
    if known.exists() and known.read_text() != here:
        raise ValueError(f"{out} must hold a report of {here}, got {known.read_text()}; give another folder.")
    write_atomically(known, here.encode())
    if args.check:
        return
    paths = sorted(out.glob("*.state"), key=lambda path: path.stat().st_mtime)
    states = {path.stem: path.read_text().strip() for path in paths}
    logs = {path.stem: (path.with_suffix(".log").read_text(errors="replace").splitlines() or [""]) for path in paths}
    figures = {path.stem: read_csv(table) for path in paths if (table := path.with_suffix(".csv")).exists()}
    command = f"benchmarks/gpu_report.sh OUT{' --dry' * args.dry}"
    head = f"{date.today().isoformat()}; {here}\n\nMade by `{command}`; the same command runs what is not done."
    pages = [f"\n#{(out / f'{name}.md').read_text()}" for name in figures]
    write_atomically(out / "report.md", "".join([page(head, states, logs, figures), *pages]).encode())
    every = [{"part": name, **row} for name, rows in figures.items() for row in rows]
    columns = list(dict.fromkeys(column for row in every for column in row))
    text = csv_table(columns, [[row.get(column) for column in columns] for row in every])
    write_atomically(out / "report.csv", text.encode())
    if args.final:
        print(f"Written: report.md and report.csv in {out}.")
        if undone := [name for name, state in states.items() if not state.startswith("done")]:
            raise ValueError(f"{', '.join(undone)}: not done; the report has their output. Run the command again.")
