"""Export a model as ONNX or torch.export, and verify the file against the model.

python tools/export.py --model soft_tiny --checkpoint FILE --format onnx --out soft_tiny.onnx
python tools/export.py --config CONFIG --checkpoint FILE --format onnx --int8 --out soft_pico_int8.onnx
python tools/export.py --model soft_tiny --features 1 2 3 --dynamic-size --format torch_export --out backbone.pt2
"""

import os
from collections.abc import Sequence

# Read when torch is first imported; tools/train.py says why.
os.environ.setdefault("GOMP_SPINCOUNT", "20000")

from soft_vit.cli import ArgumentParser, add_model_options, command_line


@command_line
def main(argv: Sequence[str] | None = None) -> None:
    from soft_vit.export import FORMATS, export, load_export_model

    parser = ArgumentParser(__doc__)
    add = parser.add_argument
    add_model_options(parser, config=True)
    add("--format", choices=FORMATS, required=True)
    add("--out", required=True, metavar="FILE", help="ends in .onnx or .pt2")
    add("--img-size", type=int, metavar="PIXELS", help="side of the images (default: the model's own)")
    add("--dynamic-size", dest="any_size", action="store_true", help="accept images of any size from 64 pixels")
    add("--features", dest="stages", type=int, nargs="+", metavar="N", help="export the maps of these stages, from 0")
    add("--max-error", type=float, default=1e-4, metavar="SHARE", help="allowed error relative to the largest output")
    add("--int8", action="store_true", help="quantise the ONNX file, calibrated on generated images")
    add("--max-drop", type=float, default=2.0, help="allowed loss of accuracy by int8, in points")
    arguments = parser.arguments(argv)
    how = {name: arguments.pop(name) for name in ("out", "format", "any_size", "int8", "max_error", "max_drop")}
    source = load_export_model(**arguments)
    for note in source.notes:
        print(note)
    export(source, **how)


if __name__ == "__main__":
    main()
