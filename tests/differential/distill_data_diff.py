# SPDX-License-Identifier: Apache-2.0
"""The data of quire distill against transformers: ids and counted tokens of random texts and conversations.

    python tests/differential/distill_data_diff.py [-n LINES] [--seed S]

transformers (no torch is needed) tokenizes texts, renders conversations with a template that has {% generation %} blocks, and says
which tokens they wrote. quire distill reads the same lines with that template, and with the same template without these blocks,
where it has to find the answers itself; what it made of them is in its file of tokenized data. Prints the lines that differ;
exits 1 when there are any.
"""
import argparse
import json
import os
import pathlib
import random
import shutil
import struct
import subprocess
import sys
import tempfile

from transformers import AutoTokenizer

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("QUIRE_BIN", ROOT / "build/release/bin"))
BUNDLED = ROOT / "deploy/model/quire-tiny"
TEMPLATE = ("{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{% if m.role == 'assistant' %}"
            "{% generation %}{{ m.content + '<|im_end|>' }}{% endgeneration %}{% else %}{{ m.content + '<|im_end|>' }}{% endif %}"
            "{{ '\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")
WORDS = ["the", "quick", "é", "日本", "fox\n", "", " over", '{"a":', "1}", "12345", "lazy\tdog", ".", ",", "<think>", "\n\n", "ok"]
HEAD = 48  # bytes before the places of the parts (engine/distill/sequence_internal.h)


def random_lines(n):
    def text():
        return " ".join(random.choice(WORDS) for _ in range(random.randint(1, 12)))

    def turns():
        roles = [role for _ in range(random.randint(1, 4)) for role in ("user", "assistant")]
        return [{"role": role, "content": text()} for role in roles]

    return [{"messages": turns()} if i % 3 else {"text": text()} for i in range(n)]


def quire_samples(lines, template):
    """[(ids, counted)] of the lines, from the file that a run has left."""
    with tempfile.TemporaryDirectory() as folder:
        model, out, data = (pathlib.Path(folder) / name for name in ("model", "out", "data.jsonl"))
        shutil.copytree(BUNDLED, model)
        (model / "chat_template.jinja").write_text(template)
        data.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
        subprocess.run([BIN / "quire-distill", "--teacher", model, "--student", model, "--data", data, "--output", out, "--steps", "1",
                        "--no-packing", "--no-shuffle", "--seq-length", "1024", "--data-cache", out / "cache"],
                       check=True, capture_output=True)
        (file,) = (out / "cache").glob("*.sequences")
        return list(read_sequences(file.read_bytes()))


def read_sequences(data):
    _, index, notes = struct.unpack_from("<QQQ", data, HEAD)
    for entry in range(index, notes, 16):
        at, n, _ = struct.unpack_from("<QII", data, entry)
        n_segment, flags = struct.unpack_from("<II", data, at)
        assert flags == 0, "labels are ids here"
        ids = at + 8 + 4 * n_segment
        mask = struct.unpack_from(f"<{(n + 31) // 32}I", data, ids + 4 * n)
        yield list(struct.unpack_from(f"<{n}I", data, ids)), [mask[i // 32] >> i % 32 & 1 for i in range(n)]


def reference_sample(tokenizer, line):
    if "text" in line:
        ids = tokenizer(line["text"])["input_ids"]
        ids += [] if ids[-1:] == [tokenizer.eos_token_id] else [tokenizer.eos_token_id]
        return ids, [1] * len(ids)
    made = tokenizer.apply_chat_template(line["messages"], chat_template=TEMPLATE, return_dict=True, return_assistant_tokens_mask=True)
    return made["input_ids"], made["assistant_masks"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("-n", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    random.seed(options.seed)
    tokenizer = AutoTokenizer.from_pretrained(BUNDLED)
    lines = random_lines(options.n)
    want = [reference_sample(tokenizer, line) for line in lines]
    n_differ = 0
    for name, template in (("generation", TEMPLATE), ("found", TEMPLATE.replace("{% generation %}", "").replace("{% endgeneration %}", ""))):
        got = quire_samples(lines, template)
        assert len(got) == len(want)
        for line, g, w in zip(lines, got, want, strict=True):
            if list(g) != list(w):
                n_differ += 1
                print(f"{name}: {json.dumps(line, ensure_ascii=False)}\n  quire        {g}\n  transformers {w}")
    print(f"seed {options.seed}: {2 * len(lines)} samples, {n_differ} differ")
    sys.exit(n_differ > 0)


if __name__ == "__main__":
    main()
