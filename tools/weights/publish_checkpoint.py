"""Publish the weights of a checkpoint as safetensors, with a model card, an index entry and a Hugging Face repository.

python tools/weights/publish_checkpoint.py work_dirs/soft_pico_shapes/epoch_5.pth published --tag mine --licence mit \\
    --metric top1=97.7 --dataset "generated shapes"
python tools/weights/publish_checkpoint.py FILE published --tag mine --licence mit --hf-dir hub --push OWNER/NAME
"""

from collections.abc import Sequence

from soft_vit.cli import ArgumentParser, command_line


@command_line
def main(argv: Sequence[str]) -> None:
    from soft_vit.weights.publish import parse_metric, publish

    parser = ArgumentParser(__doc__)
    parser.add_argument("source", metavar="IN", help="a checkpoint, as for tools/weights/convert_checkpoint.py")
    parser.add_argument("out_dir", metavar="OUT_DIR", help="for the weights, the model card and index.json")
    parser.add_argument("--tag", required=True, help="who trained the weights and on what, such as fudan_in1k")
    parser.add_argument("--licence", required=True, help="in timm's spelling, such as mit")
    parser.add_argument("--model", metavar="NAME", help="name of the timm model, if IN does not note it")
    parser.add_argument("--weights", choices=("ema", "plain"), help="weights to take if IN holds both (default: ema)")
    parser.add_argument("--metric", action="append", default=[], metavar="NAME=VALUE", help="such as top1=97.7")
    parser.add_argument("--dataset", default="imagenet-1k", help="dataset of the metrics")
    parser.add_argument("--measured-by", default="tools/test.py", help="command that measured the metrics")
    parser.add_argument("--config", metavar="FILE", help="training config for the entry, such as configs/soft_tiny.py")
    for name, example in (("mean", "0.485 0.456 0.406"), ("std", "0.229 0.224 0.225")):
        what = f"{name} of the image channels, such as {example}"
        parser.add_argument(f"--{name}", type=float, nargs="+", metavar="X", help=what)
    parser.add_argument("--hf-dir", metavar="FOLDER", help="also write a Hugging Face repository there")
    parser.add_argument("--push", dest="repo", metavar="OWNER/NAME", help="push to this Hugging Face repository")
    arguments = parser.arguments(argv)
    texts, *measured = (arguments.pop(name) for name in ("metric", "dataset", "measured_by"))
    metrics = [parse_metric(text, *measured) for text in texts]
    for sentence in publish(**arguments, metrics=metrics):
        print(sentence)


if __name__ == "__main__":
    main()
