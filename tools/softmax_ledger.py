"""Write where softmax is in each model, stage by stage, and how attention grows: docs/softmax.md

python tools/softmax_ledger.py
python tools/softmax_ledger.py soft_tiny soft_tiny_pure --out ledger.md
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import timm
import torch

from soft_vit.analysis.softmax_ledger import ledger_page, ledgers, model_groups
from soft_vit.cli import command_line
from soft_vit.models.names import require_known
from soft_vit.weights.files import require_place, write_atomically

ROOT = Path(__file__).parents[1]


@command_line
def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL", help="timm models (default: all of this package)")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "softmax.md", help="(default: docs/softmax.md)")
    args = parser.parse_args(argv)
    for name in args.models:
        require_known(name)
    require_place(args.out)
    groups = {"Models": (args.models, {})} if args.models else model_groups()
    tables = {title: ledgers(names, **options) for title, (names, options) in groups.items()}
    page = ledger_page(tables, f"torch {torch.__version__}, timm {timm.__version__}")
    write_atomically(args.out, page.encode())
    print(f"Written: {args.out}")
    for _, errors in tables.values():
        for name, error in errors.items():
            print(f"Not measured: {name} ({error})")


if __name__ == "__main__":
    main()
