#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Tests and measures quire on a GPU in 9 minutes. Needs the programs (BIN; default: those beside this script when it was
# carried, else build/cuda) and python3; torch, transformers and compute-sanitizer are used where they are.
#   sh tests/gpu/run.sh [PART…]   all parts when none is named, in this order
#   ceilings   what the card does at best: a copy, products by torch. Without them figures have no fractions
#   kernels    every CUDA kernel against the reference on random shapes, each row's bits in other company; their speed
#   goldens    greedy tokens of the small committed models against their references, with graphs, without, one at a time; and
#              bfloat16 with --deterministic: the same bits together, alone, without graphs, in chunks
#   sanitizer  kernels and steps under compute-sanitizer: memcheck, racecheck
#   bench      Llama-3-8B, Qwen2.5-0.5B and Qwen3-30B-A3B shapes with random weights: decode, prefill, many requests, by HTTP
#   torch      the same card by torch: SDPA and products; transformers' generate, plain and compiled
#   bundle     here, before: everything for a machine with a driver and nothing of ours, as one file (TAR):
#              tar xf quire-gpu.tar.gz && sh quire-gpu/tests/gpu/run.sh
# Writes OUT (default build/gpu), three files: page.md (the bars, then every figure), results.json, log.txt. What has a result
# of this card and of these programs is not run again (--again), so the same command goes on where a run was cut off.
# --minutes 4: another time limit. --job 'bench/Llama.*': some jobs only. Exit status 1 when a job failed.
# QUIRE_DEVICE and QUIRE_CUDA_LIBRARY choose another device, or a library without a card, to try this script (with --small).
set -eu
cd "$(dirname "$0")/../.."
if [ "${1:-}" = bundle ]; then
    from=${BUILD:-build/cuda}
    tar=${TAR:-build/quire-gpu.tar.gz}
    [ -x "$from/carry/bin/quire-generate" ] || { echo "run.sh: nothing in $from/carry; cmake --build --preset carry makes it" >&2; exit 1; }
    all=$(mktemp -d)
    trap 'rm -rf "$all"' EXIT
    to=$all/quire-gpu
    mkdir -p "$to/tests/gpu" "$to/tests/data"
    cp -r "$from/carry/bin" "$from/carry/lib" "$to/"
    rm -f "$to/lib/libquire.a"
    cp tests/gpu/*.py tests/gpu/run.sh "$to/tests/gpu/"
    cp -r tests/data/models "$to/tests/data/"
    [ -e "$to/lib/libquire-cuda.so" ] || echo "run.sh: no libquire-cuda.so in it; cmake --preset cuda needs nvcc" >&2
    mkdir -p "$(dirname "$tar")"
    tar -C "$all" -cf - quire-gpu | gzip -6 >"$tar"
    du -sh "$tar"
    exit
fi
for bin in ${BIN:-bin build/cuda/carry/bin build/cuda/bin}; do
    [ ! -d "$bin" ] || break
done
exec python3 tests/gpu/run.py --bin "$bin" --out "${OUT:-build/gpu}" "$@"
