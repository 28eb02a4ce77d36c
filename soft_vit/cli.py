"""What the command lines in tools/ share: how a mistake is reported, and the options that several of them have."""

import argparse
import ast
import contextlib
import functools
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any

# The extra (a file in requirements/) that brings a module.
EXTRAS = {
    "albumentations": "train",
    "faster_coco_eval": "detection",
    "gradio": "app",
    "matplotlib": "analysis",
    "mmcv": "train",
    "mmdet": "mmdet",
    "mmengine": "train",
    "mmpretrain": "train",
    "mmseg": "mmdet",
    "onnx": "export",
    "onnxruntime": "export",
    "onnxscript": "export",
    "segmentation_models_pytorch": "segmentation",
    "tensorboard": "train",
}


def command_line(main: Callable[[Sequence[str]], None]) -> Callable[..., None]:
    """Decorate the `main(argv)` of a tool: ValueError, OSError and a missing extra end it with `error: ...` and code 1.

    Every tool then takes `--traceback`, which shows where such an error comes from.
    """

    @functools.wraps(main)
    def run(argv: Sequence[str] | None = None) -> None:
        arguments = list(sys.argv[1:] if argv is None else argv)
        try:
            main([argument for argument in arguments if argument != "--traceback"])
        except (ValueError, OSError, ImportError) as error:
            sentence = _sentence(error)
            if sentence is None or "--traceback" in arguments:
                raise
            raise SystemExit(f"error: {sentence}") from None

    return run


def _sentence(error: Exception) -> str | None:
    """The message for the screen; None for a missing module that no extra brings."""
    if isinstance(error, ImportError):
        # MMEngine raises another one for what a config imports.
        while isinstance(error.__cause__ or error.__context__, ImportError):
            error = error.__cause__ or error.__context__
        package = (error.name or "").split(".")[0]
        extra = EXTRAS.get(package)
        return extra and f"{package} is missing; pip install 'soft_vit[{extra}]' installs it."
    if isinstance(error, OSError) and error.filename is not None:
        # A rename has two names; the second is the file that it replaces.
        return f"{error.filename2 or error.filename} cannot be used ({error.strerror}); give another path."
    message = str(error).strip()
    # A data worker's message is its traceback, which ends with the error.
    return message.splitlines()[-1] if "in DataLoader worker process" in message else message


def image_size(text: str) -> tuple[int, int]:
    """Height and width from `224` or `800x1333`."""
    if not re.fullmatch("[1-9][0-9]*(x[1-9][0-9]*)?", text):
        raise argparse.ArgumentTypeError(f"size must be such as 224 or 800x1333, got {text}.")
    sides = [int(side) for side in text.split("x")]
    return sides[0], sides[-1]


def add_model_options(parser: argparse.ArgumentParser, *, config: bool = False) -> None:
    """Add `--model`, `--checkpoint` and `--no-pretrained`, and `--config` on request."""
    parser.add_argument("--model", metavar="NAME", required=not config, help="name of a timm model")
    if config:
        parser.add_argument("--config", metavar="FILE", help="config of a trained model, instead of --model")
    weights = parser.add_mutually_exclusive_group()
    weights.add_argument("--checkpoint", metavar="FILE", help="weights (default: the published ones of --model)")
    weights.add_argument("--no-pretrained", action="store_true", help="random weights instead of the published ones")


def add_img_size_option(parser: argparse.ArgumentParser, default: tuple[int, int] | None = None) -> None:
    """Add `--img-size`, one side or height and width, which becomes (height, width)."""
    shown = "the model's own" if default is None else default[0]
    parser.add_argument(
        "--img-size",
        type=int,
        nargs="+",
        action=_ImageSize,
        default=default,
        metavar="PIXELS",
        help=f"side of the images, or height and width (default: {shown})",
    )


def add_device_option(parser: argparse.ArgumentParser) -> None:
    """Add `--device`, by default a GPU if there is one."""
    import torch

    default = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", default=default, help="such as cpu or cuda:1 (default: %(default)s)")


def add_config_options(parser: argparse.ArgumentParser) -> None:
    """Add `--cfg-options KEY=VALUE ...`, which becomes `cfg_options`, a dictionary or None."""
    from mmengine.config import DictAction

    class ConfigOptions(DictAction):
        @staticmethod
        def _parse_iterable(text: str) -> Any:
            """Keep spaces and quoted commas, and a path as it is; MMEngine splits at commas and drops spaces."""
            if "/" in text and text[:1] not in ("[", "("):
                return text.strip("'\"")
            if "'" in text or '"' in text:
                with contextlib.suppress(ValueError, SyntaxError):
                    return ast.literal_eval(text)
            kept = re.sub(r"\s*([,()\[\]])\s*", r"\1", text).replace(" ", "\0")
            return _with_spaces(DictAction._parse_iterable(kept))

        def __call__(self, parser: Any, namespace: Any, values: Any, *args: Any) -> None:
            try:
                super().__call__(parser, namespace, values, *args)
            except (ValueError, AssertionError, RecursionError) as error:
                raise argparse.ArgumentError(
                    self, f"{' '.join(values)} is not all KEY=VALUE pairs with closed brackets; write such as a.b=1."
                ) from error

    parser.add_argument("--cfg-options", nargs="+", action=ConfigOptions, metavar="KEY=VALUE", help="change the config")


def _with_spaces(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return type(value)(map(_with_spaces, value))
    return value.replace("\0", " ") if isinstance(value, str) else value


class _ImageSize(argparse.Action):
    def __call__(self, parser: Any, namespace: Any, values: Sequence[int], option: str | None = None) -> None:
        if len(values) > 2 or min(values) < 1:
            raise argparse.ArgumentError(self, f"{' '.join(map(str, values))}: give one side, or height and width")
        setattr(namespace, self.dest, (values[0], values[-1]))
