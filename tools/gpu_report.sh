#!/usr/bin/env bash
# Test and measure the package on this machine's NVIDIA GPUs, within ten minutes and without a network:
#   tools/gpu_report.sh OUT          # writes OUT/report.md and OUT/report.csv; run again, it goes on where it ended
#   tools/gpu_report.sh OUT --dry    # tiny sizes on a CPU
# PYTHON names another interpreter than `python`, or `python3` where there is none of that name.
set -euo pipefail

tools=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
python=${PYTHON:-$(command -v python || command -v python3)}
# From the clone, installed or not.
export PYTHONPATH="$tools/..${PYTHONPATH:+:$PYTHONPATH}"
exec "$python" "$tools/gpu_report.py" "$@"
