#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Decode speed of a Qwen2.5-0.5B shape through the whole server, beside the machine's read bandwidth.
set -eu
cd "$(dirname "$0")/../.."
cmake --preset dev >/dev/null
cmake --build --preset dev --target kcheck >/dev/null # for the bandwidth
exec python3 tests/bench/decode.py
