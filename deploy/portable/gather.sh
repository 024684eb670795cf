#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Puts into BUILD/portable/lib what the programs of BUILD/portable/bin load, the C library apart: what those that are linked to h2o
# need, libcurl for `quire bench serve`, and libquire-cuda.so where it was built.
#   sh deploy/portable/gather.sh BUILD [CC]
set -eu
build=$1
cc=${2:-cc}
to=$build/portable/lib
mkdir -p "$to"
curl=$("$cc" -print-file-name=libcurl.so.4)
[ -e "$curl" ] || { echo "gather.sh: no libcurl.so.4 beside the compiler's libraries" >&2; exit 1; }

needs() { # needs FILE: paths of the shared libraries that it and they need, without the C library's
    LD_LIBRARY_PATH='' ldd "$1" | awk '$3 ~ /^\// {print $3}' | grep -v -E '/(ld-linux[^/]*|lib(c|m|dl|pthread|rt|resolv))\.so\.[0-9]+$' || true
}

find "$to" -type f ! -name 'libquire*' -delete
{
    echo "$curl"
    needs "$curl"
    for program in "$build"/portable/bin/*; do
        needs "$program"
    done
} | sort -u | while read -r library; do
    case $library in "$to"/*) continue ;; esac
    cp -L "$library" "$to/$(basename "$library")"
done
if [ -e "$build/lib/libquire-cuda.so" ]; then
    cp "$build/lib/libquire-cuda.so" "$to/"
    strip --strip-debug "$to/libquire-cuda.so"
fi
