#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What a frontend weighs.
exec python3 "$(dirname "$0")/bench_frontend.py"
