#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs the Debian packages that quire needs.
#   sh deploy/deps.sh [build|cuda|test]    build (default): compiler, libraries, curl and jq; cuda: that, and what nvcc needs;
#                                          test: that, clang and Python
# Needs root or sudo. Ends at once when every package is installed.
set -eu

build="gcc libc6-dev make cmake pkg-config libzmq3-dev libczmq-dev libmsgpack-dev libuv1-dev libh2o-dev
 libssl-dev libcurl4-openssl-dev libpcre2-dev libutf8proc-dev libjansson-dev libyaml-dev libhwloc-dev zlib1g-dev libzstd-dev
 libxxhash-dev libedit-dev libpng-dev libjpeg62-turbo-dev libwebp-dev libgif-dev curl jq ca-certificates"
cuda="$build g++ python3 python3-venv"
test="$cuda clang-14 clang-tidy-14 clang-format-14 libclang-rt-14-dev llvm-14 libcmocka-dev git procps iproute2 openssl zstd openmpi-bin systemd"

case "${1:-build}" in
build) wanted=$build ;;
cuda) wanted=$cuda ;;
test) wanted=$test ;;
*)
    echo "usage: sh deploy/deps.sh [build|cuda|test]" >&2
    exit 2
    ;;
esac

missing=
for package in $wanted; do
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing="$missing $package"
done
[ -n "$missing" ] || exit 0

if [ ! -e /etc/debian_version ]; then
    echo "deps.sh: this system is not Debian 12; install the equivalents of:$missing" >&2
    exit 1
fi
sudo=
if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || { echo "deps.sh: run as root, or install sudo; missing:$missing" >&2; exit 1; }
    sudo=sudo
fi
echo "deps.sh: installing$missing"
$sudo apt-get update -qq
# shellcheck disable=SC2086  # the list is meant to be split
$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
