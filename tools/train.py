"""Train a model from a config: `python tools/train.py configs/demo/soft_pico_shapes.py`."""

import os
from collections.abc import Sequence

# Read when torch is first imported. By default, OpenMP's threads spin for long while they wait for each other, and a
# training step on a CPU takes ten times as long when another program needs a core. With only a few thousand spins they
# would fall asleep between operations, and a step would take twice as long on a free machine.
os.environ.setdefault("GOMP_SPINCOUNT", "20000")

from soft_vit.cli import ArgumentParser, add_config_options, command_line


@command_line
def main(argv: Sequence[str]) -> None:
    from mmengine.dist import is_main_process

    from soft_vit.engine.machine import LAUNCHERS
    from soft_vit.engine.run import train

    parser = ArgumentParser(__doc__)
    parser.add_argument("config", metavar="CONFIG", help="path of the config")
    parser.add_argument("--work-dir", metavar="FOLDER", help="for logs and checkpoints (default: work_dirs/<config>)")
    what = "continue from a checkpoint, or from the newest one in the work directory"
    parser.add_argument("--resume", nargs="?", const="auto", metavar="CHECKPOINT", help=what)
    parser.add_argument("--amp", action="store_true", help="autocast in bfloat16, or in optim_wrapper.dtype")
    parser.add_argument("--auto-scale-lr", action="store_true", help="scale the learning rate with the global batch")
    what = "save and end with exit code 75 after the current step (default: SIGTERM SIGINT)"
    parser.add_argument("--stop-signals", nargs="+", default=["SIGTERM", "SIGINT"], metavar="SIGNAL", help=what)
    parser.add_argument("--no-validate", dest="validate", action="store_false", help="train without validation")
    add_config_options(parser)
    parser.add_argument("--launcher", choices=LAUNCHERS, default="none", help="how the processes were started")
    arguments = parser.arguments(argv)
    result = train(arguments.pop("config"), **arguments)
    if is_main_process():
        print(result)


if __name__ == "__main__":
    main()
