#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The two commands of the README as they meet a newcomer: a Debian 12 of debootstrap's smallest kind, a clone of HEAD, nothing else.
#   sh tests/fresh.sh [COMMAND…]     default: 'sh deploy/up.sh --check' 'sh tests/run.sh'
# Exit status 0: every command ended with 0; 77: skipped, with the reason (no root, no debootstrap, no mirror, no mounts).
#
# The commands get an empty environment but for PATH, HOME and LANG, and what reaches Debian's mirror and PyPI from this machine,
# where that is set here: http_proxy, https_proxy, no_proxy, PIP_INDEX_URL, PIP_CERT (or pip's own setting `cert`; the file is copied).
# Variables: FRESH_MIRROR (default: that of this machine's apt, else deb.debian.org); FRESH_DIR, where the chroot is made and stays
# (default: a temporary folder that is removed); FRESH_BASE, a minbase that is there already and is copied instead of debootstrapped.
set -eu
cd "$(dirname "$0")/.."

closing() {
    echo "fresh: $*"
    [ -z "${CLOSING:-}" ] || echo "fresh: $*" >>"$CLOSING"
}
skip() { closing "skipped: $*"; exit 77; }
[ $# -gt 0 ] || set -- 'sh deploy/up.sh --check' 'sh tests/run.sh'

[ "$(id -u)" = 0 ] || skip "needs root: debootstrap and chroot do"
[ -n "${FRESH_BASE:-}" ] || command -v debootstrap >/dev/null || skip "no debootstrap: apt-get install debootstrap"
command -v unshare >/dev/null || skip "no unshare (util-linux)"
unshare --mount --pid --fork --propagation private sh -c 'mount -t tmpfs none /mnt' 2>/dev/null || skip "mounts are not permitted here"
mirror=${FRESH_MIRROR:-$(cat /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources 2>/dev/null |
    sed -n -E 's/^(URIs:|deb( \[.*\])?) +(https?:[^ ]*debian\/?)( .*)?$/\3/p' | head -n 1)}
mirror=${mirror:-http://deb.debian.org/debian}

dir=${FRESH_DIR:-}
[ -n "$dir" ] || dir=$(mktemp -d)
root=$dir/root
tidy() { [ -n "${FRESH_DIR:-}" ] || rm -rf --one-file-system "$dir"; }
trap tidy EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

if [ ! -e "$root/etc/debian_version" ]; then
    mkdir -p "$root"
    if [ -n "${FRESH_BASE:-}" ]; then
        cp -a "$FRESH_BASE/." "$root"
    else
        command -v curl >/dev/null && ! curl -fsI -m 30 -o /dev/null "$mirror/dists/bookworm/Release" && skip "$mirror does not answer"
        echo "fresh: debootstrap --variant=minbase bookworm from $mirror"
        debootstrap --variant=minbase bookworm "$root" "$mirror" >"$dir/debootstrap.log" 2>&1 || {
            tail -n 20 "$dir/debootstrap.log" >&2
            closing "debootstrap failed"
            exit 1
        }
    fi
fi
echo "deb $mirror bookworm main" >"$root/etc/apt/sources.list"
cp /etc/resolv.conf /etc/hosts "$root/etc/"
rm -rf "$root/quire"
git clone -q --no-hardlinks . "$root/quire"
[ -z "$(git status --porcelain)" ] || echo "fresh: uncommitted changes are not in the clone"

reach= # NAME=VALUE of what reaches the registries; no value of these holds a space
for name in http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY PIP_INDEX_URL; do
    value=$(printenv "$name" || true)
    [ -z "$value" ] || reach="$reach $name=$value"
done
cert=${PIP_CERT:-$(python3 -m pip config get global.cert 2>/dev/null || true)}
if [ -n "$cert" ] && [ -e "$cert" ]; then
    cp "$cert" "$root/etc/pip-cert.pem"
    reach="$reach PIP_CERT=/etc/pip-cert.pem"
fi

in_chroot() { # in_chroot COMMAND: in a space of its own for mounts and processes, which ends with it
    # shellcheck disable=SC2016,SC2086  # expanded inside; $reach is a list
    root=$root unshare --mount --pid --fork --kill-child --propagation private sh -c '
        mount -t proc proc "$root/proc" && mount --rbind /dev "$root/dev" && mount -t tmpfs tmp "$root/tmp" &&
        exec chroot "$root" /usr/bin/env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root \
            LANG=C.UTF-8 '"$reach"' sh -c "cd /quire && exec $1"' sh "$1"
}

n_failed=0
for command in "$@"; do
    echo "fresh: $command"
    began=$(date +%s)
    rc=0
    in_chroot "$command" || rc=$?
    closing "$command: exit status $rc, $(($(date +%s) - began)) s"
    [ "$rc" = 0 ] || n_failed=$((n_failed + 1))
done
closing "$(($# - n_failed)) passed, $n_failed failed, 0 skipped"
[ "$n_failed" = 0 ]
