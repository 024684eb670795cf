# SPDX-License-Identifier: Apache-2.0
"""quire tokenize against the packages that define each kind of tokenizer: `tokenizers`, `sentencepiece`, `tiktoken`.

    python tests/differential/tokenizers_diff.py [-n STRINGS] [--seed S] [--family NAME]… [--only TOKENIZER]…

For every family STRINGS random texts, shared out over its tokenizers (the small ones of tests/data, the real ones of
../shared/data where that is there): the ids must be the package's, also of texts in which no control tokens are looked for, the text of those ids and of random ids too, and the
pieces of a stream put together must be that text.  Prints a line a tokenizer and the differences; exits 1 when there are any.
tests/e2e/test_tokenizers.py runs the same with few strings.
"""
import argparse
import base64
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import unicodedata

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("QUIRE_BIN", ROOT / "build/release/bin"))
SMALL = ROOT / "tests/data/tokenizers"
REAL = ROOT.parent / "shared/data/tokenizers"
if not REAL.exists():  # a worktree elsewhere
    REAL = pathlib.Path(os.environ.get("QUIRE_SHARED", "/work/shared")) / "data/tokenizers"
BATCH = 2000  # texts a run of quire tokenize

WORDS = ["the", "Hello", "world", "I'm", "they'LL", "x1y2", "12345", "3.14", "٣٤٥", "Ⅷ", "²³", "你好", "世界", "かな", "ﾊﾞ", "가나", "naïve", "cafe\u0301",
         "ǅ", "İ", "ß", "ﬁ", "🙂", "👩‍👩‍👧", "🇩🇪", "a\u0323\u0301", "\u0301", "\u1100\u1161\u11a8", "हिन्दी", "مرحبا", "def f(x):\n    return x", "http://a.b/c?d=e",
         "__init__", "--", "!?", "$5", "€", "`` ''", "\x00", "\ufeff", "\u200b", "\u00ad", "\ufffd", "▁", "##ing", "Ａ\u0301", "ｶﾞ", "㎏", "'s", "'RE", "don\u2019t",
         "ſ", "K", "'ſ", "DŽ", "ΑΣ", "Σ", "\U0001f468\U0001f3fd\u200d\u2695\ufe0f", "1\ufe0f\u20e3", "<0x41>", "<0xE4>", "Ġ", "Ċ", "</w>", "\u0d4d\u0d4d", "\u0e33"]
SPACES = [" ", "  ", "\n", "\r\n", "\t", "\u00a0", "\u3000", "\u2028", "\u180e", "\x85", "\x1c", "\n\n   ", " " * 17, "\r", "\v\f", " \n", "\t\t", "\u2009 "]


def characters_by_category():
    table = {}
    for c in range(0x110000):
        if not 0xD800 <= c < 0xE000:
            table.setdefault(unicodedata.category(chr(c)), []).append(c)
    return table


CATEGORIES = characters_by_category()
KINDS = sorted(CATEGORIES)


def any_char(r):
    while True:
        top = r.choice([0x7F, 0x7F, 0xFF, 0x24F, 0x7FF, 0x2FFF, 0xFFFF, 0x1FFFF, 0x10FFFF])
        c = r.randrange(top + 1)
        if not 0xD800 <= c < 0xE000:
            return chr(c)


def near(r, c):
    """A character of the same 64: most often of the same script."""
    c = (c & ~63) + r.randrange(64)
    return "" if 0xD800 <= c < 0xE000 else chr(c)


def random_part(r, special):
    kind = r.randrange(100)
    if kind < 34:
        return r.choice(WORDS)
    if kind < 52:
        return r.choice(SPACES)
    if kind < 60:
        s = r.choice(special) if special else ""
        return s if kind < 58 else s[:r.randrange(len(s) + 1)]
    if kind < 64:
        return r.choice(["a", "ab", " ", "é", "中", "0", "\n", "\t", " \n", "🙂", "\u0301", "=", "\u3000", "\x00"]) * r.randrange(2, 40 if r.random() < 0.95 else 400)
    if kind < 76:  # a word of some script
        c = ord(any_char(r))
        return "".join(near(r, c) for _ in range(r.randrange(1, 9)))
    if kind < 88:  # every kind of character as often
        return "".join(chr(r.choice(CATEGORIES[r.choice(KINDS)])) for _ in range(r.randrange(1, 6)))
    return "".join(any_char(r) for _ in range(r.randrange(1, 8)))


def random_text(r, special):
    return "".join(random_part(r, special) for _ in range(r.randrange(1, 12)))


# ---- what answers for each kind of file: encode(text, add_special) and decode(ids, skip_special), None = does not say ----

class ByTokenizers:
    def __init__(self, folder):
        from tokenizers import Tokenizer
        self.t = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.t.no_truncation()
        self.t.no_padding()
        self.special = [t.content for t in self.t.get_added_tokens_decoder().values()]
        self.size = self.t.get_vocab_size()
        self.loose_stream = '"ByteFallback"' in (folder / "tokenizer.json").read_text(encoding="utf-8")

        spec = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
        # the package takes tokens of the form <|…|> that are not marked special for text of their own kind, and its
        # unigram model finds control tokens among its pieces
        loose = any(re.fullmatch(r"<[|｜].+[|｜]>", t["content"], re.S) and not t.get("special") for t in spec["added_tokens"])
        self.knows_content = not loose and not isinstance(spec["model"]["vocab"], list)

    def encode(self, text, add):
        return self.t.encode(text, add_special_tokens=add).ids

    def encode_content(self, text):
        """Control tokens that the text spells out are text."""
        self.t.encode_special_tokens = True
        ids = self.t.encode(text, add_special_tokens=False).ids
        self.t.encode_special_tokens = False
        return ids

    def decode(self, ids, skip):
        return self.t.decode(ids, skip_special_tokens=skip)


class BySentencePiece:
    """Control pieces in a text are tokens, as transformers has it; what lies between them is sentencepiece's."""

    def __init__(self, folder):
        import re
        import sentencepiece
        self.t = sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
        self.size = self.t.vocab_size()
        control = {self.t.id_to_piece(i): i for i in range(self.size) if self.t.is_control(i) or self.t.is_unknown(i)}
        self.control = control
        self.special = list(control)
        self.cut = re.compile("(" + "|".join(re.escape(c) for c in sorted(control, key=len, reverse=True)) + ")")
        self.loose_stream = True

    def encode(self, text, add):
        ids = []
        for part in self.cut.split(text):
            ids += [self.control[part]] if part in self.control else self.t.encode(part)
        return ids

    def decode(self, ids, skip):
        plain = all(not self.t.is_control(i) and not self.t.is_unknown(i) for i in ids)
        return self.t.decode(ids) if plain else None


CL100K_TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
ENDINGS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
CL100K = ENDINGS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + CL100K_TAIL
UPPER, LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
O200K = (rf"[^\r\n\p{{L}}\p{{N}}]?[{UPPER}]*[{LOWER}]+{ENDINGS}?|[^\r\n\p{{L}}\p{{N}}]?[{UPPER}]+[{LOWER}]*{ENDINGS}?"
         r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
KIMI = (rf"[\p{{Han}}]+|[^\r\n\p{{L}}\p{{N}}]?[{UPPER}&&[^\p{{Han}}]]*[{LOWER}&&[^\p{{Han}}]]+{ENDINGS}?"
        rf"|[^\r\n\p{{L}}\p{{N}}]?[{UPPER}&&[^\p{{Han}}]]+[{LOWER}&&[^\p{{Han}}]]*{ENDINGS}?|\p{{N}}{{1,3}}" + CL100K_TAIL)


class ByTiktoken:
    def __init__(self, folder):
        import tiktoken
        path = next(p for p in folder.iterdir() if p.name.endswith(("tiktoken.model", ".tiktoken")))
        ranks = {base64.b64decode(a): int(b) for a, b in (line.split() for line in path.read_bytes().splitlines() if line)}
        config = folder / "tokenizer_config.json"
        added = json.loads(config.read_text(encoding="utf-8"))["added_tokens_decoder"] if config.exists() else {}
        special = {t["content"]: int(i) for i, t in added.items()}
        pattern = CL100K
        if path.name == "o200k_base.tiktoken":
            pattern, special = O200K, {"<|endoftext|>": 199999, "<|endofprompt|>": 200018}
        elif "[EOS]" in special:
            pattern = KIMI
            taken = set(special.values())
            special |= {f"<|reserved_token_{i}|>": i for i in range(163584, 163840) if i not in taken}
        self.t = tiktoken.Encoding(path.name, pat_str=pattern, mergeable_ranks=ranks, special_tokens=special)
        self.ids = sorted(set(ranks.values()) | set(special.values()))
        self.special, self.size = list(special), len(self.ids)
        self.loose_stream = False

    def encode(self, text, add):
        return self.t.encode(text, allowed_special="all")

    def decode(self, ids, skip):
        return self.t.decode_bytes(ids).decode("utf-8", errors="replace") if not skip else None


class ByTekken:
    """tiktoken over the ranks of a tekken.json; its special tokens go to ids far above, and back."""

    FAR = 1 << 24

    def __init__(self, folder):
        import tiktoken
        file = json.loads((folder / "tekken.json").read_text(encoding="utf-8"))
        config = file["config"]
        self.n_special = config["default_num_special_tokens"]
        self.size = config["default_vocab_size"]
        names = [t["token_str"] for t in file["special_tokens"]]
        self.special = names + [f"<SPECIAL_{i}>" for i in range(len(names), self.n_special)]
        ranks = {base64.b64decode(t["token_bytes"]): t["rank"] for t in file["vocab"][:self.size - self.n_special]}
        self.t = tiktoken.Encoding("tekken", pat_str=config["pattern"], mergeable_ranks=ranks,
                                   special_tokens={t: self.FAR + i for i, t in enumerate(self.special)})
        self.loose_stream = False

    def encode(self, text, add):
        return [i - self.FAR if i >= self.FAR else i + self.n_special for i in self.t.encode(text, allowed_special="all")]

    def decode(self, ids, skip):
        far = [i + self.FAR if i < self.n_special else i - self.n_special for i in ids]
        return self.t.decode_bytes(far).decode("utf-8", errors="replace") if not skip else None


# ---- which tokenizers there are ----

def family_of(spec):
    model = spec["model"]
    kind = model.get("type") or ("BPE" if "merges" in model else "Unigram" if isinstance(model["vocab"], list) else "WordPiece")
    if kind != "BPE":
        return kind
    if '"ByteLevel"' in json.dumps([spec.get("pre_tokenizer"), spec.get("normalizer")]):
        return "byte-level BPE"
    return "SentencePiece BPE" if model.get("byte_fallback") or '"Metaspace"' in json.dumps(spec.get("pre_tokenizer")) else "other BPE"


def small_folders():
    """Those of tests/data/tokenizers that hold a tokenizer: not the lists of words, nor what Python caches beside its files."""
    return [f for f in sorted(SMALL.glob("*/")) if not f.name.endswith("_list") and not f.name.startswith(("_", "."))]


def unpack(folder, to):
    to.mkdir(parents=True)
    has_json = (folder / "tokenizer.json.zst").exists()  # then what tokenizer_config.json adds, the package does not see
    for p in folder.iterdir():
        if p.name.endswith((".model.zst", ".tiktoken.zst", "tokenizer.json.zst")):
            (to / p.name[:-4]).write_bytes(subprocess.run(["zstd", "-dcq", p], capture_output=True, check=True).stdout)
        elif p.name == "tokenizer_config.json" and not has_json:
            (to / p.name).write_bytes(p.read_bytes())


WORD_LEVELS = ("Whitespace", "WhitespaceSplit", "BertPreTokenizer", "Punctuation", "UnicodeScripts")


def word_levels(to):
    """There is no WordLevel tokenizer among them: the words of a WordPiece one behind several pre-tokenizers."""
    spec = json.loads((SMALL / "wordpiece/tokenizer.json").read_text(encoding="utf-8"))
    words = {w: i for i, w in enumerate(sorted({w.removeprefix("##") for w in spec["model"]["vocab"]} | {"[UNK]", "Hello", " ", "\n", "'", "ing"}))}
    for name in WORD_LEVELS:
        pre = {"type": name} if name != "Punctuation" else {"type": name, "behavior": "Isolated"}
        folder = to / f"WordLevel-{name}"
        folder.mkdir()
        mine = dict(spec, model={"type": "WordLevel", "vocab": words, "unk_token": "[UNK]"}, pre_tokenizer=pre, post_processor=None, decoder=None,
                    normalizer=None if name != "Whitespace" else spec["normalizer"], added_tokens=[])
        (folder / "tokenizer.json").write_text(json.dumps(mine), encoding="utf-8")


def is_real(folder):
    return folder.name[0] != "_" and any(p.name.endswith((".json.zst", ".model.zst", ".tiktoken.zst")) for p in folder.iterdir())


def catalogue(to, real=True):
    """[(family, name, folder, class that answers)]"""
    found = []
    word_levels(to)
    folders = small_folders() + sorted(to.glob("WordLevel-*/"))
    for folder in sorted(REAL.glob("*/")) if real else ():
        if is_real(folder):
            unpack(folder, to / "real" / folder.name)
            folders.append(to / "real" / folder.name)
    for folder in folders:
        name = folder.name if folder.parent.name != "real" else "real/" + folder.name
        files = {p.name for p in folder.iterdir()}
        if "tokenizer.json" in files:
            found.append((family_of(json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))), name, folder, ByTokenizers))
        elif "tekken.json" in files:
            found.append(("tekken", name, folder, ByTekken))
        elif "tokenizer.model" in files:
            found.append(("sentencepiece", name, folder, BySentencePiece))
        elif any("tiktoken" in f for f in files):
            found.append(("tiktoken", name, folder, ByTiktoken))
    return found


# ---- the comparison ----

def ask(folder, questions):
    data = "".join(json.dumps(q) + "\n" for q in questions)
    run = subprocess.run([BIN / "quire", "tokenize", folder], input=data, capture_output=True, text=True, encoding="utf-8", timeout=3600)
    if run.returncode != 0 or run.stderr:
        raise RuntimeError(f"quire tokenize {folder}: {run.returncode} {run.stderr}")
    return [json.loads(line) for line in run.stdout.split("\n")[:-1]]


def batch(reference, folder, texts, r):
    """[(question, answer, wanted)] of what differs."""
    questions, wanted = [], []
    known = getattr(reference, "ids", None)
    for i, text in enumerate(texts):
        add, skip = i % 2 == 0, i % 4 < 2
        if not isinstance(reference, ByTokenizers):
            add = skip = False
        own = reference.encode(text, add)
        questions.append({"text": text, "add_special_tokens": add})
        wanted.append({"ids": own})
        if getattr(reference, "knows_content", False):
            questions.append({"text": text, "add_special_tokens": False, "content_ranges": [[0, len(text.encode())]]})
            wanted.append({"ids": reference.encode_content(text)})
        ids = own if i % 3 else [r.choice(known) if known else r.randrange(reference.size) for _ in range(r.randrange(8))]
        said = reference.decode(ids, skip)
        if said is None:
            continue
        questions.append({"ids": ids, "skip_special_tokens": skip})
        wanted.append({"text": said})
        if i % 3 or not reference.loose_stream:  # runs of byte tokens that are not UTF-8 are shown as they come (stream.h)
            questions.append({"ids": ids, "skip_special_tokens": skip, "stream": True})
            wanted.append({"text": said})
    answers = ask(folder, questions)
    for q, a in zip(questions, answers, strict=True):
        if q.get("stream") and "pieces" in a and len(a["pieces"]) == len(q["ids"]):
            a["text"] = "".join(a.pop("pieces")) + a.pop("flush")
    return len(questions), [(q, a, w) for q, a, w in zip(questions, answers, wanted, strict=True) if a != w]


def compare(folder, n, seed, kind=ByTokenizers):
    """(answers compared, differences)"""
    r = random.Random(seed)
    reference = kind(folder)
    n_asked, wrong = 0, []
    for start in range(0, n, BATCH):
        texts = [random_text(r, reference.special) for _ in range(min(BATCH, n - start))]
        asked, differ = batch(reference, folder, texts, r)
        n_asked += asked
        wrong += differ
    return n_asked, wrong


# ---- every character through every normalizer ----

NORMALIZERS = [{"type": t} for t in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Nmt")] + [
    {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": True, "lowercase": True},
    {"type": "Strip", "strip_left": True, "strip_right": True},
    json.loads((SMALL / "unigram/tokenizer.json").read_text(encoding="utf-8"))["normalizer"]]


def characters(spec, to, scalars):
    """Differences of one normalizer over all characters, in a few surroundings: a tokenizer whose ids are the bytes."""
    from tokenizers import Tokenizer, pre_tokenizers
    vocab = {c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    whole = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": spec, "post_processor": None,
             "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}, "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False},
             "model": {"type": "BPE", "vocab": vocab, "merges": []}}
    to.mkdir()
    (to / "tokenizer.json").write_text(json.dumps(whole))
    reference = Tokenizer.from_str(json.dumps(whole))
    wrong = []
    for form in ("{}", "a{}\u0301", "e\u0301{}", "{}\u0323b"):
        texts = [form.format(c) for c in scalars]
        lines = ["|".join(texts[i:i + 16]) for i in range(0, len(texts), 16)]
        answers = ask(to, [{"text": t} for t in lines])
        differ = [t for t, a in zip(lines, answers, strict=True) if a != {"ids": reference.encode(t).ids}]
        ones = [t for line in differ for t in line.split("|")]
        for t, a in zip(ones, ask(to, [{"text": t} for t in ones]), strict=True):
            if a != {"ids": reference.encode(t).ids}:
                wrong.append((t, a, reference.decode(reference.encode(t).ids)))
    return len(scalars) * 4, wrong


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("-n", type=int, default=100_000, help="texts a family (100000)")
    p.add_argument("--seed", default="1")
    p.add_argument("--family", action="append")
    p.add_argument("--only", action="append", help="a tokenizer by name; with --characters a normalizer by type")
    p.add_argument("--characters", action="store_true", help="instead: every character through every normalizer")
    p.add_argument("--each", action="store_true", help="so many texts for every tokenizer, not for every family")
    o = p.parse_args()
    n_text, n_asked, n_wrong = {}, 0, 0
    if o.characters:
        scalars = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000 and not 0xE0200 < c < 0x10FFF0]
        with tempfile.TemporaryDirectory() as tmp:
            for spec in (s for s in NORMALIZERS if not o.only or s["type"] in o.only):
                n, wrong = characters(spec, pathlib.Path(tmp) / spec["type"], scalars)
                n_wrong += len(wrong)
                print(f"{spec['type']:16} {n} texts {len(wrong)} differ {[' '.join(f'{ord(c):04X}' for c in w[0]) for w in wrong[:12]]}", flush=True)
        return 1 if n_wrong else 0
    with tempfile.TemporaryDirectory() as tmp:
        all_of_them = catalogue(pathlib.Path(tmp))
        for family in sorted({f for f, *_ in all_of_them}):
            members = [m for m in all_of_them if m[0] == family and (not o.only or m[1] in o.only)]
            if not members or (o.family and family not in o.family):
                continue
            share = o.n if o.each else -(-o.n // len(members))
            for _, name, folder, kind in members:
                asked, wrong = compare(folder, share, o.seed + name, kind)
                n_text[family] = n_text.get(family, 0) + share
                n_asked += asked
                n_wrong += len(wrong)
                print(f"{family:18} {name:24} {share:7} texts {asked:7} answers {len(wrong)} differ", flush=True)
                for q, got, want in wrong[:3]:
                    print(f"    {json.dumps(q)[:600]}\n      quire   {json.dumps(got)[:600]}\n      package {json.dumps(want)[:600]}", flush=True)
    print("texts by family:", ", ".join(f"{f} {n}" for f, n in n_text.items()))
    print(f"{n_asked} answers compared, {n_wrong} differ")
    return 1 if n_wrong else 0


if __name__ == "__main__":
    sys.exit(main())
