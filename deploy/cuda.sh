#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Finds the tools and settings that build libquire-cuda.so for the NVIDIA GPUs of this machine.
#   sh deploy/cuda.sh archs    their compute capabilities, as QUIRE_CUDA_ARCHS has them: 90a;89
#   sh deploy/cuda.sh nvcc     the path of nvcc 13.0: that of $NVCC, of the PATH or of /usr/local/cuda, else NVIDIA's wheels
#                              from PyPI, installed into build/nvcc (120 MB to fetch, once; needs python3 with venv)
# Exit status 1, with the reason on stderr, when there is none.
set -eu
cd "$(dirname "$0")/.."

find_archs() {
    command -v nvidia-smi >/dev/null || { echo "cuda.sh: nvidia-smi not found: install the NVIDIA driver" >&2; return 1; }
    caps=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>&1) || {
        echo "cuda.sh: nvidia-smi: $caps" >&2
        return 1
    }
    found=
    for cap in $(printf '%s\n' "$caps" | sort -u); do
        case $cap in
        9.0) found="$found;90a" ;;
        [89].[0-9] | [1-9][0-9].[0-9]) found="$found;${cap%.*}${cap#*.}" ;;
        *) echo "cuda.sh: skipping a GPU of compute capability $cap: quire needs 8.0 or newer" >&2 ;;
        esac
    done
    [ -n "$found" ] || { echo "cuda.sh: no supported GPU found" >&2; return 1; }
    echo "${found#;}"
}

find_nvcc() {
    for path in "${NVCC:-}" "$(command -v nvcc || true)" /usr/local/cuda/bin/nvcc; do
        if [ -x "$path" ] && "$path" --version | grep -q 'release 13\.0'; then
            echo "$path"
            return
        fi
    done
    wheels=build/nvcc
    if ! cmp -s deploy/requirements-cuda.txt "$wheels/installed.txt"; then
        rm -rf "$wheels"
        mkdir -p build
        { python3 -m venv "$wheels" && "$wheels/bin/python" -m pip install -q --disable-pip-version-check \
            -r deploy/requirements-cuda.txt; } >&2 || { echo "cuda.sh: nvcc 13.0 not found, and its installation from PyPI failed" >&2; return 1; }
        cp deploy/requirements-cuda.txt "$wheels/installed.txt"
    fi
    echo "$PWD"/"$wheels"/lib/python3*/site-packages/nvidia/cu13/bin/nvcc
}

case "${1:-}" in
archs | nvcc) "find_$1" ;;
*)
    sed -n '3,7s/^# \{0,1\}//p' "$0" >&2
    exit 2
    ;;
esac
