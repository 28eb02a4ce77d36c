#!/usr/bin/env bash
# Train with a process for each GPU, or, on a machine without one, with GPUS processes on its CPU:
#   tools/dist_train.sh configs/soft_tiny.py 8 --work-dir work_dirs/soft_tiny --resume
# On several machines the same command runs on each of them, told apart by the environment:
#   NNODES=2 NODE_RANK=0 MASTER_ADDR=10.0.0.1 PORT=29500 tools/dist_train.sh configs/soft_tiny.py 8
# PYTHON names another interpreter than `python`, OMP_NUM_THREADS another number of threads than each process's share.
set -euo pipefail

if [[ $# -lt 2 ]]; then
    echo "usage: tools/dist_train.sh CONFIG GPUS [options of tools/train.py]" >&2
    exit 2
fi
tools=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
exec bash "$tools/dist_launch.sh" "$2" "$tools/train.py" "$1" --launcher pytorch "${@:3}"
