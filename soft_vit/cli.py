"""What the command lines in tools/ share: how a mistake is reported, and the options that several of them have."""

import argparse
import ast
import contextlib
import errno
import functools
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
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
    "segmentation_models_pytorch": "segmentation",
    "tensorboard": "train",
}

# A path that is missing, lies below a file, is a folder where a file is needed, or is not allowed.
_PATH_ERRORS = (FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError, PermissionError)
# A full or read-only disk and a name that is too long have no exception classes of their own.
_PATH_NUMBERS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.ENAMETOOLONG}


def command_line(main: Callable[[Sequence[str] | None], None]) -> Callable[..., None]:
    """Decorate the `main(argv)` of a tool: a user's mistake ends the process with `error: ...` and exit code 1.

    Mistakes are a ValueError that this package or the tool raises, an exception class of this package, a path that
    cannot be used, a full disk, and a missing module of an extra. All other exceptions keep their traceback, and so
    does a ValueError from inside a library: its cause is unknown, and the traceback is needed to find it.
    """
    package = Path(__file__).parent
    own = {package, package.with_name("benchmarks"), Path(main.__code__.co_filename).parent}

    @functools.wraps(main)
    def run(argv: Sequence[str] | None = None) -> None:
        try:
            main(argv)
        except Exception as error:
            sentence = _sentence(error, own)
            if sentence is None:
                raise
            raise SystemExit(f"error: {sentence}") from None

    return run


def extra_of(error: ModuleNotFoundError) -> str | None:
    """The extra that brings the missing module; None if no extra does."""
    return EXTRAS.get(_package(error))


def command_text(tool: str, argv: Sequence[str] | None) -> str:
    """The command that a tool such as tools/gym.py was given, for the head of what it measures."""
    return shlex.join(["python", tool, *(sys.argv[1:] if argv is None else argv)])


def image_size(text: str) -> tuple[int, int]:
    """Height and width from `224` or `800x1333`."""
    if not re.fullmatch("[1-9][0-9]*(x[1-9][0-9]*)?", text):
        raise argparse.ArgumentTypeError(f"{text} is no size; give a side such as 224, or 800x1333.")
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


def _sentence(error: Exception, own: set[Path]) -> str | None:
    """What to print for a user's mistake; None for any other exception, or a ValueError of code outside own folders."""
    if isinstance(error, ModuleNotFoundError) and (extra := extra_of(error)):
        return f"{_package(error)} is missing; pip install 'soft_vit[{extra}]' brings it."
    if isinstance(error, OSError) and (isinstance(error, _PATH_ERRORS) or error.errno in _PATH_NUMBERS):
        # A rename has two names; the second is the file that it replaces.
        path = error.filename2 or error.filename
        return str(error) if path is None else f"{path} cannot be used ({error.strerror}); give another path."
    if type(error).__module__.startswith("soft_vit.") or (isinstance(error, ValueError) and _raised_in(error, own)):
        return str(error)
    return None


def _raised_in(error: Exception, folders: set[Path]) -> bool:
    """Whether code in one of the folders raised the exception, or called the built-in function that did."""
    traceback = error.__traceback__
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    return not folders.isdisjoint(Path(traceback.tb_frame.f_code.co_filename).parents)


def _package(error: ModuleNotFoundError) -> str:
    return (error.name or "").split(".")[0]


def add_run_options(parser: argparse.ArgumentParser, attentions: Sequence[str], work_dir: str, table: str) -> None:
    """The options of tools that train once for each attention: which, how many at a time, and where results go."""
    parser.add_argument("attentions", nargs="*", default=list(attentions), metavar="ATTENTION", help="(default: all)")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, sharing the CPU's threads (default: 1)")
    parser.add_argument(
        "--work-dir",
        type=Path,
        default=Path(work_dir),
        metavar="FOLDER",
        help="for a folder per run (default: %(default)s)",
    )
    parser.add_argument(
        "--out", type=Path, metavar="PREFIX", help=f"write PREFIX.md and PREFIX.csv (default: WORK_DIR/{table})"
    )
    add_config_options(parser)
