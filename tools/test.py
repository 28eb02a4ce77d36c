"""Measure a checkpoint: `python tools/test.py configs/demo/soft_pico_shapes.py work_dirs/.../epoch_N.pth`."""

import argparse
import os
from collections.abc import Sequence

# Read when torch is first imported. OpenMP's threads otherwise spin for long while they wait for each other; as soon as
# another program wants a core, a training step on a CPU takes ten times as long. So little costs nothing measurable.
os.environ.setdefault("GOMP_SPINCOUNT", "3000")


def main(argv: Sequence[str] | None = None) -> None:
    from mmengine.config import DictAction
    from mmengine.dist import is_main_process

    from soft_vit.engine.errors import plain_errors
    from soft_vit.engine.evaluation import evaluate
    from soft_vit.engine.run import LAUNCHERS

    parser = argparse.ArgumentParser(description="Measure a checkpoint on the test split of a config.")
    parser.add_argument("config", help="path of the config")
    parser.add_argument("checkpoint", help="path of the checkpoint")
    parser.add_argument("--work-dir", help="folder for logs (default: work_dirs/<config name>)")
    parser.add_argument("--out", help="JSON file to write the metrics to")
    parser.add_argument("--cfg-options", nargs="+", action=DictAction, metavar="KEY=VALUE", help="change the config")
    parser.add_argument("--launcher", choices=LAUNCHERS, default="none", help="how the processes were started")
    try:
        args = parser.parse_args(argv)
    except ValueError as error:
        parser.error(f"--cfg-options takes KEY=VALUE pairs: {error}")
    with plain_errors():
        metrics = evaluate(
            args.config,
            args.checkpoint,
            work_dir=args.work_dir,
            out=args.out,
            options=args.cfg_options,
            launcher=args.launcher,
        )
    if is_main_process():
        for name, value in metrics.items():
            print(f"{name}: {value:.2f}")


if __name__ == "__main__":
    main()
