#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The same load through quire serve, quire run-batch and quire generate.
exec python3 "$(dirname "$0")/online_offline.py"
