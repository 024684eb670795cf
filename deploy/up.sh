#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# From a fresh Debian 12 to a model that answers: installs the dependencies, builds, serves, asks, stays.
#   sh deploy/up.sh [--check] [--model FOLDER_OR_ID] [--port P] [--host H] [-- more options of `quire serve`]
# --check stops everything and exits 0 after the answers, 1 when something is wrong. A second run builds nothing and takes seconds. Where there is an NVIDIA
# card, its kernels are built too (minutes, once) and it serves; `-- --device cpu` keeps to the CPU.
set -eu
cd "$(dirname "$0")/.."

check=no
model=deploy/model/quire-tiny
port=8000
host=127.0.0.1
usage() { sed -n '3,6s/^# *//p' "$0"; }
needs_value() { [ $# -ge 2 ] || { echo "up.sh: $1 needs a value" >&2; exit 2; }; }
while [ $# -gt 0 ]; do
    case "$1" in
    --check) check=yes ;;
    --model) needs_value "$@"; model=$2; shift ;;
    --port) needs_value "$@"; port=$2; shift ;;
    --host) needs_value "$@"; host=$2; shift ;;
    -h | --help) usage; exit 0 ;;
    --) shift; break ;;
    *) echo "up.sh: unknown option $1" >&2; usage >&2; exit 2 ;;
    esac
    shift
done

case $port in
'' | *[!0-9]* | 0* | ??????*) echo "up.sh: --port $port: expected a number from 1 to 65535" >&2; exit 2 ;;
esac

say() {
    if [ -t 1 ]; then printf '\033[1m%s\033[0m\n' "$*"; else printf '%s\n' "$*"; fi
}

cards= # compute capabilities
case " $* " in
*" --device cpu "* | *" --device=cpu "*) ;;
*) cards=$(sh deploy/cuda.sh archs 2>/dev/null) || cards= ;;
esac

say "1/4 dependencies"
sh deploy/deps.sh "$([ -n "$cards" ] && echo cuda || echo build)"
say "2/4 build (build/release/bin)"
[ -e build/release/CMakeCache.txt ] || cmake --preset release >/dev/null
if [ -n "$cards" ] && nvcc=$(sh deploy/cuda.sh nvcc); then
    grep -q "^QUIRE_CUDA_ARCHS:STRING=$cards\$" build/release/CMakeCache.txt ||
        echo "building kernels for compute capability $cards: takes minutes, only the first time"
    cmake --preset release -DQUIRE_CUDA=ON -DQUIRE_CUDA_ARCHS="$cards" -DNVCC="$nvcc" >/dev/null
fi
sh deploy/build.sh build/release

say "3/4 serving $model at http://$host:$port"
server=
stop() {
    [ -z "$server" ] || { kill "$server" 2>/dev/null || true; wait "$server" 2>/dev/null || true; }
    server=
}
trap stop EXIT
trap 'stop; exit 130' INT
trap 'stop; exit 143' TERM
build/release/bin/quire serve "$model" --host "$host" --port "$port" "$@" &
server=$!

# The address a client on this machine uses when the server listens on all of them.
case "$host" in 0.0.0.0) near=127.0.0.1 ;; ::) near='[::1]' ;; *:*) near="[$host]" ;; *) near=$host ;; esac
base="http://$near:$port"

listens() { # listens: is a listening socket of that port one of our server's? Another server may have the port and answer
    inodes=$(awk -v port="$(printf ':%04X' "$port")" '$4 == "0A" && substr($2, length($2) - 4) == port {print $10}' \
        /proc/net/tcp /proc/net/tcp6 2>/dev/null)
    for inode in $inodes; do
        for fd in "/proc/$server/fd"/*; do
            [ "$(readlink "$fd")" != "socket:[$inode]" ] || return 0
        done
    done
    return 1
}

waited=0
until listens && curl -fs -o /dev/null "$base/ready"; do
    kill -0 "$server" 2>/dev/null || {
        rc=0
        wait "$server" || rc=$?
        server=
        echo "up.sh: the server exited with code $rc; its message is above" >&2
        ! curl -s -o /dev/null "$base/" || echo "up.sh: another server answers at $base; --port chooses another port" >&2
        exit 1
    }
    waited=$((waited + 1))
    [ "$waited" -lt 3000 ] || { echo "up.sh: the server is not ready after 300 s" >&2; exit 1; }
    sleep 0.1
done

ask() { # ask JSON: one chat request, its answer's message
    answer=$(curl -sS --fail-with-body "$base/v1/chat/completions" -H 'Content-Type: application/json' -d "$1") || {
        echo "up.sh: the request failed: $answer" >&2
        exit 1
    }
    said=$(printf '%s' "$answer" | jq -r '.choices[0].message | if .tool_calls then .tool_calls[].function | "\(.name)(\(.arguments))" else .content // "" end')
    [ -n "$said" ] || { echo "up.sh: the answer is empty: $answer" >&2; exit 1; }
    printf '%s\n' "$said"
}
say "4/4 asking"
name=$(curl -fsS "$base/v1/models" | jq -r '.data[0].id')
weather='{"type":"function","function":{"name":"get_weather","description":"Get the current weather in a city",
 "parameters":{"type":"object","properties":{"city":{"type":"string"}},"required":["city"]}}}'
echo "> Who are you?"
ask "$(jq -n --arg m "$name" '{model:$m, temperature:0, max_tokens:64, messages:[{role:"user",content:"Who are you?"}]}')"
echo "> What is the weather in Oslo?   (with a tool get_weather)"
ask "$(jq -n --arg m "$name" --argjson t "$weather" \
    '{model:$m, temperature:0, max_tokens:64, tools:[$t], messages:[{role:"user",content:"What is the weather in Oslo?"}]}')"

if [ "$check" = yes ]; then
    kill -0 "$server" 2>/dev/null || { server=; echo "up.sh: the server stopped after the answers" >&2; exit 1; }
    stop
    say "all good"
    exit 0
fi
say "Ready. Point any OpenAI client at $base/v1 (model \"$name\", any API key), for example:"
cat <<END
  curl $base/v1/chat/completions -H 'Content-Type: application/json' \\
    -d '{"model":"$name","messages":[{"role":"user","content":"What can you do?"}]}'
  build/release/bin/quire chat --port $port
Ctrl-C stops the server.
END
wait "$server"
