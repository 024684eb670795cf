# SPDX-License-Identifier: Apache-2.0
"""Writes common/tokenizer/classes.def: the character classes and case and normal-form exceptions of the `tokenizers`
package (0.23.3 made the committed file), found by asking it about every code point.  Usage: python make_classes.py

The package's parts are built on Unicode data of different ages; its answers are the right ones for us.
"""
import os
import unicodedata

from tokenizers import Regex, normalizers, pre_tokenizers

OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../common/tokenizer/classes.def")
ALL = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
BATCH = 20000


def per_char(normalizer, pre="", post="", end="\n"):
    """What becomes of pre + c + post, for every c but `end`."""
    chars, out = [c for c in ALL if c != ord(end)], {}
    for i in range(0, len(chars), BATCH):
        some = chars[i:i + BATCH]
        lines = normalizer.normalize_str("".join(pre + chr(c) + post + end for c in some)).split(end)
        assert len(lines) == len(some) + 1
        out.update(zip(some, lines))
    return out


def starts(pre_tokenizer, text):
    return {start for _, (start, _) in pre_tokenizer.pre_tokenize_str(text)}


def split_between(pre_tokenizer, before):
    """The characters that the pre-tokenizer cuts off from a `before` in front of them."""
    out = set()
    for i in range(0, len(ALL), BATCH):
        some = ALL[i:i + BATCH]
        found = starts(pre_tokenizer, "".join(before + chr(c) for c in some))
        out |= {c for k, c in enumerate(some) if 2 * k + 1 in found}
    return out


def removed(pre_tokenizer):
    out = set()
    for i in range(0, len(ALL), BATCH):
        some = ALL[i:i + BATCH]
        found = starts(pre_tokenizer, "".join("a" + chr(c) for c in some))
        text = "".join(x for x, _ in pre_tokenizer.pre_tokenize_str("".join("a" + chr(c) for c in some)))
        kept = set(map(ord, text))
        out |= {c for c in some if c not in kept}
    return out


def clean(**flags):
    off = dict(clean_text=False, handle_chinese_chars=False, strip_accents=False, lowercase=False)
    return normalizers.BertNormalizer(**dict(off, **flags))


def scripts():
    """(first, last, number) of every run of one script; characters without one are in no run."""
    us = pre_tokenizers.UnicodeScripts()
    some_script = split_between(us, "\n") | split_between(us, "a")
    live = [c for c in ALL if c in some_script]
    changes = {live[0]}
    for i in range(0, len(live), BATCH):
        some = live[max(i - 1, 0):i + BATCH]
        found = starts(us, "".join(map(chr, some)))
        changes |= {c for k, c in enumerate(some) if k and k in found}
    known, out, number = [], [], 0
    for before, c in zip([None] + live, live):
        if c in changes:
            found = starts(us, "".join(chr(k) + chr(c) for k in known)) if known else set()
            same = [k for k in range(len(known)) if 2 * k + 1 not in found]
            number = same[0] if same else len(known)
            if not same:
                known.append(c)
        if out and before == c - 1 and out[-1][2] == number:
            out[-1][1] = c
        else:
            out.append([c, c, number])
    return out


def ranges(chars):
    out = []
    for c in sorted(chars):
        if out and out[-1][1] == c - 1:
            out[-1][1] = c
        else:
            out.append([c, c])
    return out


def newer():
    """What Unicode 14 has and the package's normal forms do not: they leave these characters as they are."""
    nfd, nfkd = per_char(normalizers.NFD()), per_char(normalizers.NFKD())
    low, high = per_char(normalizers.NFD(), "\u0345"), per_char(normalizers.NFD(), "", "\u0334")
    out = set()
    for c in nfd:
        x = chr(c)
        ours = unicodedata.normalize("NFD", x)
        marks = unicodedata.combining(x) and low[c] == "\u0345" + x and high[c] == x + "\u0334"
        if nfd[c] != ours or nfkd[c] != unicodedata.normalize("NFKD", x) or (marks and ours == x):
            out.add(c)
    return out


def assigned():
    """The characters that the package's regex engine knows."""
    split, out = pre_tokenizers.Split(Regex("\\p{Cn}"), "removed"), set()
    for i in range(0, len(ALL), BATCH):
        out |= set(map(ord, "".join(x for x, _ in split.pre_tokenize_str("".join(map(chr, ALL[i:i + BATCH]))))))
    return out


PROPERTIES = ["L", "Lu", "Ll", "Lt", "Lm", "Lo", "M", "Mn", "Mc", "Me", "N", "Nd", "Nl", "No", "P", "Pc", "Pd", "Ps", "Pe", "Po", "S", "Sm", "Sc",
              "Sk", "So", "Z", "Cf", "Alphabetic", "Uppercase", "Lowercase", "Han", "Latin", "Cyrillic", "Greek", "Arabic", "Hiragana",
              "Katakana", "Hangul", "Thai", "Hebrew", "Devanagari"]


def regex_newer(path):
    """Which characters that Unicode 14 does not have the package's regex engine puts where; word is its \\w."""
    some = [c for c in ALL if unicodedata.category(chr(c)) == "Cn"]

    def matching(pattern, chars):
        split, kept = pre_tokenizers.Split(Regex(pattern), "removed"), set()
        for i in range(0, len(chars), BATCH):
            kept |= set("".join(x for x, _ in split.pre_tokenize_str("".join(map(chr, chars[i:i + BATCH])))))
        return [c for c in chars if chr(c) not in kept]

    some = matching("\\P{Cn}", some)
    with open(path, "w", encoding="ascii") as f:
        f.write("/* SPDX-License-Identifier: Apache-2.0 */\n/* Characters that PCRE2 with Unicode 14 does not know, by property, as the reference's regex "
                "engine has them:\n * NEWER(property, ranges of a class), word standing for \\w. Made by tests/data/tokenizers/make_classes.py. */\n")
        for name in ["any", "word"] + PROPERTIES:
            found = some if name == "any" else matching("\\w" if name == "word" else f"\\p{{{name}}}", some)
            if not found:
                continue
            f.write(f"NEWER({name},\n")
            line = ""
            for a, b in ranges(found):
                item = f"\\\\x{{{a:x}}}" + (f"-\\\\x{{{b:x}}}" if b > a else "")
                if len(line) + len(item) > 100:
                    f.write(f'  "{line}"\n')
                    line = ""
                line += item
            f.write(f'  "{line}")\n')
        f.write("#undef NEWER\n")


def main():
    regex_newer(OUT.replace("classes.def", "regex_newer.def"))
    other = per_char(clean(clean_text=True), "a", "b", "\u4e00")
    strip, accents = per_char(clean(strip_accents=True)), per_char(normalizers.StripAccents())
    not_word = split_between(pre_tokenizers.Whitespace(), "a") | removed(pre_tokenizers.Whitespace())
    classes = {
        "OTHER": {c for c, x in other.items() if x == "ab"},
        "NONSPACING": {c for c, x in strip.items() if x == ""},
        "COMBINING": {c for c, x in accents.items() if x == ""},
        "PUNCT": split_between(pre_tokenizers.BertPreTokenizer(), "a"),
        "NUMERIC": split_between(pre_tokenizers.Digits(), "a"),
        "WORD": set(ALL) - not_word,
        "NEWER": newer(),
        "UNICODE15": {c for c in ALL if unicodedata.category(chr(c)) == "Cn"} & assigned(),
    }
    assert classes["PUNCT"] == split_between(pre_tokenizers.Punctuation(), "a")
    lower = per_char(normalizers.Lowercase())
    with open(OUT, "w", encoding="ascii") as f:
        f.write("/* SPDX-License-Identifier: Apache-2.0 */\n/* Character classes of the reference, by "
                "tests/data/tokenizers/make_classes.py: CLASS(name, ranges), R(first, last); SCRIPTS(runs), S(first, last, number);\n"
                " * LOWER(pairs), L(character, its lower case) where the library's Unicode may be too old. */\n")
        for name, chars in classes.items():
            lines(f, f"CLASS({name},", [f"R(0x{a:x}, 0x{b:x})" for a, b in ranges(chars)])
        lines(f, "SCRIPTS(", [f"S(0x{a:x}, 0x{b:x}, {n})" for a, b, n in scripts()])
        odd = [c for c in lower if len(lower[c]) == 1 and lower[c] != chr(c).lower()]
        lines(f, "LOWER(", [f"L(0x{c:x}, 0x{ord(lower[c]):x})" for c in odd])
        f.write("#undef CLASS\n#undef R\n#undef SCRIPTS\n#undef S\n#undef LOWER\n#undef L\n")


def lines(f, head, items):
    f.write(head + "\n")
    line = " "
    for item in items:
        if len(line) + len(item) > 118:
            f.write(line + "\n")
            line = " "
        line += " " + item
    f.write(line + ")\n")


if __name__ == "__main__":
    main()
