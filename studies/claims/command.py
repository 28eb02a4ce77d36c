"""Check claims of the field, and print their table.

python -m studies claims --only 1 2

Findings are added to the JSON file --out; what is there stays. --table prints it and checks nothing.
"""

import argparse
import datetime
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks.timer import machine_description, use_threads
from soft_vit.weights.files import ensure_writable, write_atomically
from studies.claims import CLAIMS, check, entries_as_json, ledger_table, load_entries


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        "python -m studies claims", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", nargs="+", type=int, choices=sorted(CLAIMS), metavar="N", help="numbers of claims (default: all)"
    )
    parser.add_argument("--out", type=Path, default=Path("claims.json"), help="(default: %(default)s)")
    parser.add_argument("--table", action="store_true", help="print the ledger of --out alone")
    args = parser.parse_args(argv)
    entries = load_entries(args.out)
    if args.table:
        print(ledger_table(entries))
        return
    ensure_writable(args.out)
    use_threads(1)
    torch.manual_seed(0)
    for number in args.only or sorted(CLAIMS):
        print(f"{number}. {CLAIMS[number].text}", flush=True)
        entries[number] = check(number, datetime.date.today().isoformat(), machine_description())
        print(f"   {entries[number].verdict}: {entries[number].found}", flush=True)
        write_atomically(args.out, entries_as_json(entries).encode())
