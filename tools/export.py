"""Export a model to ONNX, torch.export, OpenVINO, ExecuTorch, LiteRT or Core ML, and compare the file with the model.

python tools/export.py --model soft_tiny --checkpoint FILE --format onnx --out soft_tiny.onnx
python tools/export.py --config CONFIG --checkpoint FILE --format onnx --int8 --out soft_pico_int8.onnx
python tools/export.py --model soft_tiny --features 1 2 3 --dynamic-size --format torch_export --out backbone.pt2
"""

import os
from collections.abc import Sequence

# Read when torch is first imported; tools/train.py says why.
os.environ.setdefault("GOMP_SPINCOUNT", "20000")

from soft_vit.cli import ArgumentParser, add_img_size_option, add_model_options, command_line


@command_line
def main(argv: Sequence[str]) -> None:
    from soft_vit.export import FORMATS, export, load_export_model

    parser = ArgumentParser(__doc__)
    add = parser.add_argument
    add_model_options(parser, config=True)
    add("--format", choices=FORMATS, required=True)
    add("--out", required=True, metavar="FILE", help="ends in .onnx, .pt2, .xml, .pte, .tflite or .mlpackage")
    add_img_size_option(parser)
    add("--dynamic-size", dest="any_size", action="store_true", help="accept images of any size from 64 pixels")
    add("--features", dest="stages", type=int, nargs="+", metavar="N", help="export the maps of these stages, from 0")
    add("--with-preprocessing", dest="preprocessing", action="store_true", help="take uint8 images: normalise inside")
    add("--half", action="store_true", help="write fp16, with formulas in fp32")
    add("--max-error", type=float, metavar="SHARE", help="relative to the largest output (default: 1e-4, --half 1e-2)")
    add("--int8", action="store_true", help="quantise the file of ONNX or OpenVINO, by default with generated images")
    add("--images", metavar="FOLDER", help="data set whose train calibrates int8, and whose val measures it")
    add("--max-drop", type=float, default=2.0, help="allowed loss of accuracy by int8, in points")
    arguments = parser.arguments(argv)
    names = "out", "format", "any_size", "half", "preprocessing", "int8", "images", "max_error", "max_drop"
    how = {name: arguments.pop(name) for name in names}
    source = load_export_model(**arguments)
    for note in source.notes:
        print(note)
    export(source, **how)


if __name__ == "__main__":
    main()
