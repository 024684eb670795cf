#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Encoding and decoding on one core, beside the `tokenizers` package (when Python has it) on the same text: the
# project's own sources and documents. CPU time, so that other programs do not count. Aim: 3 times the package's speed.
set -eu
cd "$(dirname "$0")/../.."
cmake --preset release >/dev/null
cmake --build --preset release --target bench_tokenizer >/dev/null
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
git ls-files '*.c' '*.h' '*.py' '*.md' | xargs cat >"$dir/text"
folder=${1:-tests/data/tokenizers/qwen2}
echo "tokenizer of $folder:"
"${QUIRE_BIN:-build/release/bin}/bench_tokenizer" "$folder" "$dir/text"
TOKENIZERS_PARALLELISM=false "${PYTHON:-python3}" - "$folder" "$dir/text" <<'PY' || true
import sys, time
try:
    from tokenizers import Tokenizer
except ImportError:
    sys.exit("(no tokenizers package in this Python: no comparison)")
tok = Tokenizer.from_file(sys.argv[1] + "/tokenizer.json")
text = open(sys.argv[2], encoding="utf-8").read()
size = len(text.encode()) / 1e6
def best(parts):
    times = []
    for _ in range(3):
        start = time.process_time()
        for part in parts:
            tok.encode(part, add_special_tokens=False)
        times.append(time.process_time() - start)
    return size / min(times)
print(f"tokenizers package: whole {best([text]):.2f} MB/s, prompts "
      f"{best([text[i:i + 2000] for i in range(0, len(text), 2000)]):.2f} MB/s")
PY
