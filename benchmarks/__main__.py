"""Measure speed and memory: python -m benchmarks COMMAND ...

Every command prints a page. --out NAME writes it to NAME.md, and the figures of some commands to NAME.csv. The atlas
and the report of a GPU write into a folder after each part; the same command continues a stopped run.
benchmarks/README.md lists the command of each table that the documentation shows.
"""

import argparse
import shlex
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import torch

from benchmarks.memory import is_out_of_memory
from soft_vit.cli import ArgumentParser, add_device_option, command_line
from soft_vit.probe.cost import machine_description
from soft_vit.probe.load import require_device
from soft_vit.weights.files import ensure_writable

COMMANDS = ("models", "operator", "attentions", "packed", "memory", "resolution", "large", "data", "deploy")
COMMANDS += ("atlas.measure", "gpu")
"""Modules with `add_options(parser)`, and `run(args)`, which returns a `Report`, or None if it wrote files itself."""


def make_parser() -> argparse.ArgumentParser:
    parser = ArgumentParser(__doc__, prog="python -m benchmarks")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name in COMMANDS:
        module = import_module(f"benchmarks.{name}")
        about = dict(help=module.__doc__.partition("\n")[0], description=module.__doc__)
        of_command = commands.add_parser(name.partition(".")[0], **about)
        module.add_options(of_command)
        add_device_option(of_command)
        of_command.add_argument("--threads", type=int, help="CPU threads (default: all)")
        of_command.add_argument("--out", type=Path, metavar="NAME", help="where results are written")
        of_command.set_defaults(run=module.run)
    return parser


@command_line
def main(argv: Sequence[str]) -> None:
    args = make_parser().parse_args(argv)
    args.command = shlex.join(["python", "-m", "benchmarks", *argv])
    if args.threads is not None:
        torch.set_num_threads(args.threads)
    require_device(args.device)
    out = args.out and args.out.with_suffix("" if args.out.suffix in (".md", ".csv") else args.out.suffix)
    if out:
        ensure_writable(f"{out}.md")
    try:
        report = args.run(args)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        raise ValueError(f"inputs must fit into the memory of {args.device}; give fewer or smaller ones.") from error
    if report is not None:
        machine = machine_description(args.device)
        print(report.page(args.command, machine))
        if out:
            report.write(out, args.command, machine)


if __name__ == "__main__":
    main()
