"""Shared parts of command lines: the parser, the report of an error, and options that several tools have."""

import argparse
import ast
import contextlib
import functools
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

# Extras, which are files in requirements/, and the modules that they install.
EXTRAS = {
    "analysis": ("matplotlib",),
    "app": ("gradio",),
    "detection": ("faster_coco_eval",),
    "coreml": ("coremltools",),
    "executorch": ("executorch",),
    "export": ("onnx", "onnxruntime", "onnxscript"),
    "litert": ("ai_edge_litert", "litert_torch"),
    "mmdet": ("mmdet", "mmseg"),
    "openvino": ("nncf", "openvino"),
    "segmentation": ("segmentation_models_pytorch",),
    "tiff": ("imagecodecs", "tifffile"),
    "train": ("albumentations", "mmcv", "mmengine", "mmpretrain", "tensorboard"),
}


def literal(text: str) -> Any:
    """Return a literal of Python, or else the text."""
    with contextlib.suppress(ValueError, SyntaxError):
        return ast.literal_eval(text)
    return text


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Keeps the lines of a description, and ends the help of an option with its default, a number, text or path."""

    def _get_help_string(self, action: argparse.Action) -> str:
        text, value = action.help or "", action.default
        plain = isinstance(value, int | float | str | Path) and value is not argparse.SUPPRESS
        is_said = isinstance(value, bool) or "(default" in text
        return f"{text} (default: %(default)s)" if plain and not is_said else text


class ArgumentParser(argparse.ArgumentParser):
    """An argparse.ArgumentParser with the help of `HelpFormatter`, and `--traceback`."""

    def __init__(self, description: str | None = None, **kwargs: Any) -> None:
        super().__init__(description=description, **{"formatter_class": HelpFormatter, **kwargs})
        self.add_argument("--traceback", action="store_true", help="show the traceback of an error")

    def arguments(self, argv: Sequence[str] | None = None) -> dict[str, Any]:
        """Return the options by name, for tools whose options are the arguments of one function."""
        options = vars(self.parse_args(argv))
        del options["traceback"]
        return options


def command_line(main: Callable[[Sequence[str]], None]) -> Callable[..., None]:
    """Decorate the `main(argv)` of a tool, whose options are those of an `ArgumentParser`.

    ValueError, OSError and a missing extra end it with `error: ...` and exit code 1, unless `--traceback` is given.
    """

    @functools.wraps(main)
    def run(argv: Sequence[str] | None = None) -> None:
        arguments = list(sys.argv[1:] if argv is None else argv)
        try:
            main(arguments)
        except (ValueError, OSError, ImportError) as error:
            message = _message(error)
            if message is None or "--traceback" in arguments:
                raise
            raise SystemExit(f"error: {message}") from None

    return run


def _message(error: Exception) -> str | None:
    """Return the message for the screen, or None for a missing module that belongs to none of the extras."""
    if isinstance(error, ImportError):
        # MMEngine raises another ImportError for the modules of a config.
        while isinstance(error.__cause__ or error.__context__, ImportError):
            error = error.__cause__ or error.__context__
        package = (error.name or "").split(".")[0]
        extra = next((extra for extra, modules in EXTRAS.items() if package in modules), None)
        return extra and f"{package} is missing; pip install 'soft_vit[{extra}]' installs it."
    if isinstance(error, OSError) and error.filename is not None:
        # os.rename has two names; the second is the file that it replaces.
        return f"{error.filename2 or error.filename} cannot be used ({error.strerror}); give another path."
    message = str(error).strip()
    # The message of a data worker is its traceback, which ends with the error.
    return message.splitlines()[-1] if "in DataLoader worker process" in message else message


def image_size(text: str) -> tuple[int, int]:
    """Return height and width from `224` or `800x1333`."""
    if not re.fullmatch("[1-9][0-9]*(x[1-9][0-9]*)?", text):
        raise argparse.ArgumentTypeError(f"SIZE must be an int or HEIGHTxWIDTH, got {text}.")
    sides = [int(side) for side in text.split("x")]
    return sides[0], sides[-1]


def add_model_options(parser: argparse.ArgumentParser, *, config: bool = False) -> None:
    """Add `--model`, `--checkpoint`, `--no-pretrained` (as pretrained), and with `config` also `--config`."""
    parser.add_argument("--model", metavar="NAME", required=not config, help="name of a timm model")
    if config:
        parser.add_argument("--config", metavar="FILE", help="config of a trained model, instead of --model")
    weights = parser.add_mutually_exclusive_group()
    weights.add_argument("--checkpoint", metavar="FILE", help="weights (default: the published ones of --model)")
    weights.add_argument("--no-pretrained", dest="pretrained", action="store_false", help="random weights instead")


def add_img_size_option(parser: argparse.ArgumentParser, default: tuple[int, int] | None = None) -> None:
    """Add `--img-size`, see `image_size`."""
    shown = "the model's own" if default is None else default[0]
    what = f"side of the images, or HEIGHTxWIDTH, in pixels (default: {shown})"
    parser.add_argument("--img-size", type=image_size, default=default, metavar="SIZE", help=what)


def add_device_option(parser: argparse.ArgumentParser) -> None:
    """Add `--device`; the default is a GPU if there is one."""
    import torch

    default = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", default=default, help="such as cpu or cuda:1")


def add_scale_option(parser: argparse.ArgumentParser) -> None:
    """Add `--scale`, as of `soft_vit.engine.data.views.set_scale`."""
    what = "a segmentor sees images at this share of their own resolution, by windows where memory ends, instead of "
    parser.add_argument("--scale", type=float, metavar="SHARE", help=what + "the config's test size")


def add_config_options(parser: argparse.ArgumentParser) -> None:
    """Add `--cfg-options KEY=VALUE ...`, parsed to a dict of values by dotted name, as options."""
    from mmengine.config import DictAction

    class ConfigOptions(DictAction):
        @staticmethod
        def _parse_iterable(text: str) -> Any:
            """Parse a value like MMEngine, but as Python where it is that, and keep the spaces and commas of a path."""
            if (value := literal(text)) is not text:
                # Without brackets, as 1,2, values are a list there, which mmdet requires in places.
                return list(value) if isinstance(value, tuple) and text[0] != "(" else value
            if text[:1] not in ("[", "(") and ("/" in text or "," not in text):
                return DictAction._parse_int_float_bool(text)
            return DictAction._parse_iterable(text)

        def __call__(self, parser: Any, namespace: Any, values: Any, *args: Any) -> None:
            try:
                super().__call__(parser, namespace, values, *args)
            except (ValueError, AssertionError, RecursionError) as error:
                what = f"must be KEY=VALUE pairs, such as a.b=1, with closed brackets, got {' '.join(values)}."
                raise argparse.ArgumentError(self, what) from error

    what = dict(metavar="KEY=VALUE", help="change the config")
    parser.add_argument("--cfg-options", dest="options", nargs="+", action=ConfigOptions, **what)
