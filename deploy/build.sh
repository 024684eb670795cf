#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds a configured folder and shows the progress; when the build fails, it prints the first error instead of the whole log.
#   sh deploy/build.sh FOLDER [TARGET…]    all when no target is named; BUILD_JOBS (default: all cores) compilers at once
# On a terminal one line that changes, else a line every ten per cent. The whole log is FOLDER/build.log.
set -eu

[ $# -gt 0 ] || { sed -n '3,5s/^# \{0,1\}//p' "$0" >&2; exit 2; }
folder=$1
shift
[ -e "$folder/CMakeCache.txt" ] || { echo "build.sh: $folder is not configured: cmake --preset $(basename "$folder")" >&2; exit 2; }
[ $# -gt 0 ] || set -- all
log=$folder/build.log
sync=
if grep -q '^CMAKE_GENERATOR:INTERNAL=Unix Makefiles$' "$folder/CMakeCache.txt"; then
    sync=--output-sync=target # what one compiler says stays together
fi

show() { # show: the build's output on standard input becomes progress on standard output
    shown=0
    bar=no
    [ ! -t 1 ] || bar=yes
    while IFS= read -r line || [ -n "$line" ]; do
        printf '%s\n' "$line" >&3
        case $line in
        '['*%\]*) ;;
        *) continue ;;
        esac
        percent=${line#'['}
        percent=${percent%%\%*}
        percent=${percent##* }
        case $percent in
        '' | *[!0-9]*) continue ;;
        esac
        if [ "$bar" = yes ]; then
            printf '\r\033[K%3s %% %.60s' "$percent" "${line#*] }"
        elif [ "$percent" -ge $((shown + 10)) ]; then
            shown=$((percent / 10 * 10))
            echo "$percent %"
        fi
    done
    [ "$bar" = no ] || printf '\r\033[K'
}

blame() { # blame: the first error in the log with what belongs to it
    awk '
        { line[NR] = $0 }
        !first && (/(^|[: ])(fatal |internal compiler )?[Ee]rror[: ]/ || /undefined reference|multiple definition/ ||
                   /cannot find -l|: not found|[Nn]o space left|Killed|Segmentation fault|No rule to make/) &&
            !/\*\*\*.*Error [0-9]/ { first = NR }
        !stop && /\*\*\*.*Error [0-9]/ { stop = NR }
        END {
            from = first ? first - 4 : stop ? stop - 30 : NR - 39
            to = first ? first + 35 : stop ? stop : NR
            for (i = from < 1 ? 1 : from; i <= to && i <= NR; i++)
                if (line[i] !~ /^\[ *[0-9]+%\]/)
                    print line[i]
        }' "$log"
}

: >"$log"
{
    rc=0
    # shellcheck disable=SC2086  # no word where make is not the tool
    LC_ALL=C cmake --build "$folder" -j "${BUILD_JOBS:-$(nproc)}" --target "$@" -- $sync 2>&1 || rc=$?
    echo "$rc" >"$folder/build.rc"
} | show 3>"$log"
[ "$(cat "$folder/build.rc")" != 0 ] || exit 0
echo "the build failed:" >&2
blame >&2
echo "the whole log: $log" >&2
exit 1
