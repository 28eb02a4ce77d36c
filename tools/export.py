"""Write a model as ONNX, torch.export or TorchScript, verified against the model itself.

python tools/export.py soft_tiny --checkpoint FILE --format onnx -o soft_tiny.onnx
python tools/export.py --config CONFIG --checkpoint FILE --format onnx --int8 -o soft_pico_int8.onnx
python tools/export.py soft_tiny --features 1 2 3 --dynamic-size --format torch_export -o backbone.pt2
"""

import argparse
import os
from collections.abc import Sequence

# Read when torch is first imported; tools/train.py says why.
os.environ.setdefault("GOMP_SPINCOUNT", "3000")


def main(argv: Sequence[str] | None = None) -> None:
    from soft_vit.extras import naming_extras

    with naming_extras():
        from soft_vit.engine.errors import plain_errors
        from soft_vit.export import FORMATS, export, load_export_model

    parser = argparse.ArgumentParser(
        description="Write a model as ONNX, torch.export or TorchScript, verified against the model itself."
    )
    parser.add_argument("model", nargs="?", metavar="MODEL", help="a model of timm")
    parser.add_argument("--config", metavar="FILE", help="the config of a trained classifier, with --checkpoint")
    parser.add_argument("--checkpoint", metavar="FILE", help="weights; of a timm model in place of its published ones")
    parser.add_argument("--no-pretrained", action="store_true", help="the timm model with random weights")
    parser.add_argument("--format", choices=FORMATS, required=True)
    parser.add_argument("-o", "--out", required=True, metavar="FILE", help="ends in .onnx, .pt2 or .pt")
    parser.add_argument("--img-size", type=int, metavar="PIXELS", help="side of the images (default: the model's own)")
    parser.add_argument(
        "--dynamic-size", action="store_true", help="take images of any size from 64 pixels up; not every attention can"
    )
    parser.add_argument("--features", type=int, nargs="+", metavar="N", help="maps of these stages (from 0), no head")
    parser.add_argument("--opset", type=int, help="of ONNX (default: that of torch)")
    parser.add_argument("--max-error", type=float, default=1e-4, help="allowed difference (default: %(default)s)")
    parser.add_argument("--int8", action="store_true", help="quantise the ONNX file, calibrated on generated images")
    parser.add_argument("--max-drop", type=float, default=2.0, help="points that int8 may cost (default: %(default)s)")
    args = parser.parse_args(argv)
    with plain_errors():
        source = load_export_model(
            args.model,
            args.config,
            args.checkpoint,
            pretrained=not args.no_pretrained,
            img_size=args.img_size,
            stages=args.features,
        )
        for note in source.notes:
            print(note)
        export(
            source,
            args.out,
            args.format,
            any_size=args.dynamic_size,
            opset=args.opset,
            int8=args.int8,
            max_error=args.max_error,
            max_drop=args.max_drop,
        )


if __name__ == "__main__":
    main()
