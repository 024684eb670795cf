#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What the engine core costs per decode step beside the forward pass (planning, ring, sampling, outputs). Aim: tens of
# microseconds for one sequence.
set -eu
cd "$(dirname "$0")/../.."
cmake --build --preset release --target bench_core quire-worker >/dev/null
for n_seq in 1 8 64; do
    "${QUIRE_BIN:-build/release/bin}/bench_core" deploy/model/quire-tiny $n_seq
done
