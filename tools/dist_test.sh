#!/usr/bin/env bash
# Test a checkpoint with a process per GPU. GPUs, CPUs and several machines are used as in dist_train.sh:
#   tools/dist_test.sh configs/soft_tiny.py work_dirs/soft_tiny/epoch_300.pth 8
set -euo pipefail

if [[ $# -lt 3 ]]; then
    echo "usage: tools/dist_test.sh CONFIG CHECKPOINT GPUS [options of tools/test.py]" >&2
    exit 2
fi
tools=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
exec bash "$tools/dist_launch.sh" "$3" "$tools/test.py" "$1" "$2" --launcher pytorch "${@:4}"
