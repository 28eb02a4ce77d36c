"""Check claims of the field, and print their table.

python -m studies claims --only 1 2

Each finding is added to the JSON file --out, or replaces its earlier one. --table only prints the findings of --out.
"""

import json
import time
from collections.abc import Sequence
from datetime import date
from pathlib import Path

import torch

from soft_vit.cli import ArgumentParser
from soft_vit.probe.cost import machine_description
from soft_vit.weights.files import ensure_writable, write_atomically
from studies.claims import CLAIMS, claims_table, load_entries


def main(argv: Sequence[str]) -> None:
    parser = ArgumentParser(__doc__, prog="python -m studies claims")
    parser.add_argument("--only", nargs="+", type=int, choices=sorted(CLAIMS), metavar="N", help="(default: all)")
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
        began = time.process_time()
        entry = CLAIMS[number].check()._asdict()
        entry |= {"cpu_seconds": round(time.process_time() - began, 1), "date": date.today().isoformat()}
        entries[number] = {**entry, "machine": machine_description()}
        print("   {verdict}: {found}".format(**entry), flush=True)
        write_atomically(args.out, (json.dumps(dict(sorted(entries.items())), indent=1) + "\n").encode())
