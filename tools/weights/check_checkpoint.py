"""Identify the model of files of weights, and verify recorded files by their digest.

Nothing in a file is executed. The exit code is 1 if a file is rejected.

python tools/weights/check_checkpoint.py checkpoints/SOFT_Tiny.pth
"""

import sys
from collections.abc import Sequence

from soft_vit.cli import ArgumentParser, command_line
from soft_vit.models.identify import describe_file


@command_line
def main(argv: Sequence[str]) -> None:
    parser = ArgumentParser(__doc__)
    parser.add_argument("files", nargs="+", metavar="FILE", help="a checkpoint of PyTorch or safetensors")
    rejected = False
    for file in parser.parse_args(argv).files:
        try:
            print(f"{file}: {' '.join(describe_file(file))}")
        except (ValueError, FileNotFoundError) as error:
            rejected = True
            sentence = str(error) if file in str(error) else f"{file}: {error}"
            print(f"error: {sentence}", file=sys.stderr)
    if rejected:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
