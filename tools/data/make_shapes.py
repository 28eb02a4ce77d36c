"""Write generated images with annotations: `python tools/data/make_shapes.py data/shapes_coco --task coco`."""

from collections.abc import Sequence

from soft_vit.cli import ArgumentParser, add_img_size_option, command_line
from soft_vit.data.demo.trees import TASKS, make_tree


@command_line
def main(argv: Sequence[str]) -> None:
    parser = ArgumentParser(__doc__)
    parser.add_argument("out", metavar="OUT", help="folder to create")
    parser.add_argument("--task", choices=TASKS, required=True, help="layout of the annotations")
    parser.add_argument("--train", type=int, default=200, metavar="N", help="training images (default: 200)")
    parser.add_argument("--val", type=int, default=100, metavar="N", help="validation images (default: 100)")
    add_img_size_option(parser, default=(256, 256))
    parser.add_argument("--seed", type=int, default=0, help="seed of the images (default: 0)")
    args = parser.parse_args(argv)
    counts = make_tree(args.out, args.task, train=args.train, val=args.val, size=args.img_size, seed=args.seed)
    print(f"{args.out}: " + ", ".join(f"{count} {what}" for what, count in counts.items()))


if __name__ == "__main__":
    main()
