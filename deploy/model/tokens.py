# SPDX-License-Identifier: Apache-2.0
"""The tokenizer and the chat template of the bundled model.

Words carry no leading space and the quotes, colons and brackets between two JSON strings are one
piece, so that `Oslo` is the same tokens in `in Oslo?` and in `"city": "Oslo"`. Copying, which is
what this model is for, then is repeating tokens instead of learning two spellings of each word.
"""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

END_OF_TEXT, IM_START, IM_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SPECIAL = [END_OF_TEXT, IM_START, IM_END]
VOCAB_SIZE = 2560
# In order: a word in one case, an upper-case run, other letters, one digit, the glue between JSON
# strings, line ends, other white space, other characters up to a quote.
SPLIT = (r'\p{Lu}?\p{Ll}+|\p{Lu}+(?!\p{Ll})|[\p{L}\p{M}]+|\p{N}|(?:[,}\]] |[{\[ ])?"[\s:,{}\[\]"]*'
         r'|[\r\n]+|[^\S\r\n]+|[^\p{L}\p{M}\p{N}\s"]+')
TEMPLATE = (Path(__file__).parent / "template.jinja").read_text()


def train_tokenizer(texts: list[str]) -> Tokenizer:
    tok = Tokenizer(models.BPE())
    tok.normalizer = normalizers.NFC()
    tok.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tok.decoder = decoders.ByteLevel()
    tok.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE, special_tokens=SPECIAL, show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return tok


def tool_lines(tool: dict) -> str:
    """A tool in the template's list: what it is for, then its call with types in place of values.

    A call is then a copy of the second line but for the values, and what picks it, the name and the
    description, stands in front of it.
    """
    f = tool.get("function", tool)
    parameters = f.get("parameters") or {}
    shown = {}
    for name, p in (parameters.get("properties") or {}).items():
        if "enum" in p:
            shown[name] = p["enum"]
        elif p.get("description"):
            shown[name] = p.get("type", "any") + ": " + p["description"]
        else:
            shown[name] = p.get("type", "any")
    head = f["name"] + (": " + f["description"] if f.get("description") else "")
    return head + "\n" + json.dumps({"name": f["name"], "arguments": shown}, ensure_ascii=False)


def render(messages: list[dict], tools: list[dict], every: bool = False) -> list[tuple[str, bool]]:
    """What template.jinja makes of a dialogue, as pieces; True marks what the assistant is to learn to say.

    The twin of the template, for speed; make.py checks on samples that both agree. With `every` the
    tools stand behind each user message instead of the last one, so that one dialogue teaches
    several calls; without it earlier calls are history and no targets.
    """
    out: list[tuple[str, bool]] = []
    users = [i for i, m in enumerate(messages) if m["role"] == "user"]
    last = users[-1] if users else -1
    listed = f"{IM_START}system\n<tools>\n" + "\n".join(tool_lines(t) for t in tools) + f"\n</tools>{IM_END}\n"
    if tools and not users:
        out.append((listed, False))
    for i, m in enumerate(messages):
        text = m.get("content") or ""
        if m["role"] == "tool":
            text = f"<tool_response>\n{text}\n</tool_response>"
        for c in m.get("tool_calls") or []:
            f = c["function"]
            text += "\n" if text else ""
            text += f'<tool_call>\n{{"name": {json.dumps(f["name"])}, "arguments": {f["arguments"]}}}\n</tool_call>'
        out.append((f"{IM_START}{m['role']}\n", False))
        blind = bool(m.get("tool_calls")) and i < last and not every
        out.append((text + IM_END, m["role"] == "assistant" and not blind))
        out.append(("\n", False))
        if tools and m["role"] == "user" and (every or i == last):
            out.append((listed, False))
    return out
