#!/usr/bin/env bash
# Train with a process per GPU, or with GPUS processes on the CPU of a machine without GPUs:
#   tools/dist_train.sh configs/soft_tiny.py 8 --work-dir work_dirs/soft_tiny --resume
# On several machines, run the same command on each with its own NODE_RANK:
#   NNODES=2 NODE_RANK=0 MASTER_ADDR=10.0.0.1 PORT=29500 tools/dist_train.sh configs/soft_tiny.py 8
# --max-restarts N lets torchrun start all processes again after one has died, up to N times. They continue from the
# newest checkpoint that the run has written. Several machines need a folder that they share.
# PYTHON sets the interpreter (default: python), and OMP_NUM_THREADS the threads of a process (default: its share).
set -euo pipefail

if [[ $# -lt 2 ]]; then
    echo "usage: tools/dist_train.sh CONFIG GPUS [--max-restarts N] [options of tools/train.py]" >&2
    exit 2
fi
tools=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
exec bash "$tools/dist_launch.sh" "$2" "$tools/train.py" "$1" --launcher pytorch "${@:3}"
