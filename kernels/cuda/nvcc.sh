#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# nvcc.sh REPORT COMMAND…: runs a compilation; what it says goes to REPORT, and to the screen too when it is more than
# ptxas' lines about registers.
report=$1
shift
"$@" >"$report" 2>&1
rc=$?
grep -v -E '^$|^ptxas info |^ +[0-9]+ bytes (stack frame|gmem)' "$report" >&2
exit $rc
