"""Check claims of the field, and print their table.

python -m studies claims --only 1 2

Each finding is added to the JSON file --out, or replaces its earlier one. --table only prints the findings of --out.
"""

import datetime
from collections.abc import Sequence
from pathlib import Path

import torch

from soft_vit.cli import ArgumentParser
from soft_vit.probe.cost import machine_description
from soft_vit.weights.files import ensure_writable, write_atomically
from studies.claims import CLAIMS, check, claims_table, entries_as_json, load_entries


def main(argv: Sequence[str]) -> None:
    parser = ArgumentParser(__doc__, prog="python -m studies claims")
    parser.add_argument(
        "--only", nargs="+", type=int, choices=sorted(CLAIMS), metavar="N", help="numbers of claims (default: all)"
    )
    parser.add_argument("--out", type=Path, default=Path("claims.json"), help="(default: %(default)s)")
    parser.add_argument("--table", action="store_true", help="only print the findings of --out")
    args = parser.parse_args(argv)
    entries = load_entries(args.out)
    if args.table:
        print(claims_table(entries))
        return
    ensure_writable(args.out)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    for number in args.only or sorted(CLAIMS):
        print(f"{number}. {CLAIMS[number].text}", flush=True)
        entries[number] = check(number, datetime.date.today().isoformat(), machine_description())
        print("   {verdict}: {found}".format(**entries[number]), flush=True)
        write_atomically(args.out, entries_as_json(entries).encode())
