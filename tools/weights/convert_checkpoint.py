"""Convert weights between the released layout, MMEngine's, timm's and safetensors, without changing a bit of them.

Nothing in a file is executed.

python tools/weights/convert_checkpoint.py SOFT_Tiny.pth soft_tiny.safetensors --to safetensors
python tools/weights/convert_checkpoint.py work_dirs/soft_tiny/epoch_300.pth soft_tiny.pth --to released --weights plain
"""

from collections.abc import Sequence

from soft_vit.cli import ArgumentParser, command_line


@command_line
def main(argv: Sequence[str]) -> None:
    from soft_vit.weights.save import LAYOUTS, convert

    parser = ArgumentParser(__doc__)
    parser.add_argument("source", metavar="IN", help="a checkpoint in any of the layouts")
    parser.add_argument("target", metavar="OUT", help="ends in .safetensors, or in .pth, .pt or .bin for other layouts")
    parser.add_argument("--to", dest="layout", choices=LAYOUTS, required=True)
    parser.add_argument("--weights", choices=("ema", "plain"), help="weights to take if IN holds both (default: ema)")
    parser.add_argument("--model", metavar="NAME", help="name of the timm model, if IN does not note it")
    for sentence in convert(**parser.arguments(argv)):
        print(sentence)


if __name__ == "__main__":
    main()
