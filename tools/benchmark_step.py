"""What a training step costs beyond forward, backward and the optimizer: python tools/benchmark_step.py"""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

# Read when torch is first imported; tools/train.py says why.
os.environ.setdefault("GOMP_SPINCOUNT", "3000")

SOFT_TINY = Path(__file__).parents[1] / "configs" / "soft_tiny.py"


def main(argv: Sequence[str] | None = None) -> None:
    import torch

    from soft_vit.extras import naming_extras

    with naming_extras():
        from soft_vit.analysis.machine import machine_description
        from soft_vit.engine.arguments import add_config_options
        from soft_vit.engine.errors import plain_errors
        from soft_vit.engine.step_overhead import measure_step_overhead, overhead_table

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config", nargs="?", default=SOFT_TINY, help="path of an ImageNet config (default: soft_tiny)")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=60, help="a round is one step of each kind")
    add_config_options(parser)
    args = parser.parse_args(argv)
    with plain_errors():
        result = measure_step_overhead(
            args.config, batch_size=args.batch_size, rounds=args.rounds, options=args.cfg_options
        )
    device = "cuda" if torch.cuda.is_available() else "cpu"
    print(f"{machine_description(device)}; batch {args.batch_size}, {args.rounds} rounds.\n")
    print(overhead_table(result))


if __name__ == "__main__":
    main()
