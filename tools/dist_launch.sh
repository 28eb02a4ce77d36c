#!/usr/bin/env bash
# Start GPUS processes of a Python script under torchrun. Called by dist_train.sh and dist_test.sh.
#   dist_launch.sh GPUS SCRIPT [arguments of the script] [--max-restarts N]
set -euo pipefail

gpus=$1
shift
if ! [[ $gpus =~ ^[1-9][0-9]*$ ]]; then
    echo "error: GPUS must be the number of processes on this machine, at least 1, got '$gpus'." >&2
    exit 2
fi

# torchrun's own option, which may stand anywhere among those of the script.
restarts=() arguments=()
while (($# > 0)); do
    case $1 in
        --max-restarts | --max_restarts) restarts=(--max_restarts "${2-}") && shift ;;
        --max-restarts=* | --max_restarts=*) restarts=(--max_restarts "${1#*=}") ;;
        *) arguments+=("$1") ;;
    esac
    shift || true
done
if ((${#restarts[@]} > 0)) && ! [[ ${restarts[1]} =~ ^[0-9]+$ ]]; then
    echo "error: --max-restarts must be a number, got '${restarts[1]}'." >&2
    exit 2
fi

if ((${#restarts[@]} > 0)); then
    # Let processes meet in a store of their own, not in the launcher's, which holds addresses of the ones before.
    export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
fi

if [[ ${NNODES:-1} != 1 ]]; then
    if [[ -z ${NODE_RANK:-} || -z ${MASTER_ADDR:-} ]]; then
        echo "error: NODE_RANK (0 to NNODES - 1) and MASTER_ADDR (of node 0) must be set for NNODES $NNODES." >&2
        exit 2
    fi
    rendezvous=(--nnodes "$NNODES" --node_rank "$NODE_RANK" --master_addr "$MASTER_ADDR" --master_port "${PORT:-29500}")
    if ((${#restarts[@]} > 0)); then
        # Processes that start again have to meet anew, which fixed ranks of machines do not allow.
        rendezvous=(--nnodes "$NNODES" --rdzv_backend c10d --rdzv_endpoint "$MASTER_ADDR:${PORT:-29500}")
    fi
elif [[ -n ${PORT:-} && ${#restarts[@]} -gt 0 ]]; then
    rendezvous=(--nnodes 1 --rdzv_backend c10d --rdzv_endpoint "localhost:$PORT")
elif [[ -n ${PORT:-} ]]; then
    rendezvous=(--nnodes 1 --master_addr localhost --master_port "$PORT")
else
    # Use a free port, so that two runs on one machine do not collide.
    rendezvous=(--standalone)
fi

# By default, torchrun gives each process one thread.
cores=$(getconf _NPROCESSORS_ONLN)
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$((cores > gpus ? cores / gpus : 1))}

# MMEngine imports yapf. Its first import in an environment writes a cache, which processes that start together may read
# while it is empty.
"${PYTHON:-python}" -c "import yapf" || true

# exec, so that signals reach torchrun and its exit code reaches the caller.
exec "${PYTHON:-python}" -m torch.distributed.run "${rendezvous[@]}" ${restarts[@]+"${restarts[@]}"} \
    --nproc_per_node "$gpus" ${arguments[@]+"${arguments[@]}"}
