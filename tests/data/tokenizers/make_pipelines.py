# SPDX-License-Identifier: Apache-2.0
"""Writes pipelines.json: random normalizers, pre-tokenizers and decoders over two small vocabularies, with what the
`tokenizers` package (0.23.3 made the committed file) encodes and decodes.  Usage: python make_pipelines.py

Characters are older than Unicode 8, so that the answer does not depend on anybody's Unicode version.
"""
import json
import os
import random

from tokenizers import Tokenizer

HERE = os.path.dirname(os.path.abspath(__file__))
N_PIPELINE, N_TEXT, SEED = 300, 8, 5
BASES = ("gpt2", "spbpe_meta", "unigram", "wordpiece")  # test_tok_pipelines.c knows them too
WORDS = ["hello", "World", "I'm", "they'LL", "x1y2", "12345", "٣٤٥", "Ⅷ", "²³", "½", "你好", "世界", "かな", "가나", "ﾊﾞ",
         "naïve", "cafe\u0301", "ǅ", "İ", "ß", "ﬁ", "🙂", "a\u0323\u0301", "\u0301", "\u0327\u0301x", "Ω", "\u1100\u1161\u11a8",
         "हिन्दी", "مرحبا", "__a", "--", "!?", "$5", "€", "<", "|>", "\x00", "<ab>", "<abc>", "bc><", "oneword", "<lstrip>",
         "<rstrip>", "<Norm>", "Ünï", "lol", "abab"]
SPACES = [" ", "  ", "\n", "\r\n", "\t", "\u00a0", "\u3000", "\u2028", "\u200b", "\u180e", "\x85", "\x1c", "\n\n   "]
REGEXES = [r"\s+", r"\d", r"\w+", r"\W+", "[0-9][0-9]", "x*", r"\p{Han}|\p{Greek}", r"\h{2}", r"^.|.$", r"(?m:.+)",
           r"[a-z]{1,3}+", r"(?<=l)o|\bw", r"[[:alpha:]]+", r"[\d\w]", r"(?:ab|l){1,2}+", r"\S", r"[^\S\n]+", "(?i:HELLO|ss)",
           r"\u4f60|[[:punct:][:space:]]", r"\A.|\z", r"(?i)k|ſ", r"\p{^L}+", r"\P{L}{2}"]
BEHAVIORS = ["Isolated", "Removed", "Contiguous", "MergedWithPrevious", "MergedWithNext"]
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}


def pattern(r):
    return {"Regex": r.choice(REGEXES)} if r.random() < 0.75 else {"String": r.choice([" ", "l", "lo", "ab"])}


def normalizer(r, nested=False):
    kind = r.choice(["NFC", "NFD", "NFKC", "NFKD", "Lowercase", "Strip", "Replace", "Prepend", "StripAccents", "Nmt", "BertNormalizer",
                     "BertNormalizer", "ByteLevel", "Sequence", "Sequence"])
    if kind == "Sequence":
        return {"type": kind, "normalizers": [normalizer(r, True) for _ in range(0 if nested else r.randrange(4))]}
    return {"type": kind, **{"Strip": {"strip_left": r.random() < 0.5, "strip_right": r.random() < 0.5},
                             "Replace": {"pattern": pattern(r), "content": r.choice(["", "_", "xy", "▁"])},
                             "BertNormalizer": {"clean_text": r.random() < 0.6, "handle_chinese_chars": r.random() < 0.6,
                                                "strip_accents": r.choice([None, True, False]), "lowercase": r.random() < 0.5},
                             "Prepend": {"prepend": r.choice(["▁", " ", "ab"])}}.get(kind, {})}


def pre_tokenizer(r, nested=False):
    kind = r.choice(["ByteLevel", "Split", "Split", "Digits", "Punctuation", "Whitespace", "WhitespaceSplit", "Sequence",
                     "Metaspace", "BertPreTokenizer", "CharDelimiterSplit", "UnicodeScripts", "FixedLength"])
    if kind == "Sequence":
        return {"type": kind, "pretokenizers": [pre_tokenizer(r, True) for _ in range(0 if nested else r.randrange(4))]}
    return {"type": kind, **{"ByteLevel": dict(BYTE_LEVEL, add_prefix_space=r.random() < 0.5, use_regex=r.random() < 0.5),
                             "Split": {"pattern": pattern(r), "behavior": r.choice(BEHAVIORS), "invert": r.random() < 0.4},
                             "Metaspace": metaspace(r), "Digits": {"individual_digits": r.random() < 0.5},
                             "CharDelimiterSplit": {"delimiter": r.choice([" ", "l", "世"])}, "FixedLength": {"length": r.randrange(1, 7)},
                             "Punctuation": {"behavior": r.choice(BEHAVIORS)}}.get(kind, {})}


def metaspace(r):
    return {"replacement": r.choice(["▁", "_"]), "prepend_scheme": r.choice(["always", "first", "never"]), "split": r.random() < 0.5}


def decoder(r):
    tokenwise = [{"type": "Replace", "pattern": {"String": r.choice(["▁", "a", "or"])}, "content": r.choice(["", " ", "xy"])},
                 {"type": "ByteFallback"}, {"type": "Metaspace", **metaspace(r)},
                 {"type": "Strip", "content": r.choice([" ", "▁", "h"]), "start": r.randrange(3), "stop": r.choice([0, 0, 1, 2])}]
    tokenwise += [{"type": "WordPiece", "prefix": r.choice(["##", "a", "▁"]), "cleanup": r.random() < 0.6},
                  {"type": "CTC", "pad_token": r.choice(["<pad>", "l"]), "word_delimiter_token": r.choice(["|", "o"]), "cleanup": r.random() < 0.6},
                  {"type": "BPEDecoder", "suffix": r.choice(["</w>", "e", "▁"])}]
    chain = r.sample(tokenwise, r.randrange(4))
    fused = r.choice([[], [{"type": "Fuse"}], [BYTE_LEVEL], [{"type": "Fuse"}, {"type": "Strip", "content": r.choice(" .l"), "start": 1, "stop": r.choice([0, 2])}]])
    return r.choice([None, BYTE_LEVEL, {"type": "Fuse"}] + 5 * [{"type": "Sequence", "decoders": chain + fused}])


def text(r):
    parts = []
    for _ in range(r.randrange(1, 10)):
        parts.append(r.choice(SPACES) * r.choice([1, 1, 1, 3]) if r.random() < 0.35 else r.choice(WORDS))
    return "".join(parts)


def affixes(r):
    """A small BPE model with a suffix for the last piece of a word, or a prefix for all but the first, or both."""
    prefix, suffix = r.choice([("", "</w>"), ("##", ""), ("##", "</w>")])
    forms = [prefix[:0] + "{}", prefix + "{}", "{}" + suffix, prefix + "{}" + suffix]
    parts = list("abcdehlnorwxy1 ▁") + ["he", "ll", "llo", "hello", "or", "ab"]
    words = list(dict.fromkeys(["u"] + [f.format(c) for f in forms for c in parts]))
    merges = [("h", prefix + "e"), (prefix + "l", prefix + "l"), (prefix + "ll", prefix + "o" + suffix), ("he", prefix + "llo" + suffix),
              (prefix + "o", prefix + "r"), ("a", prefix + "b"), ("a", prefix + "b" + suffix)]
    return {"vocab": {w: i for i, w in enumerate(words)}, "merges": [list(m) for m in merges], "unk_token": r.choice([None, "u"]),
            "continuing_subword_prefix": prefix or r.choice([None, ""]), "end_of_word_suffix": suffix or None}


def pipeline(r, bases):
    name = r.choice(list(bases))
    base = bases[name]
    changes = {"normalizer": normalizer(r) if r.random() < 0.6 else None,
               "pre_tokenizer": pre_tokenizer(r) if r.random() < 0.95 else None,
               "decoder": decoder(r)}
    if r.random() < 0.3:  # the base's own; unigram's holds a Precompiled
        del changes["normalizer"]
    model = {"gpt2": {"unk_token": r.choice([None, "a"]), "fuse_unk": r.random() < 0.5, "ignore_merges": r.random() < 0.3,
                      "byte_fallback": r.random() < 0.7},
             "unigram": {"byte_fallback": r.random() < 0.5},
             "wordpiece": r.choice([{}, {"max_input_chars_per_word": 4}, {"continuing_subword_prefix": ""}, {"type": "WordLevel"}])}
    model["spbpe_meta"] = model["gpt2"]
    model = model[name]
    if name in ("gpt2", "spbpe_meta") and r.random() < 0.15:
        model = dict(model, **affixes(r))
    spec = dict(base, **changes, model=dict(base["model"], **model))
    tok = Tokenizer.from_str(json.dumps(spec))
    if tok.normalizer and not all(tok.normalizer.normalize_str(a["content"]) for a in spec["added_tokens"]):
        return pipeline(r, bases)  # an added token that normalizes to nothing makes the reference cut between all characters
    cases, tries = [], 0
    while len(cases) < N_TEXT:
        t = text(r)
        more = [r.randrange(tok.get_vocab_size() + 2) for _ in range(r.randrange(12))]
        try:
            ids = tok.encode(t).ids
            if r.random() < 0.3:  # decoding has to take any ids
                cases.append({"ids": more, "decoded": tok.decode(more, skip_special_tokens=False), "decoded_skip": tok.decode(more)})
            cases.append({"text": t, "ids": ids, "decoded": tok.decode(ids, skip_special_tokens=False),
                          "decoded_skip": tok.decode(ids)})
        except BaseException:  # a panic in the reference
            tries += 1
            if tries > 100:
                return pipeline(r, bases)
    return {"base": name, "changes": changes, "model": model, "cases": cases}


def token(content, **flags):
    return {"id": 0, "content": content, "lstrip": False, "rstrip": False, "single_word": False, "normalized": False, "special": False, **flags}


def template(n_before, n_after):
    def special(name):
        return {"SpecialToken": {"id": name, "type_id": 0}}
    single = [special("[A]")] * n_before + [{"Sequence": {"id": "A", "type_id": 0}}] + [special("[B]")] * n_after
    return {"type": "TemplateProcessing", "single": single, "pair": [*single, {"Sequence": {"id": "B", "type_id": 1}}, special("[B]")],
            "special_tokens": {n: {"id": n, "ids": ids, "tokens": [n] * len(ids)} for n, ids in (("[A]", [3]), ("[B]", [4, 5]))}}


ENDS = {"sep": ["</s>", 2], "cls": ["<s>", 1]}
ROBERTA = {"type": "RobertaProcessing", **ENDS, "trim_offsets": True, "add_prefix_space": True}
PLAIN = {"normalizer": None, "pre_tokenizer": None, "decoder": None}
# What random files of tests/differential/pipelines_diff.py found: base, changes, model, texts.
FOUND = [
    ("gpt2", {**PLAIN, "added_tokens": [token("\n", lstrip=True, rstrip=True), token("<s>", rstrip=True)]}, {}, ["a\n\n   b", " \n<s>  \n x", "\n\n"]),
    ("gpt2", {**PLAIN, "added_tokens": [token("bc><", rstrip=True), token("\n")]}, {}, ["abc><\n\n ", "bc>< \nbc><\n x"]),
    ("gpt2", {**PLAIN, "post_processor": {"type": "Sequence", "processors": [template(0, 1), ROBERTA]}}, {}, ["a", ""]),
    ("gpt2", {**PLAIN, "post_processor": {"type": "Sequence", "processors": [template(2, 1), {"type": "BertProcessing", **ENDS}]}}, {}, ["a b"]),
    ("gpt2", {**PLAIN, "post_processor": {"type": "Sequence", "processors": [template(1, 0), template(0, 2)]}}, {}, ["a b"]),
    ("gpt2", {**PLAIN, "post_processor": {"type": "Sequence", "processors": [ROBERTA, BYTE_LEVEL, template(1, 1)]}}, {}, ["a b"]),
    ("spbpe_meta", {}, {"unk_token": None, "byte_fallback": False}, ["a\u2009 \u2009 b", "  \u2009  "]),
    ("spbpe_meta", {}, {"unk_token": "▁", "byte_fallback": False}, ["a\u2009 \u2009 b"]),
    ("gpt2", {**PLAIN, "pre_tokenizer": {"type": "Split", "pattern": {"Regex": r"\bw|o\B"}, "behavior": "Isolated", "invert": False}}, {},
     ["दीworld", "a wow", "\u0301w", "w\u00b2ow"]),
]


def found(bases, name, changes, model, texts):
    spec = dict(bases[name], **changes, model=dict(bases[name]["model"], **model))
    tok = Tokenizer.from_str(json.dumps(spec))
    cases = []
    for t in texts:
        ids = tok.encode(t).ids
        cases.append({"text": t, "ids": ids, "decoded": tok.decode(ids, skip_special_tokens=False), "decoded_skip": tok.decode(ids)})
    return {"base": name, "changes": changes, "model": model, "cases": cases}


def main():
    bases = {name: json.load(open(os.path.join(HERE, name, "tokenizer.json"), encoding="utf-8")) for name in BASES}
    all_of_them = [pipeline(random.Random(SEED * 1000 + i), bases) for i in range(N_PIPELINE)]
    all_of_them += [found(bases, *one) for one in FOUND]
    with open(os.path.join(HERE, "pipelines.json"), "w", encoding="ascii") as f:
        f.write("[\n" + ",\n".join(json.dumps(p) for p in all_of_them) + "\n]\n")


if __name__ == "__main__":
    main()
