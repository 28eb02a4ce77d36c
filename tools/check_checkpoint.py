"""Say what files of weights are, and what is recorded of them.

python tools/check_checkpoint.py checkpoints/SOFT_Tiny.pth
"""

import argparse
import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> None:
    from soft_vit.models.check import describe_file

    parser = argparse.ArgumentParser(
        description="Say what files of weights are, without running anything in them; exit code 1 if one is refused."
    )
    parser.add_argument("files", nargs="+", metavar="FILE", help="a checkpoint of torch or safetensors")
    refused = False
    for file in parser.parse_args(argv).files:
        try:
            print(f"{file}: {' '.join(describe_file(file))}")
        except (ValueError, FileNotFoundError) as error:
            refused = True
            print(f"error: {file}: {error}", file=sys.stderr)
    if refused:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
