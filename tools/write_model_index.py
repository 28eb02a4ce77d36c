"""Write model-index.yml from checkpoints/index.json, and print the table of weights for the READMEs.

python tools/write_model_index.py
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from soft_vit.cli import command_line
from soft_vit.weights import load_index
from soft_vit.weights.files import write_atomically
from soft_vit.weights.tables import metafile, readme_table

ROOT = Path(__file__).parents[1]


@command_line
def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--index", type=Path, default=ROOT / "checkpoints" / "index.json", help="(default: %(default)s)"
    )
    parser.add_argument("--out", type=Path, default=ROOT / "model-index.yml", help="(default: %(default)s)")
    args = parser.parse_args(argv)
    entries = load_index(args.index)
    write_atomically(args.out, metafile(entries).encode())
    print(readme_table(entries), end="")


if __name__ == "__main__":
    main()
