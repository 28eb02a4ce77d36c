"""Print the table of the gym's tasks, and draw examples with their answers: python tools/draw_gym_tasks.py"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from soft_vit.cli import command_line
from soft_vit.gym.drawing import draw_tasks, tasks_table
from soft_vit.weights.files import require_place

ROOT = Path(__file__).parents[1]


@command_line
def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "gym" / "tasks.png", help="(default: %(default)s)")
    args = parser.parse_args(argv)
    require_place(args.out)
    draw_tasks(args.out)
    print(tasks_table())


if __name__ == "__main__":
    main()
