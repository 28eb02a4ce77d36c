"""Images per second of models, measured side by side: python tools/benchmark.py pvt_v2_b1 soft_tiny"""

import argparse

import timm
import torch

import soft_vit  # noqa: F401 - registers the models
from soft_vit.analysis.throughput import MODES, machine_description, measure_throughput, throughput_table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="+", help="timm model names; ratios are against the first")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--img-size", type=int, nargs="+", default=[224], metavar="SIZE", help="side, or height width")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=MODES)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", choices=["float32", "bfloat16", "float16"], default="float32")
    parser.add_argument("--threads", type=int, help="CPU threads; all by default")
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    height, width = (args.img_size * 2)[:2]
    if unknown := [name for name in args.models if not timm.is_model(name)]:
        parser.exit(1, f"There is no model {unknown[0]}; timm.list_models() lists those there are.\n")
    timings = measure_throughput(
        args.models,
        batch_size=args.batch_size,
        img_size=(height, width),
        modes=args.modes,
        rounds=args.rounds,
        device=args.device,
        dtype=getattr(torch, args.dtype),
    )
    print(f"{machine_description(args.device)}; batch {args.batch_size}, {height} x {width}, {args.dtype}\n")
    print(throughput_table(timings))


if __name__ == "__main__":
    main()
