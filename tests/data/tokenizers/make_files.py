# SPDX-License-Identifier: Apache-2.0
"""Writes sp_bpe/, sp_unigram/ and tiktoken/: small tokenizers in their makers' own files, with what the makers' packages
(sentencepiece 0.2.3, tiktoken 0.14.0) encode and decode.  Usage: python make_files.py

The training text is the words of the other small tokenizers, in random order.
"""
import base64
import io
import json
import os
import random

import sentencepiece
import tiktoken

HERE = os.path.dirname(os.path.abspath(__file__))
PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
SPECIAL = {"<|begin_of_text|>": 2000, "<|end_of_text|>": 2001, "<|gap|>": 2005}
ODD = ["naïve", "ﬁne", "Ａ１", "①", "ｶﾞ", "你好", "🙂", "x" * 70, "  ", "\n", "\t", " ", "   ", "it's", "WE'LL", "12345", "é", "<user>", "▁", "a\u0301"]


def golden(name):
    return json.load(open(os.path.join(HERE, name, "golden.json"), encoding="utf-8"))


def corpus(r):
    texts = [c["text"] for c in golden("spbpe")["cases"] if "\x00" not in c["text"]]
    controls = ("<s>", "</s>", "<unk>")  # sentencepiece does not look for them in text, we do as transformers does
    words = sorted({w for t in texts for w in t.split() if w.isascii() and not any(c in w for c in controls)})
    return [" ".join(r.choice(words) for _ in range(12)) for _ in range(1500)], words


def samples(r, words):
    # behind a user-defined piece equal totals are not always broken as sentencepiece breaks them (common/tokenizer/README.md)
    words = [w for w in words if "hahaha" not in w]
    return [""] + ODD + ["".join(r.choice(ODD + words) + r.choice(["", " ", " "]) for _ in range(r.randrange(1, 12))) for _ in range(180)]


def write(name, file, data, cases, config=None):
    folder = os.path.join(HERE, name)
    os.makedirs(folder, exist_ok=True)
    open(os.path.join(folder, file), "wb").write(data)
    if config:
        json.dump(config, open(os.path.join(folder, "tokenizer_config.json"), "w"), indent=1)
    with open(os.path.join(folder, "golden.json"), "w", encoding="ascii") as f:
        f.write('{"cases":[\n' + ",\n".join(json.dumps(c) for c in cases) + "\n]}\n")


def sp_model(name, r, **options):
    lines, words = corpus(r)
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(lines), model_writer=out, minloglevel=2, num_threads=1, **options)
    sp = sentencepiece.SentencePieceProcessor(model_proto=out.getvalue())
    cases = []
    for text in samples(r, words):
        ids = sp.encode(text)
        case = {"text": text, "ids": ids}
        if sp.unk_id() not in ids:
            case["decoded"] = sp.decode(ids)
        cases.append(case)
    write(name, "tokenizer.model", out.getvalue(), cases)


def ranks(r):
    vocab = json.load(open(os.path.join(HERE, "llama3/tokenizer.json"), encoding="utf-8"))["model"]["vocab"]
    plain = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or b >= 174]
    moved = [b for b in range(256) if b not in plain]
    byte_of = {chr(b): b for b in plain} | {chr(256 + i): b for i, b in enumerate(moved)}
    tokens = [bytes([b]) for b in range(256)]
    for text, _ in sorted(vocab.items(), key=lambda item: item[1]):
        token = bytes(byte_of[c] for c in text) if all(c in byte_of for c in text) else b""
        if len(token) > 1 and token not in tokens and len(tokens) < 1500:
            tokens.append(token)
    table = {t: i for i, t in enumerate(tokens)}
    encoding = tiktoken.Encoding("small", pat_str=PATTERN, mergeable_ranks=table, special_tokens=SPECIAL)
    cases = [{"text": t, "ids": (ids := encoding.encode(t, allowed_special="all")), "decoded": encoding.decode(ids)}
             for t in samples(r, corpus(r)[1]) + ["a<|gap|>b<|end_of_text|>"]]
    data = b"".join(base64.b64encode(t) + b" %d\n" % i for t, i in table.items())
    added = {str(i): {"content": t, "special": True, "normalized": False} for t, i in SPECIAL.items()}
    write("tiktoken", "tiktoken.model", data, cases, {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|begin_of_text|>",
                                                      "model_max_length": 10**30, "added_tokens_decoder": added})


def main():
    sp_model("sp_bpe", random.Random(1), model_type="bpe", vocab_size=700, byte_fallback=True, normalization_rule_name="identity",
             remove_extra_whitespaces=False, character_coverage=1.0)
    sp_model("sp_unigram", random.Random(2), model_type="unigram", vocab_size=280, user_defined_symbols=["<user>", "1"])
    ranks(random.Random(3))


if __name__ == "__main__":
    main()
