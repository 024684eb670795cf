#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What the scheduler costs by itself: tokens per second of one core through plan and settle. Aim: 1 M tokens/s at 256 sequences.
set -eu
cd "$(dirname "$0")/../.."
cmake --build --preset release --target bench_scheduler >/dev/null
for n_seq in 1 32 256 1024; do
    "${QUIRE_BIN:-build/release/bin}/bench_scheduler" $n_seq
done
