#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Encoding and decoding on one core, beside the `tokenizers` package (when Python has it) on the same text: the
# project's own sources and documents. CPU time, so that other programs do not count. Aim: 3 times the package's speed.
#   sh tests/bench/tokenizer.sh [FOLDER…]     one tokenizer of each family where none is named
# Then one thing over and over, 1, 2, 5 and 10 MB of it, once each: MB/s that stay the same are time linear in the length.
set -eu
cd "$(dirname "$0")/../.."
cmake --preset release >/dev/null
cmake --build --preset release --target bench_tokenizer >/dev/null
bench=${QUIRE_BIN:-build/release/bin}/bench_tokenizer
shared=${QUIRE_SHARED:-../shared}/data/tokenizers
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
git ls-files '*.c' '*.h' '*.py' '*.md' | xargs cat | head -c 2000000 >"$dir/text"

if [ $# -eq 0 ]; then
    for name in llama3.2 qwen3 gpt-oss mistral-7b-v0.3 t5-small bert-base-uncased; do # every family, as served
        [ -f "$shared/$name/tokenizer.json.zst" ] || continue
        mkdir "$dir/$name"
        zstd -dcq "$shared/$name/tokenizer.json.zst" >"$dir/$name/tokenizer.json"
        set -- "$@" "$dir/$name"
    done
    [ $# -gt 0 ] || set -- tests/data/tokenizers/qwen2 tests/data/tokenizers/spbpe tests/data/tokenizers/unigram tests/data/tokenizers/wordpiece
fi

for folder; do
    echo "$(basename "$folder"):"
    "$bench" "$folder" "$dir/text" | tee "$dir/ours"
    TOKENIZERS_PARALLELISM=false "${PYTHON:-python3}" - "$folder" "$dir/text" "$dir/ours" <<'PY' || true
import re, sys, time
try:
    from tokenizers import Tokenizer
except ImportError:
    sys.exit("(no tokenizers package in this Python: no comparison)")
start = time.process_time()
tok = Tokenizer.from_file(sys.argv[1] + "/tokenizer.json")
load = (time.process_time() - start) * 1e3
tok.no_truncation()
tok.no_padding()
text = open(sys.argv[2], encoding="utf-8", errors="ignore").read()
size = len(text.encode()) / 1e6
def best(parts):
    times = []
    for _ in range(3):
        start = time.process_time()
        for part in parts:
            tok.encode(part, add_special_tokens=False)
        times.append(time.process_time() - start)
    return size / min(times)
ours = dict(re.findall(r"(load|encode whole|encode prompts) +([\d.]+)", open(sys.argv[3]).read()))
whole, prompts = best([text]), best([text[i:i + 2000] for i in range(0, len(text), 2000)])
print(f"tokenizers package: load {load:.1f} ms, whole {whole:.2f} MB/s, prompts {prompts:.2f} MB/s;  quire is "
      f"{float(ours['encode whole']) / whole:.1f} and {float(ours['encode prompts']) / prompts:.1f} times as fast")
PY
done

echo "MB/s for 1, 2, 5 and 10 MB of (UTF-8 in hexadecimal: a, space, newline, an emoji, Han, digits, punctuation):"
for what in 61 20 0a f09f9982 e4b8ad 37 2e2c3b3a213f2d28295b5d; do
    for folder; do
        printf '%-22s %-18s' "$what" "$(basename "$folder")"
        for mb in 1 2 5 10; do
            python3 -c "import sys; c = bytes.fromhex('$what'); sys.stdout.buffer.write(c * ($mb * 1000000 // len(c)))" >"$dir/run"
            printf ' %8s' "$("$bench" "$folder" "$dir/run" once | sed -n 's/^encode whole *\([0-9.]*\).*/\1/p')"
        done
        echo
    done
done
