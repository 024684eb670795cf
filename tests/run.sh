#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds and runs quire's tests; CI runs exactly this.
#   sh tests/run.sh [PART…]      all parts but bench when none is named
#   lint    layout, style and include rules; clang-format; a build by clang; clang-tidy
#   unit    dev build: cmocka unit tests, kernels against their reference, scheduler simulation (ctest)
#   e2e     release build: the real programs, HTTP and the openai package (pytest)
#   asan    the ctest suite under the address and undefined-behaviour sanitizers
#   tsan    the tests with threads under the thread sanitizer
#   fuzz    every fuzz target over its committed corpus and a little beyond (FUZZ_RUNS=20000)
#   bench   what the project promises in numbers, measured on this machine (each script BENCH_SECONDS=300 at most)
#   help    this text
# Exits non-zero when a test fails, when a part ran no test, or when a build warns.
set -eu
cd "$(dirname "$0")/.."

jobs=$(nproc)
say() { printf '\n== %s\n' "$*"; }

build() { # build PRESET: configure once, then build; quiet unless it fails
    mkdir -p "build/$1"
    say "build $1"
    cmake --preset "$1" >"build/$1/configure.log" 2>&1 || { cat "build/$1/configure.log" >&2; return 1; }
    cmake --build --preset "$1" -j "$jobs" >"build/$1/build.log" 2>&1 || {
        grep -E -A 12 'error|Error|warning' "build/$1/build.log" | head -n 100 >&2
        return 1
    }
}

benches() { # benches PRESET: the benchmarks in C, which "all" leaves out
    cmake --build "build/$1" -j "$jobs" --target benches >"build/$1/bench.log" 2>&1 || {
        tail -n 50 "build/$1/bench.log" >&2
        return 1
    }
}

python() { # the tests' own Python, made on first use
    if ! cmp -s tests/requirements.txt tests/.venv/installed.txt 2>/dev/null; then
        rm -rf tests/.venv
        python3 -m venv tests/.venv
        tests/.venv/bin/python -m pip install -q --disable-pip-version-check -r tests/requirements.txt
        cp tests/requirements.txt tests/.venv/installed.txt
    fi
    tests/.venv/bin/python "$@"
}

part_lint() {
    say "lint"
    python3 tests/lint.py
    build clang
    benches clang
    git ls-files '*.c' | grep -v -e '^tests/' -e '^kernels/cuda/' | xargs -P "$jobs" -n 4 clang-tidy-14 -p build/clang --quiet 2>/dev/null
    echo "lint: clang-tidy has nothing to say"
}

part_unit() {
    build dev
    ctest --test-dir build/dev --output-on-failure --no-tests=error -j "$jobs"
}

part_e2e() {
    build release
    cmake --build build/release -j "$jobs" --target carry >build/release/carry.log 2>&1 || {
        tail -n 50 build/release/carry.log >&2
        return 1
    }
    QUIRE_BIN=$PWD/build/release/bin python -m pytest -q tests/e2e
}

part_asan() {
    build asan
    ASAN_OPTIONS=detect_leaks=1 UBSAN_OPTIONS=print_stacktrace=1 \
        ctest --test-dir build/asan --output-on-failure --no-tests=error -j "$jobs"
}

part_tsan() {
    build tsan
    TSAN_OPTIONS=halt_on_error=1 \
        ctest --test-dir build/tsan --output-on-failure --no-tests=error -L threads
}

part_fuzz() {
    build fuzz
    ran=0
    for target in build/fuzz/fuzz/fuzz_*; do
        [ -x "$target" ] || continue
        name=${target##*/fuzz_}
        work=$(mktemp -d)
        "$target" -runs="${FUZZ_RUNS:-20000}" -max_total_time=60 -seed=1 -rss_limit_mb=2048 -timeout=20 -verbosity=0 \
            -print_final_stats=0 "$work" "tests/fuzz/corpus/$name" || { echo "fuzz: $name failed" >&2; exit 1; }
        rm -rf "$work"
        ran=$((ran + 1))
        echo "fuzz: $name ok"
    done
    [ "$ran" -gt 0 ] || { echo "fuzz: no target was built" >&2; exit 1; }
    echo "$ran passed, 0 failed"
}

part_bench() { # every script, also after one that failed or took longer than BENCH_SECONDS (300)
    build release
    benches release
    cmake --preset dev >build/release/bench.log 2>&1 # decode.sh takes the machine's bandwidth from kcheck
    cmake --build build/dev -j "$jobs" --target kcheck >>build/release/bench.log 2>&1 || {
        tail -n 50 build/release/bench.log >&2
        return 1
    }
    failed=
    for script in tests/bench/*.sh; do
        name=$(basename "$script" .sh)
        say "bench $name"
        rc=0
        QUIRE_BIN=$PWD/build/release/bin timeout -k 10 "${BENCH_SECONDS:-300}" sh "$script" || rc=$?
        case $rc in
        0) ;;
        124 | 137) failed="$failed $name (longer than ${BENCH_SECONDS:-300} s)" ;;
        *) failed="$failed $name ($rc)" ;;
        esac
    done
    [ -z "$failed" ] || { echo "bench: failed:$failed" >&2; return 1; }
}

case "${1:-}" in
help | -h | --help) sed -n '3,14s/^# \{0,1\}//p' "$0"; exit 0 ;;
esac
[ $# -gt 0 ] || set -- lint unit e2e asan tsan fuzz
for part in "$@"; do
    case "$part" in
    lint | unit | e2e | asan | tsan | fuzz | bench) ;;
    *) echo "tests/run.sh: unknown part \"$part\"; see sh tests/run.sh help" >&2; exit 2 ;;
    esac
done
sh deploy/deps.sh test
for part in "$@"; do
    "part_$part"
done
say "all parts passed: $*"
