# SPDX-License-Identifier: Apache-2.0
"""quire tokenize against the `tokenizers` package over random tokenizer.json files: normalizer x pre-tokenizer x model x
post-processor x decoder x added tokens, drawn by seed; random texts in, random ids out, streams.

    python tests/differential/pipelines_diff.py [-n FILES] [--seed FIRST] [--texts N]

File i is drawn with seed FIRST + i alone, so that a difference is found again by -n 1 --seed.  Prints the differences; exits 1
when there are any.  tests/e2e/test_tokenizers.py runs the same with few files.
"""
import argparse
import copy
import json
import pathlib
import random
import sys
import tempfile

import tokenizers_diff as diff

sys.path.insert(0, str(diff.SMALL))
import make_pipelines as made  # noqa: E402
from tokenizers import Tokenizer  # noqa: E402

CONTENTS = ["<s>", "</s>", "<ab>", "<abc>", "bc><", "ab", "Lo", "é", "e\u0301", "x y", " z", "z ", "\u4f60", "1", "[X]", "▁", "Ġ", "\n", "I'm", "ﬁ", "<x"]


def added_tokens(r, taken):
    tokens = []
    for content in r.sample(CONTENTS, r.randrange(6)):
        flags = {f: r.random() < 0.3 for f in ("lstrip", "rstrip", "single_word")}
        tokens.append({"id": taken + len(tokens), "content": content, **flags, "normalized": r.random() < 0.5, "special": r.random() < 0.5})
    return tokens


def template(r, ids):
    def part():
        return {"SpecialToken": {"id": r.choice(list(ids)), "type_id": 0}} if r.random() < 0.6 else None
    one = [p for p in (part(), part()) if p] + [{"Sequence": {"id": "A", "type_id": 0}}] + [p for p in (part(),) if p]
    return {"type": "TemplateProcessing", "single": one, "pair": one + [{"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {t: {"id": t, "ids": i, "tokens": [t] * len(i)} for t, i in ids.items()}}


def post_processor(r, nested=False):
    kind = r.choice(["none", "none", "ByteLevel", "TemplateProcessing", "BertProcessing", "RobertaProcessing"] + ([] if nested else ["Sequence"]))
    if kind == "none":
        return made.BYTE_LEVEL if nested else None
    if kind == "ByteLevel":
        return made.BYTE_LEVEL
    if kind == "Sequence":
        return {"type": kind, "processors": [post_processor(r, True) for _ in range(r.randrange(1, 3))]}
    if kind == "TemplateProcessing":
        return template(r, {"[A]": [3], "[B]": [4, 5]})
    ends = {"sep": ["</s>", 2], "cls": ["<s>", 1]}
    return {"type": kind, **ends, **({"trim_offsets": True, "add_prefix_space": True} if kind == "RobertaProcessing" else {})}


def model(r, bases):
    """The model of one of the small tokenizers, changed where its own fields allow."""
    name = r.choice(list(bases))
    m = copy.deepcopy(bases[name]["model"])
    if m["type"] == "BPE":
        if r.random() < 0.2:
            m |= made.affixes(r)
        any_token = r.choice(list(m["vocab"]))
        m |= {"unk_token": r.choice([None, any_token]), "fuse_unk": r.random() < 0.5, "ignore_merges": r.random() < 0.3, "byte_fallback": r.random() < 0.5}
        if r.random() < 0.3:
            m["merges"] = m["merges"][:r.randrange(len(m["merges"]) + 1)]
    elif m["type"] == "Unigram":
        m["byte_fallback"] = r.random() < 0.5
        if r.random() < 0.4:
            m["vocab"] = [[w, s if r.random() < 0.7 else -float(r.randrange(20))] for w, s in m["vocab"]]
    elif r.random() < 0.3:
        m = {"type": "WordLevel", "vocab": {w.removeprefix("##"): i for i, w in enumerate(m["vocab"])}, "unk_token": m["unk_token"]}
    else:
        m |= {"max_input_chars_per_word": r.choice([100, 4, 1]), "continuing_subword_prefix": r.choice(["##", "##", ""])}
    return m


def normalizer(r, bases):
    if r.random() < 0.25:
        return copy.deepcopy(bases["unigram"]["normalizer"])  # it holds a Precompiled
    return made.normalizer(r)


def draw(seed, bases):
    """(the file, texts)"""
    r = random.Random(seed)
    m = model(r, bases)
    spec = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added_tokens(r, len(m["vocab"])),
            "normalizer": normalizer(r, bases) if r.random() < 0.6 else None, "pre_tokenizer": made.pre_tokenizer(r) if r.random() < 0.9 else None,
            "post_processor": post_processor(r), "decoder": made.decoder(r), "model": m}
    return spec, r


def usable(spec):
    """The package's tokenizer; None where it refuses the file, cuts between all characters (an added token that normalizes to nothing) or
    takes one of several added tokens at random (those that normalize to the same)."""
    try:
        t = Tokenizer.from_str(json.dumps(spec))
        patterns = [t.normalizer.normalize_str(a["content"]) if t.normalizer else a["content"] for a in spec["added_tokens"] if a["normalized"]]
    except BaseException:  # some refusals are panics
        return None
    return t if all(patterns) and len(set(patterns)) == len(patterns) else None


def questions(t, spec, r, n):
    """[(question, wanted)]; what makes the package panic is left out."""
    special = [a["content"] for a in spec["added_tokens"]]
    folds = "(?i:" in json.dumps(spec)  # Oniguruma folds one character to two: a known difference
    rows = []
    for _ in range(n):
        text = made.text(r) if r.random() < 0.5 else diff.random_text(r, special)
        if r.random() < 0.3 and special:
            text += r.choice(special) + text[:3]
        add, skip = r.random() < 0.5, r.random() < 0.5
        if folds:
            text = "".join(c for c in text if len(c.casefold()) == 1)
        try:
            ids = t.encode(text, add_special_tokens=add).ids
            more = ids if r.random() < 0.6 else [r.randrange(t.get_vocab_size() + 2) for _ in range(r.randrange(10))]
            said = t.decode(more, skip_special_tokens=skip)
        except BaseException:
            continue
        rows.append(({"text": text, "add_special_tokens": add}, {"ids": ids}))
        rows.append(({"ids": more, "skip_special_tokens": skip}, {"text": said}))
    return rows


def compare(first, n, n_text=10, show=print):
    """(answers compared, files with differences, files that quire refuses and the package takes)"""
    bases = {name: json.loads((diff.SMALL / name / "tokenizer.json").read_text(encoding="utf-8")) for name in made.BASES}
    n_asked, bad, refused = 0, [], []
    for seed in range(first, first + n):
        spec, r = draw(seed, bases)
        t = usable(spec)
        if not t:
            continue
        rows = questions(t, spec, r, n_text)
        with tempfile.TemporaryDirectory() as tmp:
            file = pathlib.Path(tmp) / "tokenizer.json"
            file.write_text(json.dumps(spec), encoding="utf-8")
            try:
                answers = diff.ask(tmp, [q for q, _ in rows])
            except RuntimeError as e:
                refused.append((seed, str(e)))
                continue
        n_asked += len(rows)
        wrong = [(q, a, w) for (q, w), a in zip(rows, answers, strict=True) if a != w]
        if wrong:
            bad.append(seed)
            small = {k: v for k, v in spec.items() if v and k not in ("model", "version")}
            show(f"seed {seed}: {len(wrong)} differ: {json.dumps(small)[:900]} model "
                 f"{json.dumps({k: v for k, v in spec['model'].items() if k not in ('vocab', 'merges')})}")
            q, a, w = min(wrong, key=lambda x: len(json.dumps(x[0])))
            show(f"    {json.dumps(q)[:400]}\n      quire   {json.dumps(a)[:400]}\n      package {json.dumps(w)[:400]}")
    return n_asked, bad, refused


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("-n", type=int, default=1000, help="files (1000)")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--texts", type=int, default=10)
    o = p.parse_args()
    n_asked, bad, refused = compare(o.seed, o.n, o.texts)
    for seed, why in refused[:20]:
        print(f"seed {seed}: refused: {why[-200:]}")
    print(f"{o.n} files, {n_asked} answers compared, {len(bad)} files differ, {len(refused)} refused: {bad[:40]}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
