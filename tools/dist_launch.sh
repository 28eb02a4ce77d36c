#!/usr/bin/env bash
# Start GPUS processes of a Python script under torchrun; dist_train.sh and dist_test.sh say how it is used.
#   dist_launch.sh GPUS SCRIPT [arguments of the script]
set -euo pipefail

gpus=$1
shift
if ! [[ $gpus =~ ^[1-9][0-9]*$ ]]; then
    echo "error: GPUS is '$gpus'; give the number of processes on this machine, 1 or more." >&2
    exit 2
fi

if [[ ${NNODES:-1} != 1 ]]; then
    if [[ -z ${NODE_RANK:-} || -z ${MASTER_ADDR:-} ]]; then
        echo "error: NNODES is $NNODES; set NODE_RANK (0 to NNODES - 1) and MASTER_ADDR (of node 0) as well." >&2
        exit 2
    fi
    meeting=(--nnodes "$NNODES" --node_rank "$NODE_RANK" --master_addr "$MASTER_ADDR" --master_port "${PORT:-29500}")
elif [[ -n ${PORT:-} ]]; then
    meeting=(--nnodes 1 --master_addr localhost --master_port "$PORT")
else
    # A free port, so that two runs on one machine do not meet.
    meeting=(--standalone)
fi

# By itself torchrun gives each process one thread, however many cores there are.
cores=$(getconf _NPROCESSORS_ONLN)
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$((cores > gpus ? cores / gpus : 1))}

# The signals that end a job have to reach torchrun, and its exit code the caller.
exec "${PYTHON:-python}" -m torch.distributed.run "${meeting[@]}" --nproc_per_node "$gpus" "$@"
