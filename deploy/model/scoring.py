# SPDX-License-Identifier: Apache-2.0
"""When an answer is right. Shared by make.py (its own check) and eval.py (through quire). Stdlib only."""

from __future__ import annotations

import json
import re

TOOL_CALL = re.compile(r"<tool_call>\s*(.*?)\s*</tool_call>", re.S)


def parse_calls(text: str) -> list[dict]:
    """The tool calls in raw model output; what is not JSON counts as a call of nothing."""
    calls = []
    for body in TOOL_CALL.findall(text):
        try:
            call = json.loads(body)
            calls.append({"name": call["name"], "arguments": call["arguments"]})
        except (ValueError, KeyError, TypeError):
            calls.append({"name": None, "arguments": body})
    return calls


def same_json(a: object, b: object) -> bool:
    """Equal with types: 1 is not "1" and not true, 1 is 1.0."""
    if isinstance(a, bool) != isinstance(b, bool):
        return False
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same_json(a[k], b[k]) for k in a)
    return a == b


def right(expect: dict, content: str, calls: list[dict]) -> bool:
    """`expect` is one of: call (exactly this one), exact (this text), holds (all these strings)."""
    if "call" in expect:
        return (len(calls) == 1 and calls[0]["name"] == expect["call"]["name"]
                and same_json(calls[0]["arguments"], expect["call"]["arguments"]))
    if calls:
        return False
    if "exact" in expect:
        return content.strip() == expect["exact"]
    return all(s in content for s in expect["holds"])
