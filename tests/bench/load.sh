#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Start to ready of a model of Llama-3.2-1B's shape, packed at each start and from the packed cache, beside a memcpy of
# the same bytes.
set -eu
cd "$(dirname "$0")/../.."
exec python3 tests/bench/load.py "$@"
