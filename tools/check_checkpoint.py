"""Say what files of weights are, and what is recorded of them.

python tools/check_checkpoint.py checkpoints/SOFT_Tiny.pth
"""

from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> None:
    from soft_vit.models.check import main as check

    check(argv)


if __name__ == "__main__":
    main()
