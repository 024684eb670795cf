#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds and runs quire's tests; CI runs exactly this.
#   sh tests/run.sh [PART…]      all parts but bench when none is named
#   lint    layout, style and include rules; clang-format; a build by clang; clang-tidy
#   unit    dev build: cmocka unit tests, kernels against their reference, scheduler simulation (ctest)
#   e2e     release build: the real programs, HTTP and the openai package (pytest)
#   asan    the ctest suite under the address and undefined-behaviour sanitizers
#   tsan    the tests with threads under the thread sanitizer
#   cuda    libquire-cuda.so for every target by nvcc 13.0 (from PyPI when it is not installed): registers and spills of each
#           kernel beside tests/gpu/resources.txt; that the library loads where there is no driver, and says so. No card needed.
#   fuzz    every fuzz target over its committed corpus and a little beyond (FUZZ_RUNS=20000)
#   bench   what the project promises in numbers, measured on this machine (each script BENCH_SECONDS=300 at most)
#   help    this text
# Exits non-zero when a test fails, when a part ran no test, or when a build warns.
set -eu
cd "$(dirname "$0")/.."

jobs=$(nproc)
say() { printf '\n== %s\n' "$*"; }

configure() { # configure PRESET [OPTION…]
    mkdir -p "build/$1"
    preset=$1
    shift
    cmake --preset "$preset" "$@" >"build/$preset/configure.log" 2>&1 || { cat "build/$preset/configure.log" >&2; return 1; }
}

build() { # build PRESET [TARGET…]: quiet unless it fails
    say "build $*"
    preset=$1
    shift
    [ $# -gt 0 ] || set -- all
    configure "$preset"
    cmake --build "build/$preset" -j "$jobs" --target "$@" >"build/$preset/build.log" 2>&1 || {
        grep -E -A 12 'error|Error|warning' "build/$preset/build.log" | head -n 100 >&2
        return 1
    }
}

packages() { # packages FILE [FOLDER]: a Python of the tests' own (tests/.venv) has what tests/FILE lists; made on first use
    python=tests/${2:-.venv}
    cmp -s "tests/$1" "$python/$1" && return
    [ -e "$python/bin/python" ] || python3 -m venv "$python"
    "$python/bin/python" -m pip install -q --disable-pip-version-check -r "tests/$1"
    cp "tests/$1" "$python/$1"
}

# The analyzer takes a quarter of the steps in a function that it takes by itself: of 15 minutes of CPU 5 are left. On files
# that were changed, run clang-tidy-14 -p build/clang FILE… without that.
part_lint() {
    say "lint"
    python3 tests/lint.py
    build clang all benches
    git ls-files '*.c' | grep -v -e '^tests/' -e '^kernels/cuda/' |
        xargs -P "$jobs" -n 4 clang-tidy-14 -p build/clang --quiet --extra-arg=-Xclang --extra-arg=-analyzer-config \
            --extra-arg=-Xclang --extra-arg=max-nodes=56250 2>/dev/null
    echo "lint: clang-tidy has nothing to say"
}

part_unit() {
    build dev
    ctest --test-dir build/dev --output-on-failure --no-tests=error -j "$jobs"
}

part_e2e() {
    build release all carry
    packages requirements.txt
    packages requirements-agents.txt .venv-agents
    QUIRE_BIN=$PWD/build/release/bin tests/.venv/bin/python -m pytest -q tests/e2e
}

part_asan() {
    build asan
    ASAN_OPTIONS=detect_leaks=1 UBSAN_OPTIONS=print_stacktrace=1 \
        ctest --test-dir build/asan --output-on-failure --no-tests=error -j "$jobs"
}

part_tsan() {
    build tsan threads
    TSAN_OPTIONS=halt_on_error=1 \
        ctest --test-dir build/tsan --output-on-failure --no-tests=error -L threads
}

part_fuzz() { # the corpus, then new input until FUZZ_RUNS runs or FUZZ_SECONDS seconds are over
    build fuzz fuzzers
    export FUZZ_RUNS="${FUZZ_RUNS:-20000}" FUZZ_SECONDS="${FUZZ_SECONDS:-20}"
    set -- build/fuzz/fuzz/fuzz_*
    [ -x "$1" ] || { echo "fuzz: no target was built" >&2; exit 1; }
    printf '%s\n' "$@" | xargs -P "$jobs" -n 1 sh -c '
        name=${0##*/fuzz_}
        work=$(mktemp -d)
        said=$("$0" -runs="$FUZZ_RUNS" -max_total_time="$FUZZ_SECONDS" -seed=1 -rss_limit_mb=2048 -timeout=20 -verbosity=0 \
            -print_final_stats=0 -artifact_prefix=build/fuzz/ "$work" "tests/fuzz/corpus/$name" 2>&1) ||
            { printf "%s\n" "$said" "fuzz: $name failed" >&2; exit 1; }
        rm -rf "$work"
        echo "fuzz: $name ok"'
    echo "$# passed, 0 failed"
}

part_cuda() {
    compiler=$(sh deploy/cuda.sh nvcc)
    configure cuda -DNVCC="$compiler"
    build cuda quire_cuda cuda_library
    python3 tests/gpu/resources.py --build build/cuda
    library=build/cuda/lib/libquire-cuda.so
    more=$(readelf -d "$library" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | grep -v -E '^(lib(c|m)\.so\.6|ld-linux.*)$' || true)
    [ -z "$more" ] || { echo "cuda: $library needs $more" >&2; return 1; }
    build/cuda/tests/cuda_library "$library"
}

part_bench() { # every script, also after one that failed or took longer than BENCH_SECONDS (300)
    build release all benches
    build dev kcheck # decode.sh takes the machine's bandwidth from it
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
help | -h | --help) sed -n '3,16s/^# \{0,1\}//p' "$0"; exit 0 ;;
esac
[ $# -gt 0 ] || set -- lint unit e2e asan tsan fuzz cuda
for part in "$@"; do
    case "$part" in
    lint | unit | e2e | asan | tsan | fuzz | cuda | bench) ;;
    *) echo "tests/run.sh: unknown part \"$part\"; see sh tests/run.sh help" >&2; exit 2 ;;
    esac
done
sh deploy/deps.sh test

# Beside other parts, nvcc works from the beginning on, with what they leave of the cores: some of them mostly wait.
behind=
case " $* " in
" cuda ") ;;
*" cuda "*)
    mkdir -p build/cuda
    NVCC=$(sh deploy/cuda.sh nvcc) setsid nice -n 19 sh tests/run.sh cuda >build/cuda/part.log 2>&1 &
    behind=$!
    trap '[ -z "$behind" ] || kill -- -"$behind"' EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
    ;;
esac
for part in "$@"; do
    if [ "$part" = cuda ] && [ -n "$behind" ]; then
        rc=0
        wait "$behind" || rc=$?
        behind=
        cat build/cuda/part.log
        [ "$rc" = 0 ] || exit "$rc"
    else
        "part_$part"
    fi
done
say "all parts passed: $*"
