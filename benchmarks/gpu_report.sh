#!/usr/bin/env bash
# Test and measure the package on this machine's NVIDIA GPUs, within ten minutes and without a network:
#   benchmarks/gpu_report.sh OUT          # writes OUT/report.md and OUT/report.csv; run again, it continues
#   benchmarks/gpu_report.sh OUT --dry    # tiny sizes on a CPU, kernels in Triton's interpreter
# PYTHON names another interpreter than `python`, or `python3` where `python` is missing.
set -uo pipefail

out=${1:?give a folder for the report}
dry=${2:-}
python=${PYTHON:-$(command -v python || command -v python3)}
mkdir -p "$out" && out=$(cd "$out" && pwd) || exit
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit
# From the clone, installed or not.
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
# The rest of ten minutes is for the first import and for the page. A CPU may be busy.
deadline=570
if [[ $dry ]]; then
    deadline=3600
    export TRITON_INTERPRET=1 CUDA_VISIBLE_DEVICES="" OMP_NUM_THREADS=1
fi
report() { "$python" -m benchmarks gpu ${dry:+--dry} --out "$out" "$@"; }
trap 'kill $(jobs -p) 2>/dev/null; exit 1' INT TERM HUP

# NAME SECONDS ARGUMENT ...: run Python with these arguments if the part is not done, and keep how it ended. What it
# started ends with it.
part() {
    local name=$1 seconds=$2 began=$SECONDS log="$out/$1.log" state=failed code
    shift 2
    if [[ -e $out/$name.state && $(<"$out/$name.state") == done* ]]; then return; fi
    if ((SECONDS >= deadline)); then
        echo "not begun" >"$out/$name.state"
        : >"$log"
        return
    fi
    ((seconds < deadline - SECONDS)) || seconds=$((deadline - SECONDS))
    # timeout makes a process group.
    timeout -k 10 "$seconds" "$python" "$@" >"$log" 2>&1 </dev/null &
    local group=$!
    trap 'kill -KILL -- "-$group" 2>/dev/null; exit 1' TERM
    wait "$group"
    code=$?
    kill -KILL -- "-$group" 2>/dev/null
    if ((code == 0)); then state=done; fi
    if ((code == 124 || code == 137)); then state="out of time"; fi
    echo "$state, $((SECONDS - began)) s" >"$out/$name.state"
    echo "$name: $(<"$out/$name.state")"
}
alone() {
    wait
    part "$@" &
    wait
    report
}
# With others, half as many as there are cores, as nothing is timed.
together() {
    while (($(jobs -rp | wc -l) > 0 && $(jobs -rp | wc -l) >= $(nproc) / 2)); do wait -n; done
    part "$@" &
}
# NAME SECONDS MARKS ARGUMENT ...: without the options of pyproject.toml, which need pytest-xdist.
tests() {
    local name=$1 seconds=$2 marks=$3
    shift 3
    together "tests_$name" "$seconds" -m pytest -q -o addopts= --strict-markers --import-mode=importlib \
        -p no:cacheprovider -m "$marks" "$@"
}
operator() {
    local name=$1 seconds=$2
    shift 2
    alone "$name" "$seconds" -m benchmarks operator "$@" --bandwidth --dtype bfloat16 --out "$out/$name"
}
models() {
    local name=$1 seconds=$2
    shift 2
    alone "$name" "$seconds" -m benchmarks models "$@" --dtype bfloat16 --memory --out "$out/$name"
}

report --check || exit
forms=(softmax newton-triton newton-eager naive linear)
kernels=tests/ops/soft/triton
if [[ $dry ]]; then
    operator operator_17 900 "${forms[@]}" --tokens 17 --batch-size 1 --shape 2 16 4 --rounds 3
    tests inverse 900 "not slow" $kernels/test_newton_inverse.py -k converged
    models models 900 soft_pico soft_pico+channels_last --img-size 32 --batch-size 2 --rounds 3
else
    shape=(--batch-size 8 --shape 16 64 49)
    batch=$("$python" -c "import torch; gib = torch.cuda.get_device_properties(0).total_memory / 2**30
print(256 if gib >= 100 else 128 if gib >= 30 else 32)")
    # In the order of their worth.
    for tokens in 3136 32768 12544 8192 1024; do
        operator "operator_$tokens" 90 "${forms[@]}" --tokens $tokens "${shape[@]}"
    done
    # Most of their time goes into compiling.
    for shard in 1 2 3; do tests "kernels_$shard" 200 "gpu and not slow" $kernels/test_kernels.py --shard=$shard/3; done
    for shard in 1 2 3; do tests "sizes_$shard" 200 "gpu and slow" $kernels/test_kernels.py --shard=$shard/3; done
    tests operators 200 gpu $kernels --ignore=$kernels/test_kernels.py
    tests training 200 gpu tests/gpu
    # Compiles the kernels of the first models, which takes longer than to time them; Triton keeps them on disk.
    together warm_up 200 -m benchmarks models soft_tiny soft_tiny+channels_last --batch-size "$batch" --dtype bfloat16 \
        --rounds 3
    operator graph 60 newton-triton+graph --passes forward --tokens 3136 32768 12544 8192 1024 "${shape[@]}"
    zoo=(soft_tiny pvt_v2_b1 swin_tiny_patch4_window7_224 deit_small_patch16_224)
    models models 150 "${zoo[@]}" "${zoo[@]/%/+channels_last}" --batch-size "$batch"
    for name in "${zoo[@]}"; do
        models "compiled_$name" 120 "$name+channels_last+compiled" --batch-size "$batch"
    done
fi
wait
report --final
