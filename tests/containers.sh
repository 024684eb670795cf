#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The image of deploy/container, built by buildah from Debian's packages alone and run: no registry and no daemon.
#   sh tests/containers.sh        root; needs buildah, crun, debootstrap, curl, util-linux (apt-get install --no-install-recommends …)
# Exit status 0: all good; 77: skipped, with the reason. The image stays as localhost/quire (storage: CONTAINERS_DIR, default a temporary
# folder that is removed). In place of the registry's Debian a minbase of debootstrap is used, without documentation and languages, as
# in the slim image. CONTAINERS_BUILD_JOBS: compilers at once.
#
# The image runs as a container runtime would run it, as far as that goes without one: its user, its environment and nothing else, a
# read-only root with /tmp and the cache's volume, no capabilities, processes and mounts of its own.
set -eu
cd "$(dirname "$0")/.."

say() { echo "containers: $*"; }
skip() { say "skipped: $*"; exit 77; }
fail() { say "failed: $*" >&2; exit 1; }
[ "$(id -u)" = 0 ] || skip "needs root"
for tool in buildah debootstrap unshare setpriv curl; do
    command -v "$tool" >/dev/null || skip "no $tool"
done
mirror=${FRESH_MIRROR:-http://deb.debian.org/debian}
curl -fsI -m 30 -o /dev/null "$mirror/dists/bookworm/Release" || skip "$mirror does not answer"

dir=${CONTAINERS_DIR:-}
[ -n "$dir" ] || dir=$(mktemp -d)
mkdir -p "$dir"
export BUILDAH_ISOLATION=chroot
buildah() { command buildah --root "$dir/storage" --runroot "$dir/run" "$@"; }
server=
tidy() {
    [ -z "$server" ] || kill "$server" 2>/dev/null || true
    [ ! -e "$dir/storage" ] || buildah rm --all >/dev/null 2>&1 || true # a container that is left has a mount
    [ -z "${CONTAINERS_DIR:-}" ] || return 0
    umount -R "$dir/storage/overlay" 2>/dev/null || true # buildah's own
    rm -rf --one-file-system "$dir"
}
trap tidy EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

base=localhost/debian:bookworm-slim
if ! buildah inspect --type image "$base" >/dev/null 2>&1; then
    say "debootstrap --variant=minbase bookworm from $mirror"
    [ -e "$dir/base/etc/debian_version" ] || debootstrap --variant=minbase bookworm "$dir/base" "$mirror" >"$dir/debootstrap.log" 2>&1 || {
        tail -n 20 "$dir/debootstrap.log" >&2
        fail "debootstrap"
    }
    echo "deb $mirror bookworm main" >"$dir/base/etc/apt/sources.list"
    rm -rf "$dir/base"/var/lib/apt/lists/* "$dir/base"/var/cache/apt/* "$dir/base"/usr/share/doc/* "$dir/base"/usr/share/man/* \
        "$dir/base"/usr/share/locale/* "$dir/base"/usr/share/info/*
    mkdir -p "$dir/base/var/lib/apt/lists/partial" "$dir/base/var/cache/apt/archives/partial"
    made=$(buildah from scratch)
    buildah add -q "$made" "$dir/base" / >/dev/null
    buildah commit -q --rm "$made" "$base" >/dev/null
fi

began=$(date +%s)
say "buildah bud -f deploy/container/Containerfile"
buildah bud --pull-never --format docker --layers -f deploy/container/Containerfile --build-arg "DEBIAN=$base" \
    ${CONTAINERS_BUILD_JOBS:+--build-arg "BUILD_JOBS=$CONTAINERS_BUILD_JOBS"} --build-arg "REVISION=$(git rev-parse HEAD)" \
    -t localhost/quire . >"$dir/build.log" 2>&1 || { tail -n 30 "$dir/build.log" >&2; fail "the build; the log is $dir/build.log"; }
say "built in $(($(date +%s) - began)) s"

inspect() { buildah inspect --type image --format "$1" localhost/quire; }
for want in '{{.Docker.Config.User}}=10001:10001' '{{.Docker.Config.StopSignal}}=SIGTERM' '{{.Docker.Config.Entrypoint}}=[quire]' \
    '{{.Docker.Config.Healthcheck.Test}}=[CMD healthcheck /ready]' '{{index .Docker.Config.Labels "org.opencontainers.image.title"}}=quire'; do
    [ "$(inspect "${want%%=*}")" = "${want#*=}" ] || fail "the image's ${want%%=*} is $(inspect "${want%%=*}")"
done
made=$(buildah from --pull-never localhost/quire)
root=$(buildah mount "$made")
size() { du -s -B 1000000 "$@" | awk '{n += $1} END {print n " MB"}'; }
say "root file system: $(size "$root"); of it the base $(size "$dir/base"), programs $(size "$root/usr/local/bin"), bundled model $(size "$root/usr/local/share/quire")"
for program in cc gcc cmake git curl python3; do
    [ ! -e "$root/usr/bin/$program" ] || fail "the image has $program"
done
[ ! -e "$root/src" ] || fail "the image has the sources"

# in_image PROGRAM…: as a container of this image
environment=$(inspect '{{range .Docker.Config.Env}}{{.}} {{end}}')
volume=$dir/volume
rm -rf "$volume"
cp -a "$root/var/cache/quire" "$volume" # a new volume gets what the image has there, owner included
cat >"$dir/enter.sh" <<'ENTER'
set -eu
root=$1 volume=$2
shift 2
mount --bind "$root" "$root" && mount -o remount,bind,ro "$root"
mount -t proc proc "$root/proc" && mount --rbind /sys "$root/sys"
mount -t tmpfs dev "$root/dev"
for node in null zero random urandom; do touch "$root/dev/$node" && mount --bind "/dev/$node" "$root/dev/$node"; done
ln -s /proc/self/fd "$root/dev/fd"
mkdir "$root/dev/shm" && mount -t tmpfs -o mode=1777,size=64m shm "$root/dev/shm"
mount -t tmpfs -o mode=1777 tmp "$root/tmp"
mount --bind "$volume" "$root/var/cache/quire"
exec chroot "$root" /usr/bin/setpriv --reuid 10001 --regid 10001 --clear-groups --bounding-set=-all --inh-caps=-all --no-new-privs \
    /usr/bin/env -C /var/lib/quire "$@"
ENTER
in_image() {
    # shellcheck disable=SC2086  # the environment is a list
    exec unshare --mount --pid --fork --kill-child --propagation private sh "$dir/enter.sh" "$root" "$volume" -i $environment "$@"
}

(in_image QUIRE_PORT=18000 quire serve /usr/local/share/quire/quire-tiny --num-gpu-blocks-override 256) >"$dir/serve.log" 2>&1 &
server=$!
waited=0
until (in_image QUIRE_PORT=18000 healthcheck /ready) 2>/dev/null; do
    kill -0 "$server" 2>/dev/null || { cat "$dir/serve.log" >&2; fail "quire serve ended"; }
    waited=$((waited + 1))
    [ "$waited" -lt 300 ] || { cat "$dir/serve.log" >&2; fail "not ready after 300 checks"; }
    sleep 0.2
done
said=$(curl -sS --fail-with-body http://127.0.0.1:18000/v1/chat/completions -H 'Content-Type: application/json' \
    -d '{"model":"quire-tiny","temperature":0,"max_tokens":40,"messages":[{"role":"user","content":"Who are you?"}]}')
say "answer: $said"
case $said in *"I am the small model that comes with quire"*) ;; *) fail "the answer is wrong" ;; esac
main=$(pgrep -P "$server" | head -n 1)
kill -TERM "$main"
rc=0
wait "$server" || rc=$?
server=
[ "$rc" = 0 ] || { cat "$dir/serve.log" >&2; fail "quire serve ended with exit code $rc after SIGTERM"; }
(in_image healthcheck /ready) 2>/dev/null && fail "healthy without a server"
(in_image quire cache ls) >"$dir/cache.log" 2>&1 || { cat "$dir/cache.log" >&2; fail "quire cache ls"; }
(in_image quire download org/name) >"$dir/download.log" 2>&1 && fail "a model that is not there was downloaded"
if grep -q -i 'libcurl\|certificate' "$dir/download.log"; then cat "$dir/download.log" >&2; fail "quire download"; fi
buildah umount "$made" >/dev/null
buildah rm "$made" >/dev/null
say "all good"
