# SPDX-License-Identifier: Apache-2.0
"""quire tokenize against the `tokenizers` package: random text in, the same ids; any ids in, the same text.

QUIRE_TOKEN_STRINGS=100000 makes the run long: so many strings for every tokenizer, instead of a few hundred.
"""
import json
import os
import random
import subprocess

import pytest
from servers import BIN, MODELS, ROOT
from tokenizers import Tokenizer

SMALL = ROOT / "tests/data/tokenizers"
REAL = ROOT.parent / "shared/data/tokenizers"
N_STRING = int(os.environ.get("QUIRE_TOKEN_STRINGS", "250"))
N_REAL = N_STRING if N_STRING > 1000 else 60
WORDS = ["the", "Hello", "world", "I'm", "they'LL", "x1y2", "12345", "3.14", "٣٤٥", "Ⅷ", "²³", "你好", "世界", "かな", "ﾊﾞ", "가나", "naïve", "cafe\u0301",
         "ǅ", "İ", "ß", "ﬁ", "🙂", "👩‍👩‍👧", "🇩🇪", "a\u0323\u0301", "\u0301", "\u1100\u1161\u11a8", "हिन्दी", "مرحبا", "def f(x):\n    return x", "http://a.b/c?d=e",
         "__init__", "--", "!?", "$5", "€", "`` ''", "\x00", "\ufeff", "\u200b", "\u00ad", "\ufffd", "▁", "##ing", "Ａ\u0301", "ｶﾞ", "㎏"]
SPACES = [" ", "  ", "\n", "\r\n", "\t", "\u00a0", "\u3000", "\u2028", "\u180e", "\x85", "\x1c", "\n\n   ", " " * 17]


def any_char(r):
    while True:
        top = r.choice([0x7F, 0x7F, 0xFF, 0x24F, 0x7FF, 0x2FFF, 0xFFFF, 0x1FFFF, 0x10FFFF])
        c = r.randrange(top + 1)
        if not 0xD800 <= c < 0xE000:
            return chr(c)


def random_text(r, special):
    parts = []
    for _ in range(r.randrange(1, 12)):
        kind = r.random()
        if kind < 0.4:
            parts.append(r.choice(WORDS))
        elif kind < 0.6:
            parts.append(r.choice(SPACES))
        elif kind < 0.68 and special:
            parts.append(r.choice(special))
        elif kind < 0.72:
            parts.append(r.choice(["a", "ab", " ", "é", "中", "0"]) * r.randrange(2, 40))
        else:
            parts.append("".join(any_char(r) for _ in range(r.randrange(1, 8))))
    return "".join(parts)


def ask(folder, questions):
    run = subprocess.run([BIN / "quire", "tokenize", folder], input="".join(json.dumps(q) + "\n" for q in questions),
                         capture_output=True, text=True, encoding="utf-8", timeout=3600)
    assert run.returncode == 0 and run.stderr == "", run.stderr
    return [json.loads(line) for line in run.stdout.split("\n")[:-1]]


def compare(path, n, seed):
    """path: a tokenizer.json."""
    r = random.Random(seed)
    reference = Tokenizer.from_file(str(path))
    reference.no_truncation()
    reference.no_padding()
    special = [t.content for t in reference.get_added_tokens_decoder().values()]
    size = reference.get_vocab_size()
    questions, expected = [], []
    for i in range(n):
        text, add = random_text(r, special), i % 2 == 0
        questions.append({"text": text, "add_special_tokens": add})
        expected.append({"ids": reference.encode(text, add_special_tokens=add).ids})
        ids = expected[-1]["ids"] if i % 3 else [r.randrange(size) for _ in range(r.randrange(8))]
        questions.append({"ids": ids, "skip_special_tokens": add})
        expected.append({"text": reference.decode(ids, skip_special_tokens=add)})
    answers = ask(path.parent, questions)
    wrong = [(q, got, want) for q, got, want in zip(questions, answers, expected, strict=True) if got != want]
    assert not wrong, f"{len(wrong)} of {len(questions)} differ, such as {wrong[0]}"


@pytest.mark.parametrize("name", sorted(p.parent.name for p in SMALL.glob("*/tokenizer.json")))
def test_small_tokenizers(name):
    compare(SMALL / name / "tokenizer.json", N_STRING, name)


@pytest.mark.parametrize("name", sorted(p.parent.name for p in REAL.glob("*/tokenizer.json.zst")) or ["none"])
def test_real_tokenizers(name, tmp_path):
    packed = REAL / name / "tokenizer.json.zst"
    if not packed.exists():
        pytest.skip(f"{packed} is not there")
    (tmp_path / "tokenizer.json").write_bytes(subprocess.run(["zstd", "-dcq", packed], capture_output=True, check=True).stdout)
    compare(tmp_path / "tokenizer.json", N_REAL, name)


def test_streams_end_where_decoding_does():
    folder = SMALL / "gpt2"
    ids = ask(folder, [{"text": "naïve 🙂 text"}])[0]["ids"]
    whole, stream = ask(folder, [{"ids": ids}, {"ids": ids, "stream": True}])
    assert len(stream["pieces"]) == len(ids) and "".join(stream["pieces"]) + stream["flush"] == whole["text"] == "naïve 🙂 text"


def test_truncation_and_padding_only_when_asked(tmp_path):
    spec = json.loads((SMALL / "wordpiece/tokenizer.json").read_text(encoding="utf-8"))
    for direction in ("Left", "Right"):
        spec["truncation"] = {"direction": direction, "max_length": 6, "strategy": "LongestFirst", "stride": 0}
        spec["padding"] = {"strategy": {"Fixed": 9}, "direction": direction, "pad_to_multiple_of": 4, "pad_id": 3, "pad_type_id": 0, "pad_token": "x"}
        (tmp_path / "tokenizer.json").write_text(json.dumps(spec))
        reference = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
        for text in ("a", "a b c d e f g h i j k l m n"):
            for add in (True, False):
                limited, free = ask(tmp_path, [{"text": text, "add_special_tokens": add, "truncate_and_pad": True},
                                               {"text": text, "add_special_tokens": add}])
                assert limited["ids"] == reference.encode(text, add_special_tokens=add).ids
                assert len(free["ids"]) != len(limited["ids"])


def test_lines_that_are_wrong_are_answered():
    answers = ask(SMALL / "gpt2", [3, {"text": 1}, {"text": "a", "ids": []}, {"ids": [-1]}, {"texts": "a"}, {"text": "a", "stream": 1}, {"text": ""}])
    assert all("error" in a for a in answers[:-1]) and answers[-1] == {"ids": []}
    assert "expected one of" in answers[2]["error"] and "ids[0]" in answers[3]["error"] and '"texts"' in answers[4]["error"]


def test_a_missing_tokenizer_is_named(tmp_path):
    run = subprocess.run([BIN / "quire", "tokenize", tmp_path], capture_output=True, text=True, input="")
    assert run.returncode == 3 and "tokenizer.json" in run.stderr and run.stdout == ""


def test_another_tokenizer_for_a_model(start):
    server = start(MODELS / "llama", "--num-gpu-blocks-override", "64", "--tokenizer", SMALL / "gpt2")
    status, body = server.post("/tokenize", {"prompt": "Hello, world", "add_special_tokens": False})
    assert status == 200 and body["tokens"] == ask(SMALL / "gpt2", [{"text": "Hello, world", "add_special_tokens": False}])[0]["ids"]


def test_tokenizer_options_that_cannot_be(tmp_path):
    for options, said in ((["--tokenizer", tmp_path / "gone"], "--tokenizer"), (["--tokenizer-mode", "mistral"], "expected auto, hf or slow"),
                          (["--tokenizer", tmp_path], "no tokenizer")):
        out = subprocess.run([BIN / "quire", "generate", MODELS / "llama", "--prompt", "a", *options], capture_output=True, text=True, timeout=60)
        assert out.returncode != 0 and said in out.stderr, out.stderr
