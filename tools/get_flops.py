"""Parameters and FLOPs of a model, module by module: python tools/get_flops.py soft_tiny --shape 224 224"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import timm
import torch

import soft_vit  # noqa: F401 - registers the models
from soft_vit.analysis.complexity import complexity_table, count_complexity
from soft_vit.analysis.sides import height_and_width
from soft_vit.extras import naming_extras
from soft_vit.models.names import require_known


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", metavar="MODEL_OR_CONFIG", help="a timm model name, or a config with a model_name")
    parser.add_argument("--shape", type=int, nargs="+", default=[224], metavar="SIZE", help="side, or height width")
    parser.add_argument("--in-chans", type=int, default=3)
    parser.add_argument("--depth", type=int, default=2, help="levels of modules to list")
    args = parser.parse_args(argv)
    try:
        height, width = height_and_width(args.shape)
        name, model_args = args.model, {}
        if Path(args.model).suffix == ".py":
            with naming_extras():
                from soft_vit.engine.config import timm_model_of

            name, model_args = timm_model_of(args.model)
        require_known(name)
        model_args = {"in_chans": args.in_chans, **model_args}
        try:
            model = timm.create_model(name, **{"img_size": (height, width), **model_args})
        except TypeError:
            # A model that takes images of any size may have no such argument.
            model = timm.create_model(name, **model_args)
        # Fused attention is one operation on the meta device, and counted as such.
        complexity = count_complexity(model.to("meta"), (1, args.in_chans, height, width))
    except (ValueError, RuntimeError, FileNotFoundError, TypeError) as error:
        parser.exit(1, f"error: {error}\n")
    print(f"{name}, {height} x {width}, torch {torch.__version__}; a multiply-add is one FLOP\n")
    print(complexity_table(complexity, args.depth))


if __name__ == "__main__":
    main()
