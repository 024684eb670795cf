#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Tests and measures quire on a GPU. Needs a build (BIN, default build/cuda/bin) or a bundle of one, and python3.
#   sh tests/gpu/run.sh [PART…]   all parts when none is named, in this order; each can be run alone
#   ceilings   what the card does at best: a copy, a bf16 product (by torch; without it figures have no fractions)
#   kernels    every CUDA kernel on the card against the reference on random shapes, and each row's bits in other company
#   goldens    greedy tokens of the small committed models, by f32 on the GPU, against their references; alone and together,
#              with graphs and without: the same tokens
#   sanitizer  one of them under compute-sanitizer: memcheck, racecheck (skipped where the tool is not there)
#   bench      Llama-3-8B and Qwen2.5-0.5B shapes with random weights: decode, prefill, many requests; each a fraction of the ceilings
#   torch      the same shapes by transformers' generate: SDPA, and compiled (skipped where they are not there)
#   bundle     here, before: the programs, the library and what they link to into one folder (BUNDLE) that a bare machine
#              with a driver can run: sh BUNDLE/tests/gpu/run.sh
# Writes OUT (default build/gpu): PART.json, page.md, and every program's output. The parts take less than 9 minutes together.
# What has a result of this card and these programs is not run again (--again), so a run that was cut off goes on.
# QUIRE_DEVICE and QUIRE_CUDA_LIBRARY choose another device, or a library without a card to try this script.
set -eu
cd "$(dirname "$0")/../.."
bin=${BIN:-$([ -d bin ] && echo bin || echo build/cuda/bin)}
if [ "${1:-}" = bundle ]; then
    to=${BUNDLE:-build/gpu-bundle}
    mkdir -p "$to/bin" "$to/lib" "$to/tests/gpu" "$to/tests/data"
    cp "$bin/quire-generate" "$bin/quire-bench" "$to/bin/"
    cp "$bin/../tests/cuda_check_card" "$to/bin/"
    cp "$bin/../lib/libquire-cuda.so" "$to/lib/"
    cp tests/gpu/run.sh tests/gpu/run.py "$to/tests/gpu/"
    cp -r tests/data/models "$to/tests/data/"
    # all but the C library, which every machine has, and the driver, which the GPU's has
    for program in quire-generate quire-bench; do ldd "$bin/$program"; done | awk '$3 ~ /^\// {print $3}' | sort -u |
        grep -v -E '/(libc|libm|libpthread|libdl|librt)\.so' | xargs -I '{}' cp -L '{}' "$to/lib/"
    du -sh "$to"
    exit
fi
[ -d lib ] && export LD_LIBRARY_PATH="$PWD/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
exec python3 tests/gpu/run.py --bin "$bin" --out "${OUT:-build/gpu}" "$@"
