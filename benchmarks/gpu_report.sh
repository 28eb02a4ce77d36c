#!/usr/bin/env bash
# Test and measure the package on this machine's NVIDIA GPUs, within ten minutes and without a network:
#   benchmarks/gpu_report.sh OUT          # writes OUT/report.md and OUT/report.csv; run again, it continues
#   benchmarks/gpu_report.sh OUT --dry    # tiny sizes on a CPU
# PYTHON names another interpreter than `python`, or `python3` where `python` is missing.
set -euo pipefail

python=${PYTHON:-$(command -v python || command -v python3)}
# From the clone, installed or not.
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}"
exec "$python" -m benchmarks gpu --out "$@"
