"""Write generated images with annotations: `python tools/make_shapes.py data/shapes_coco --task coco`."""

import argparse
from collections.abc import Sequence

from soft_vit.data.shape_trees import TASKS, make_tree


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Write the generated shapes as a tree of files.")
    parser.add_argument("out", metavar="OUT", help="folder to make")
    parser.add_argument("--task", choices=TASKS, required=True, help="layout of the tree")
    parser.add_argument("--train", type=int, default=200, metavar="N", help="training images (default: 200)")
    parser.add_argument("--val", type=int, default=100, metavar="N", help="validation images (default: 100)")
    parser.add_argument(
        "--size", type=int, nargs="+", default=[256], metavar="PIXELS", help="one side, or height and width"
    )
    parser.add_argument("--seed", type=int, default=0, help="of all images (default: 0)")
    args = parser.parse_args(argv)
    if len(args.size) > 2:
        parser.error(f"--size has {len(args.size)} numbers; give one side, or height and width.")
    size = args.size[0] if len(args.size) == 1 else tuple(args.size)
    try:
        counts = make_tree(args.out, args.task, train=args.train, val=args.val, size=size, seed=args.seed)
    except (ValueError, OSError) as error:
        raise SystemExit(f"error: {error}") from None
    print(f"{args.out}: " + ", ".join(f"{count} {what}" for what, count in counts.items()))


if __name__ == "__main__":
    main()
