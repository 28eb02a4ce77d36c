#!/usr/bin/env bash
# Train on a Slurm cluster with a task per GPU. Arguments after WORK_DIR are passed to tools/train.py:
#   GPUS=16 SRUN_ARGS="--time=24:00:00" \
#       tools/slurm_train.sh PARTITION soft_tiny configs/soft_tiny.py work_dirs/soft_tiny --resume
# Environment: GPUS of the whole job (default: 8); GPUS_PER_NODE (8, or GPUS if fewer); CPUS_PER_TASK (5), on which the
# data workers of a task run; SRUN_ARGS, more options of srun, such as the time limit; NOTICE (300), seconds before the
# time limit at which SIGTERM arrives. At SIGTERM the run saves and exits; with --resume, the same command continues it.
set -euo pipefail

if [[ $# -lt 4 ]]; then
    echo "usage: tools/slurm_train.sh PARTITION JOB_NAME CONFIG WORK_DIR [options of tools/train.py]" >&2
    exit 2
fi
tools=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
gpus=${GPUS:-8}
per_node=${GPUS_PER_NODE:-$((gpus < 8 ? gpus : 8))}
read -ra more <<<"${SRUN_ARGS:-}"

# As in dist_launch.sh, where machines share the home folder.
"${PYTHON:-python}" -c "import yapf" || true

exec srun --partition="$1" --job-name="$2" \
    --ntasks="$gpus" --ntasks-per-node="$per_node" --gres="gpu:$per_node" --cpus-per-task="${CPUS_PER_TASK:-5}" \
    --kill-on-bad-exit=1 --signal="TERM@${NOTICE:-300}" ${more[@]+"${more[@]}"} \
    "${PYTHON:-python}" -u "$tools/train.py" "$3" --work-dir "$4" --launcher slurm "${@:5}"
