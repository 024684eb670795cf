# SPDX-License-Identifier: Apache-2.0
"""Dialogues as token ids and labels, and a file of them for `quire distill`. Needs tokenizers, no torch.

A label is the id of a token that the model is to learn to say, or IGNORE. Both trainings, by
training.py and by `quire distill`, draw from here, so they count the same tokens.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tokenizers import Tokenizer

from dialogues import Case, Grammar
from tokens import render

IGNORE = -100                           # the label of a token that is no target
N_DRAWN = 400                           # dialogues that are drawn at once

Row = tuple[list[int], list[int]]       # ids and labels, of one length


@dataclass
class Mixture:
    """What dialogues are drawn, by shares."""

    warm_up: float = 0.0                # that only copy
    drill: float = 0.1                  # of the others: bare tool calls, questions about one text, sums
    # The share of the dialogues of a category whose words change their tokens (Relabel).
    relabel: dict[str, float] = field(default_factory=lambda: {"warm up": 0.5, "drill": 0.85, "tool": 0.65})
    token_max: int = 1024               # longer dialogues are left out


def encode(tok: Tokenizer, pieces: list[list[tuple[str, bool]]]) -> list[Row]:
    """Token ids and labels of rendered dialogues. No piece border falls inside a token."""
    flat = [text for dialogue in pieces for text, _ in dialogue]
    encoded = iter(tok.encode_batch(flat, add_special_tokens=False))
    out = []
    for dialogue in pieces:
        ids: list[int] = []
        labels: list[int] = []
        for _, target in dialogue:
            piece = next(encoded).ids
            ids += piece
            labels += piece if target else [IGNORE] * len(piece)
        out.append((ids, labels))
    return out


# Words that mean something to the answer's form: yes and no of booleans, types, the template's own.
FIXED = """system user assistant tool tools tool_call tool_response name arguments string integer number
boolean any true false yes no on off with without Repeat"""


class Relabel:
    """Gives some words of a dialogue other tokens, the same in the request, the tools and the call.

    A choice and a copy must not depend on which words they are made of. Drawing from all pieces of
    the vocabulary teaches that better than any list of words does.
    """

    def __init__(self, tok: Tokenizer) -> None:
        fixed = set(tok.encode(FIXED).ids)
        self.pieces = sorted(i for t, i in tok.get_vocab().items() if t.isascii() and t.isalpha() and i not in fixed)
        self.known = frozenset(self.pieces)

    def __call__(self, row: Row, rng: random.Random) -> Row:
        share = rng.choice((0.2, 0.5, 0.8))
        new = {i: rng.choice(self.pieces) for i in sorted(set(row[0]) & self.known) if rng.random() < share}
        return [new.get(i, i) for i in row[0]], [new.get(i, i) for i in row[1]]


def relabels(case: Case) -> bool:
    """Whether all that a dialogue's answers say stands in front of them, as in calls and copies."""
    return case.category == "warm up" or bool(case.tools) and all(
        m.get("tool_calls") for m in case.messages if m["role"] == "assistant")


def draw(tok: Tokenizer, grammar: Grammar, mix: Mixture, relabel: Relabel) -> list[Row]:
    """Some hundred dialogues of the mixture, in random order."""
    w = grammar.w
    cases = [grammar.warm_up() if w.chance(mix.warm_up) else grammar.drill() if w.chance(mix.drill) else grammar.dialogue()
             for _ in range(N_DRAWN)]
    rendered = [render(c.messages, c.tools, every=c.category == "drill" or w.chance(0.6)) for c in cases]
    rows = [relabel(r, grammar.rng) if relabels(c) and w.chance(mix.relabel[c.category]) else r
            for c, r in zip(cases, encode(tok, rendered), strict=True)]
    return [r for r in rows if len(r[0]) <= mix.token_max]


def stream(tok: Tokenizer, seed: int, mix: Mixture, held_out: bool = False) -> Iterator[Row]:
    """The dialogues of a seed, without end."""
    grammar, relabel = Grammar(seed, held_out), Relabel(tok)
    while True:
        yield from draw(tok, grammar, mix, relabel)


def write_samples(path: Path, rows: Iterator[Row], n_token: int) -> int:
    """A line of `input_ids` and `labels` for each row until `n_token` tokens are reached; their number.

    The file has its name only when it is whole, so a run that was stopped writes it again.
    """
    part, n = path.with_name(path.name + ".part"), 0
    with part.open("w") as out:
        while n < n_token:
            ids, labels = next(rows)
            out.write(json.dumps({"input_ids": ids, "labels": labels}, separators=(",", ":")) + "\n")
            n += len(ids)
    part.replace(path)
    return n
