#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Tests and measures quire on a GPU in 9 minutes. Needs the programs (BIN; default: those beside this script when it was
# carried, else build/cuda) and python3; torch, transformers, compute-sanitizer and ncu are used where they are.
#   sh tests/gpu/run.sh [PART…]   all parts when none is named; across parts what is worth most comes first (STAGES in run.py)
#   machine    what there is: card, driver, toolkit, cuBLASLt, memory
#   ceilings   what the card does at best: a copy, products by torch. Without them figures have no fractions
#   kernels    every CUDA kernel against the reference on random shapes, each row's bits in other company; their speed
#   goldens    greedy tokens of the small committed models against their references, with graphs, without, one at a time; with
#              --deterministic the same bits together, alone, without graphs, in chunks; the CPU's tokens at the shapes of models
#   sanitizer  kernels and steps under compute-sanitizer: memcheck, racecheck
#   bench      Llama-3-8B, Qwen2.5-0.5B and Qwen3-30B-A3B shapes with random weights: decode, prefill, many requests, by HTTP
#   torch      the same card by torch: SDPA and products; transformers' generate, plain and compiled
#   profile    the hardware's counters of the kernels at the shapes of the benchmark, by ncu
#   bundle     here, before: everything for a machine with a driver and nothing of ours, as one file (TAR, .tar.xz or .tar.gz):
#              python3 -m tarfile -e quire-gpu.tar.xz . && sh quire-gpu/tests/gpu/run.sh
# Writes OUT (default build/gpu): page.md (the bars, then every figure), results.json, log.txt, profile.txt, quire/tune.
# What has a result of this card and of these programs is not run again (--again), so the same command goes on where a run was
# cut off, on another machine with --with FOLDER, where the results of before lie. --minutes 4: another time limit.
# --job 'bench/Llama.*': some jobs only. Exit status 1 when a job failed. A card for a quarter of an hour: README.md beside this.
# QUIRE_DEVICE and QUIRE_CUDA_LIBRARY choose another device, or a library without a card, to try this script (with --small).
set -eu
here=$(cd "$(dirname "$0")/../.." && pwd)

bundle() {
    cd "$here"
    from=${BUILD:-build/cuda}
    tar=${TAR:-build/quire-gpu.tar.xz}
    [ -x "$from/portable/bin/quire-generate" ] || { echo "run.sh: nothing in $from/portable; cmake --build --preset portable makes it" >&2; exit 1; }
    [ -e tests/data/models/qwen3/model.safetensors ] || { echo "run.sh: test models have no weights; cmake --build --preset dev --target weights draws them" >&2; exit 1; }
    all=$(mktemp -d)
    trap 'rm -rf "$all"' EXIT
    to=$all/quire-gpu
    mkdir -p "$to/tests/gpu" "$to/tests/data"
    cp -r "$from/portable/bin" "$from/portable/lib" "$to/"
    rm -f "$to/lib/libquire.a"
    cp tests/gpu/*.py tests/gpu/run.sh "$to/tests/gpu/"
    cp -r tests/data/models "$to/tests/data/"
    strip "$to/bin/"*
    mkdir -p "$(dirname "$tar")"
    case $tar in # the programs have most of their code in common: xz sees it with a dictionary larger than they are, half of gzip's size
    *.gz) tar -C "$all" -cf - quire-gpu | gzip -6 >"$tar" ;;
    *) tar -C "$all" -cf - quire-gpu | xz --lzma2=preset=6,dict=128MiB >"$tar" ;;
    esac
    echo "$(($(wc -c <"$tar") >> 20)) MiB $tar"
    if [ ! -e "$to/lib/libquire-cuda.so" ]; then
        echo "run.sh: no libquire-cuda.so in it, so it runs on the CPU only; cmake --preset cuda needs nvcc" >&2
        return
    fi
    said=$("$to/bin/cuda_bench" --op copy 2>&1) || true # loads it; without a card it gets no further
    case $said in
    *"CUDA: no device"* | *TB/s*) ;;
    *) echo "run.sh: libquire-cuda.so and these programs do not go together: $said" >&2; exit 1 ;;
    esac
}

if [ "${1:-}" = bundle ]; then
    bundle
    exit
fi
for bin in "${BIN:-$here/bin}" "$here/build/cuda/portable/bin" "$here/build/cuda/bin"; do
    [ ! -d "$bin" ] || break
done
exec python3 "$here/tests/gpu/run.py" --bin "$bin" --out "${OUT:-$here/build/gpu}" "$@"
