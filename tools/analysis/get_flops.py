"""Count the parameters and FLOPs of a model and its modules.

python tools/analysis/get_flops.py soft_tiny --img-size 224
"""

from collections.abc import Sequence

import timm
import torch
from timm.layers import to_2tuple

from soft_vit.cli import ArgumentParser, add_img_size_option, command_line
from soft_vit.models.base import require_known
from soft_vit.probe.complexity import complexity_table, count_complexity


@command_line
def main(argv: Sequence[str]) -> None:
    parser = ArgumentParser(__doc__)
    subject = parser.add_mutually_exclusive_group(required=True)
    subject.add_argument("model", nargs="?", metavar="MODEL", help="name of a timm model")
    subject.add_argument("--config", metavar="FILE", help="config with a model_name, instead of MODEL")
    add_img_size_option(parser)
    parser.add_argument("--depth", type=int, default=2, help="levels of modules to list")
    args = parser.parse_args(argv)
    name, model_args = args.model, {}
    if args.config is not None:
        from soft_vit.engine.config import timm_model_of

        name, model_args = timm_model_of(args.config)
    require_known(name)
    published = getattr(timm.get_pretrained_cfg(name), "input_size", (3, 224, 224))
    height, width = args.img_size or to_2tuple(model_args.get("img_size") or published[1:])
    try:
        try:
            model = timm.create_model(name, **{**model_args, "img_size": (height, width)})
        except TypeError:
            # Convolutional models take no img_size.
            model = timm.create_model(name, **model_args)
        # On the meta device, fused attention is one operation, which the counter knows.
        complexity = count_complexity(model.to("meta"), (1, model_args.get("in_chans", 3), height, width))
    except (AssertionError, RuntimeError, TypeError) as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(f"--img-size must fit {name}, got {height} x {width}: {reason}") from error
    print(f"{name}, {height} x {width}, torch {torch.__version__}; a multiply-add is one FLOP\n")
    print(complexity_table(complexity, args.depth))


if __name__ == "__main__":
    main()
