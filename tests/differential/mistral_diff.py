# SPDX-License-Identifier: Apache-2.0
"""quire render and tokenize of a folder with tekken.json and no template, against mistral-common (pip install mistral-common).

    python tests/differential/mistral_diff.py [-n CONVERSATIONS] [--seed S] [--golden FILE]

Random conversations in the format of every version: the text, special tokens spelled out, and the token ids must be what
mistral-common makes, and what it refuses for its content must be refused.  Prints a count a version and the differences;
exits 1 when there are any.  --golden writes some of the conversations with their texts: tests/data/templates/mistral.json,
which the unit test chat reads.
"""
import argparse
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile

from mistral_common.protocol.instruct.request import ChatCompletionRequest
from mistral_common.protocol.instruct.validator import ValidationMode
from mistral_common.tokens.tokenizers.base import SpecialTokenPolicy
from mistral_common.tokens.tokenizers.mistral import MistralTokenizer

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("QUIRE_BIN", ROOT / "build/release/bin"))
SMALL = ROOT / "tests/data/tokenizers/tekken/tekken.json"
VERSIONS = (3, 7, 11, 13)
SPECIAL = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]",
           "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]", "[SYSTEM_PROMPT]",
           "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]", "[ARGS]", "[CALL_ID]", "[THINK]", "[/THINK]"]
WORDS = ["Hello", " world", "\n", "  ", "é", "日本", "{\"a\": 1}", "😀", "2", "'s", "[x]", "<b>", "\"", "\\", "\t", "ab", " the", ".", "<pad>", "[/INST]", "</s>", "[TOOL_CALLS]"]
VALUES = [1, -2.5, 1e30, True, None, "", "é\"\n", [], {}, [1, {"k": [None, "v"]}], {"z": 1, "a": {"b": "日"}}, 12345678901]


def folder_of(version, into):
    """A model folder: the small tekken.json as a file of that version."""
    made = json.loads(SMALL.read_text())
    made["config"].update(version="v%d" % version, default_num_special_tokens=32, default_vocab_size=len(made["vocab"]) + 32)
    made["special_tokens"] = [{"rank": i, "token_str": s, "is_control": True} for i, s in enumerate(SPECIAL)]
    into.mkdir()
    (into / "tekken.json").write_text(json.dumps(made))
    (into / "config.json").write_text("{}")
    return into


def text(r, least=0):
    return "".join(r.choices(WORDS, k=r.randint(least, 5)))


def content(r, least=1):
    if r.random() < 0.7:
        return text(r, least)
    return [{"type": "text", "text": text(r, least)} for _ in range(r.randint(1, 3))]


def identifier(r):
    return "".join(r.choices("abcXYZ0189", k=9))


def calls(r):
    return [{"type": "function", "id": identifier(r), "function": {
        "name": r.choice(["get_weather", "f_g", "a-b"]),
        "arguments": r.choice(["", "{}", json.dumps({r.choice("abc"): r.choice(VALUES) for _ in range(r.randint(0, 3))}, ensure_ascii=r.random() < 0.5)])}}
        for _ in range(r.randint(1, 3))]


def conversation(r, version):
    messages = [{"role": "system", "content": content(r)} for _ in range(r.choice([0, 0, 1, 1, 2]))]
    for turn in range(r.randint(1, 3)):
        messages += [{"role": "user", "content": content(r)} for _ in range(r.choice([1, 1, 1, 2]))]
        if r.random() < 0.4:
            made = calls(r)
            messages.append({"role": "assistant", "content": content(r) if version >= 7 and r.random() < 0.5 else "", "tool_calls": made})
            results = [{"role": "tool", "tool_call_id": c["id"], "name": c["function"]["name"],
                        "content": r.choice([text(r, 1), json.dumps(r.choice(VALUES)), content(r), "{\"t\": 1.50, \"u\": \"é\"}"])} for c in made]
            r.shuffle(results)
            messages += results
            if turn == 2 or r.random() < 0.2:
                break
        if version >= 13 and r.random() < 0.3:
            messages.append({"role": "assistant", "content": [{"type": "thinking", "thinking": text(r, 1)}, {"type": "text", "text": text(r, 1)}]})
        else:
            messages.append({"role": "assistant", "content": text(r) + "x" + r.choice(["", " ", "  "])})
    if messages[-1]["role"] == "assistant":
        if r.random() < 0.6:
            messages.append({"role": "user", "content": content(r)})
        elif r.random() < 0.5 and isinstance(messages[-1]["content"], str):
            messages[-1]["content"] = messages[-1]["content"].rstrip()
            return messages, True
        else:
            messages.append({"role": "user", "content": "ok"})
    return messages, False


def tools(r):
    return [{"type": "function", "function": {"name": r.choice(["f", "get_weather"]), **({"description": text(r, 1)} if r.random() < 0.7 else {}),
             "parameters": {"type": "object", "properties": {r.choice("xyz"): {"type": "string", "enum": ["é", "b"]}}},
             **({"strict": True} if r.random() < 0.3 else {})}} for _ in range(r.randint(1, 2))] if r.random() < 0.4 else None


def reference(tokenizer, messages, with_tools, continued):
    asked = [dict(m) for m in messages]
    if continued:
        asked[-1]["prefix"] = True
    made = tokenizer.encode_chat_completion(ChatCompletionRequest(messages=asked, tools=with_tools))
    return tokenizer.instruct_tokenizer.decode(made.tokens, special_token_policy=SpecialTokenPolicy.KEEP), made.tokens


def ask(program, folder, rows):
    run = subprocess.run([BIN / f"quire-{program}", folder], input="".join(json.dumps(row) + "\n" for row in rows), capture_output=True, text=True)
    assert run.returncode in (0, 1), run.stderr
    return [json.loads(line) for line in run.stdout.splitlines()]


def main():
    options = argparse.ArgumentParser()
    options.add_argument("-n", type=int, default=500)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--golden")
    o = options.parse_args()
    golden, n_bad = [], 0
    with tempfile.TemporaryDirectory() as work:
        for version in VERSIONS:
            r = random.Random(o.seed * 100 + version)
            folder = folder_of(version, pathlib.Path(work) / str(version))
            tokenizer = MistralTokenizer.from_file(str(folder / "tekken.json"), mode=ValidationMode.test)
            rows, want = [], []
            n_refused = 0
            for _ in range(o.n):
                messages, continued = conversation(r, version)
                with_tools = tools(r)
                try:
                    want.append(reference(tokenizer, messages, with_tools, continued))
                except Exception as e:  # what it refuses is no part of the comparison, but has to be rare
                    n_refused += 1
                    if n_refused <= 3:
                        print(f"v{version}: refused: {type(e).__name__} {str(e)[:200]}", file=sys.stderr)
                    continue
                rows.append({"messages": messages, **({"tools": with_tools} if with_tools else {}),
                             **({"continue_final_message": True} if continued else {})})
            got = ask("render", folder, rows)
            ids = ask("tokenize", folder, [{"text": g.get("text", ""), "add_special_tokens": False,
                                          "content_ranges": g.get("content_ranges", [])} for g in got])
            bad = 0
            for row, (wanted, tokens), g, i in zip(rows, want, got, ids):
                if g.get("text") != wanted or i.get("ids") != tokens:
                    bad += 1
                    if bad <= 3:
                        print(f"v{version}: {json.dumps(row, ensure_ascii=False)}\n  wanted {wanted!r}\n  got    {g}")
                elif len(golden) < VERSIONS.index(version) * 12 + 12:
                    golden.append({"version": version, **row, "text": wanted})
            n_bad += bad
            print(f"v{version}: {len(rows)} conversations, {bad} differ ({n_refused} refused by mistral-common)")
            n_bad += n_refused * 4 > o.n  # they have to be rare
    if o.golden:
        pathlib.Path(o.golden).write_text("[\n" + ",\n".join(json.dumps(row, ensure_ascii=False) for row in golden) + "\n]\n")
    return 1 if n_bad else 0


if __name__ == "__main__":
    sys.exit(main())
