#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds and runs quire's tests.
#   sh tests/run.sh [PART…]        what a contributor needs: lint unit e2e asan fuzz, or those parts of it
#   sh tests/run.sh all [PART…]    everything: those parts whole, tsan and cuda. CI runs exactly this
#   lint    layout, style and include rules; clang-format; clang-tidy
#   unit    cmocka unit tests, kernels against their reference, scheduler simulation, the CUDA kernels on an emulation (ctest)
#   e2e     the real programs, HTTP and the openai package (pytest). Up to 3 tests that fail and then pass by themselves are named as
#           unsteady in the closing lines; they do not fail the run, and are defects to mend
#   asan    under the address and undefined-behaviour sanitizers: the tests of what bytes from outside reach (all: every test)
#   fuzz    every fuzz target over its committed corpus, then new input: a minute in all (all: 20 s each); FUZZ_SECONDS=N each
#   tsan    the tests with threads under the thread sanitizer
#   cuda    libquire-cuda.so for 8.0 and 9.0 by nvcc 13.0 (from PyPI when it is not installed): registers and spills of each
#           kernel, bounds on its machine code (tests/gpu/sass.txt); that the library loads without a driver. No card needed
#   fresh   no part of all, it holds these two commands: deploy/up.sh --check and tests/run.sh in a new chroot (tests/fresh.sh)
#   bench   no part of all: the promised figures, measured on this machine (each script BENCH_SECONDS=300 at most)
#   help    this text
# At the end: seconds and seconds of CPU of each part, and how many tests passed, failed and were skipped, and why. Exits
# non-zero when a test fails, when a part ran no test, or when a build warns.
set -eu
cd "$(dirname "$0")/.."

jobs=$(nproc)
whole=${QUIRE_TESTS_WHOLE:-}
say() { printf '\n== %s\n' "$*"; }

# A part's closing lines, which the table at the end repeats.
closing() { printf '%s\n' "$*" | tee -a build/parts/"$part"; }
tallied() { # tallied JUNIT [AGAIN]: counts of a runner's file; fails when a test did
    rc=0
    python3 tests/tally.py "$part" "$@" >build/parts/tally || rc=$?
    tee -a build/parts/"$part" <build/parts/tally
    return "$rc"
}

configure() { # configure PRESET [OPTION…]
    mkdir -p "build/$1"
    preset=$1
    shift
    cmake --preset "$preset" "$@" >"build/$preset/configure.log" 2>&1 || { cat "build/$preset/configure.log" >&2; return 1; }
}

build() { # build PRESET [TARGET…]
    say "build $*"
    configure "$1"
    preset=$1
    shift
    sh deploy/build.sh "build/$preset" "$@"
}

packages() { # packages FILE [FOLDER]: a Python of the tests' own (tests/.venv) has what tests/FILE lists; made on first use
    python=tests/${2:-.venv}
    cmp -s "tests/$1" "$python/$1" && return
    [ -e "$python/bin/python" ] || python3 -m venv "$python"
    "$python/bin/python" -m pip install -q --disable-pip-version-check -r "tests/$1"
    cp "tests/$1" "$python/$1"
}

run_ctest() { # run_ctest PRESET [OPTION…]
    preset=$1
    shift
    ran=0
    rm -f "build/$preset/junit.xml"
    ctest --test-dir "build/$preset" --output-on-failure --no-tests=error -j "$jobs" --test-output-size-passed 4000000 \
        --output-junit junit.xml "$@" || ran=$?
    tallied "build/$preset/junit.xml"
    return "$ran"
}

# The analyzer takes a quarter of the steps in a function that it takes by itself: of 15 minutes of CPU 5 are left. On files that
# were changed, run clang-tidy-14 -p build/dev FILE… without that. clang's own warnings come with clang-tidy, those about the tests
# with the build of asan.
part_lint() {
    say "lint"
    rc=0
    python3 tests/lint.py >build/parts/findings || rc=$?
    cat build/parts/findings
    tail -n 1 build/parts/findings >>build/parts/lint
    configure dev
    git ls-files '*.c' | grep -v -e '^tests/' -e '^kernels/cuda/' >build/parts/tidy
    xargs -P "$jobs" -n 4 clang-tidy-14 -p build/dev --quiet --extra-arg=-Xclang --extra-arg=-analyzer-config \
        --extra-arg=-Xclang --extra-arg=max-nodes=56250 --extra-arg=-Wno-unknown-warning-option <build/parts/tidy \
        2>build/parts/tidy.err || { rc=1; grep -E 'rror' build/parts/tidy.err >&2 || true; }
    [ "$rc" = 0 ] || return "$rc"
    closing "lint: clang-tidy has nothing to say about $(wc -l <build/parts/tidy) files"
}

part_unit() {
    build dev all benches
    run_ctest dev
}

build_ahead() {
    configure asan && nice -n 19 sh deploy/build.sh build/asan all fuzzers
    configure tsan && nice -n 19 sh deploy/build.sh build/tsan threads
    compiler=$(sh deploy/cuda.sh nvcc) && configure cuda -DNVCC="$compiler" && nice -n 19 sh deploy/build.sh build/cuda quire_cuda cuda_library
}

part_e2e() {
    build dev all portable
    packages requirements.txt
    packages requirements-agents.txt .venv-agents
    # These tests wait more than they compute: cores they leave idle build what later parts will run.
    [ -z "$QUIRE_TESTS_AHEAD" ] || build_ahead >build/parts/ahead 2>&1 &
    ran=0
    rm -f build/dev/e2e.xml build/dev/again.xml
    run_pytest build/dev/e2e.xml || ran=$?
    wait # for the builds; the parts go on with them, and say what failed
    if [ "$ran" = 1 ]; then
        say "the tests that failed, once more by themselves"
        ran=0
        run_pytest build/dev/again.xml --last-failed --last-failed-no-failures none --maxfail 3 || ran=$?
        tallied build/dev/e2e.xml build/dev/again.xml
    else
        tallied build/dev/e2e.xml
    fi
    return "$ran"
}

run_pytest() { # run_pytest JUNIT [OPTION…]
    junit=$1
    shift
    QUIRE_BIN=$PWD/build/dev/bin tests/.venv/bin/python -m pytest -q --junit-xml "$junit" -o junit_logging=no -o cache_dir="$PWD/build/dev/pytest" "$@" \
        tests/e2e tests/fault
}

part_asan() {
    if [ -n "$whole" ]; then build asan all fuzzers; else build asan untrusted fuzzers; fi
    export ASAN_OPTIONS=detect_leaks=1 UBSAN_OPTIONS=print_stacktrace=1
    if [ -n "$whole" ]; then run_ctest asan; else run_ctest asan -L untrusted; fi
}

part_tsan() {
    build tsan threads
    TSAN_OPTIONS=halt_on_error=1 run_ctest tsan -L threads
}

part_fuzz() { # the corpus, then new input until FUZZ_RUNS runs or FUZZ_SECONDS seconds are over
    build asan fuzzers
    set -- build/asan/fuzz/fuzz_*
    [ -x "$1" ] || { echo "fuzz: no target was built" >&2; exit 1; }
    each=20
    [ -n "$whole" ] || each=$(((60 * jobs + $# - 1) / $#)) # a minute by the clock for all of them
    export FUZZ_RUNS="${FUZZ_RUNS:-20000}" FUZZ_SECONDS="${FUZZ_SECONDS:-$each}"
    rm -rf build/parts/fuzzed
    mkdir build/parts/fuzzed
    printf '%s\n' "$@" | xargs -P "$jobs" -n 1 sh -c '
        name=${0##*/fuzz_}
        work=$(mktemp -d)
        said=$("$0" -runs="$FUZZ_RUNS" -max_total_time="$FUZZ_SECONDS" -seed=1 -rss_limit_mb=2048 -timeout=20 -verbosity=1 \
            -print_final_stats=1 -artifact_prefix=build/asan/ "$work" "tests/fuzz/corpus/$name" 2>&1) ||
            { printf "%s\n" "$said" | tail -n 60; echo "fuzz: $name failed"; exit 1; } >&2
        rm -rf "$work"
        printf "%s\n" "$said" | sed -n "s/^stat::number_of_executed_units: *//p" >"build/parts/fuzzed/$name"
        echo "fuzz: $name ok, $(cat "build/parts/fuzzed/$name") runs"' || true
    n=$(find build/parts/fuzzed -type f -size +0 | wc -l)
    closing "fuzz: $n passed, $(($# - n)) failed, 0 skipped; $(cat build/parts/fuzzed/* | awk '{n += $1} END {print n}') runs"
    [ "$n" = $# ]
}

part_cuda() {
    compiler=$(sh deploy/cuda.sh nvcc)
    configure cuda -DNVCC="$compiler"
    build cuda quire_cuda cuda_library
    python3 tests/gpu/resources.py --build build/cuda
    python3 tests/gpu/sass.py --build build/cuda
    python3 tests/gpu/sass.py --build build/cuda --planted
    library=build/cuda/lib/libquire-cuda.so
    more=$(readelf -d "$library" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | grep -v -E '^(lib(c|m)\.so\.6|ld-linux.*)$' || true)
    [ -z "$more" ] || { echo "cuda: $library needs $more" >&2; return 1; }
    build/cuda/tests/cuda_library "$library"
    closing "cuda: 5 passed, 0 failed, 0 skipped: registers, machine code, planted faults in it, what the library needs, that it loads; nothing ran on a card"
}

part_fresh() { CLOSING=build/parts/fresh sh tests/fresh.sh; }

part_bench() { # every script, also after one that failed or took longer than BENCH_SECONDS (300)
    build release all
    build dev kcheck benches # decode.sh takes the machine's bandwidth from it
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

if [ -n "${QUIRE_TESTS_PART:-}" ]; then # one part, in a process of its own: below
    part=$QUIRE_TESTS_PART
    part_"$part"
    exit
fi

case "${1:-}" in
help | -h | --help) sed -n '3,19s/^# \{0,1\}//p' "$0"; exit 0 ;;
all)
    whole=yes
    shift
    [ $# -gt 0 ] || set -- lint unit e2e asan fuzz tsan cuda
    ;;
esac
[ $# -gt 0 ] || set -- lint unit e2e asan fuzz
for part in "$@"; do
    case "$part" in
    lint | unit | e2e | asan | tsan | fuzz | cuda | fresh | bench) ;;
    *) echo "tests/run.sh: unknown part \"$part\"; see sh tests/run.sh help" >&2; exit 2 ;;
    esac
done
began=$(date +%s)
sh deploy/deps.sh test
mkdir -p build/parts

count_cpu() { # cpu: seconds of CPU that ended children took, theirs included; `times` in $(…) would be that shell's
    times >build/parts/times
    cpu=$(awk 'NR == 2 { split($1, u, /[ms]/); split($2, s, /[ms]/); print int(u[1] * 60 + u[2] + s[1] * 60 + s[2] + 0.5) }' build/parts/times)
}

ahead= # e2e builds for the parts behind it where all of all are run
case "$whole $* " in yes*" e2e "*"asan "*"tsan "*"cuda "*) ahead=yes ;; esac
table= # one line a part
failed=
skipped=
for part in "$@"; do
    rm -f build/parts/"$part"
    from=$(date +%s)
    count_cpu
    cpu_from=$cpu
    rc=0
    QUIRE_TESTS_PART=$part QUIRE_TESTS_WHOLE=$whole QUIRE_TESTS_AHEAD=$ahead sh tests/run.sh || rc=$?
    case $rc in
    0) result=passed ;;
    77) result=skipped; skipped="$skipped $part" ;;
    *) result=FAILED; failed="$failed $part" ;;
    esac
    count_cpu
    table="$table$(printf '%-6s %7d s %7d s of CPU   %s' "$part" $(($(date +%s) - from)) $((cpu - cpu_from)) "$result")
$([ ! -s build/parts/"$part" ] || sed 's/^/    /' build/parts/"$part")
"
done
say "parts$([ -z "$whole" ] || echo " of all"), on $(uname -m) with $jobs cores"
printf '%s' "$table" | sed '/^$/d'
[ -n "$whole" ] || echo "more: sh tests/run.sh all; in a new Debian: sh tests/run.sh fresh"
if [ -n "$failed" ]; then verdict="failed:$failed"; else verdict="nothing failed of: $*"; fi
say "$verdict${skipped:+; skipped:$skipped}, in $(($(date +%s) - began)) s"
[ -z "$failed" ]
