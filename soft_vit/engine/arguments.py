"""Options that several command lines have."""

import argparse
from typing import Any

from mmengine.config import DictAction

__all__ = ["add_config_options"]


class ConfigOptions(DictAction):
    """MMEngine's action for KEY=VALUE pairs, whose errors argparse reports in one line."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, *args: Any) -> None:
        try:
            super().__call__(parser, namespace, values, *args)
        except (ValueError, AssertionError, RecursionError) as error:
            raise argparse.ArgumentError(
                self, f"{' '.join(values)} is not all KEY=VALUE pairs with closed brackets; write such as a.b=1."
            ) from error


def add_config_options(parser: argparse.ArgumentParser) -> None:
    """Add `--cfg-options KEY=VALUE ...`, which becomes `cfg_options`, a dictionary or None."""
    parser.add_argument("--cfg-options", nargs="+", action=ConfigOptions, metavar="KEY=VALUE", help="change the config")
