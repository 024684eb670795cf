#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The whole engine on one core with a worker that computes nothing. Aim: 200,000 output tokens/s with 256 sequences.
set -eu
cd "$(dirname "$0")/../.."
cmake --build --preset release --target bench_engine >/dev/null
for n_seq in 16 256 1024; do
    "${QUIRE_BIN:-build/release/bin}/bench_engine" tests/data/models/llama $n_seq
done
