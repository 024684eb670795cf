#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measure the bundled model on held-out dialogues, through quire itself.

    eval.py                                               # starts build/release/bin/quire serve
    eval.py --base-url http://127.0.0.1:8000/v1           # asks a server that runs already

Every dialogue is one request to /v1/chat/completions at temperature 0: the template, the tokenizer,
the engine and the tool parser are all part of what is measured. Names, words, verbs and tools come
from the half of the grammar that training never draws from. Needs only Python's standard library.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from dialogues import CATEGORIES, Case, Grammar
from scoring import parse_calls, right

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
TOOL_CATEGORIES = ("tool, invented", "tool, realistic")
KNOWN = "tool, known"                   # realistic tools of the families of training, with new values
# The tool of the newcomer's conversation, written as people write it.
GET_WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "Get the current weather in a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}


def get_json(url: str, key: str, body: dict | None = None) -> dict:
    request = urllib.request.Request(url, headers={"Content-Type": "application/json", "Authorization": "Bearer " + key},
                                     data=None if body is None else json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=300) as reply:
        return json.load(reply)


class Server:
    """One OpenAI-compatible server and the first model that it lists."""

    def __init__(self, base_url: str, key: str) -> None:
        self.base_url, self.key = base_url.rstrip("/"), key
        self.model = get_json(self.base_url + "/models", key)["data"][0]["id"]

    def ask(self, case: Case) -> tuple[str, list[dict]]:
        """What the model says and which tools it calls."""
        body: dict = {"model": self.model, "messages": case.messages, "temperature": 0, "max_tokens": 192}
        if case.tools:
            body["tools"] = case.tools
        message = get_json(self.base_url + "/chat/completions", self.key, body)["choices"][0]["message"]
        content = message.get("content") or ""
        calls = []
        for call in message.get("tool_calls") or []:
            try:
                calls.append({"name": call["function"]["name"], "arguments": json.loads(call["function"]["arguments"])})
            except ValueError:
                calls.append({"name": None, "arguments": call["function"]["arguments"]})
        return content, calls or parse_calls(content)


def check(server: Server, case: Case, show: bool) -> bool:
    try:
        content, calls = server.ask(case)
    except urllib.error.HTTPError as e:
        sys.exit(f"eval: HTTP {e.code} for {case.messages}: {e.read().decode(errors='replace')}")
    ok = right(case.expect, content, calls)
    if show and not ok:
        print(f"[{case.category}] {case.messages[-1]['content']!r}\n   wants {case.expect}\n   says {content!r} {calls}")
    return ok


def conversation(server: Server) -> list[str]:
    """The newcomer's three requests: a greeting, the weather in Oslo, the answer after the tool."""
    said = []
    content, _ = server.ask(Case("", [{"role": "user", "content": "Hello!"}]))
    said.append(f"Hello! -> {content}")
    question = {"role": "user", "content": "What is the weather in Oslo?"}
    content, calls = server.ask(Case("", [question], [GET_WEATHER]))
    said.append(f"{question['content']} -> {calls or content}")
    if calls:
        turn = {"role": "assistant", "content": None, "tool_calls": [{
            "id": "call_0", "type": "function",
            "function": {"name": calls[0]["name"], "arguments": json.dumps(calls[0]["arguments"])}}]}
        result = {"role": "tool", "tool_call_id": "call_0", "content": '{"temperature": 7, "condition": "rain"}'}
        content, _ = server.ask(Case("", [question, turn, result], [GET_WEATHER]))
        said.append(f"{result['content']} -> {content}")
    return said


@contextlib.contextmanager
def served(quire: Path, model: Path) -> Iterator[str]:
    """quire on a free port for as long as the block lasts."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    process = subprocess.Popen([quire, "serve", model, "--host", "127.0.0.1", "--port", str(port)])
    try:
        for _ in range(600):
            if process.poll() is not None:
                sys.exit(f"eval: quire serve exited with {process.returncode}")
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=5).close()
                break
            time.sleep(0.1)
        else:
            sys.exit("eval: quire serve did not become ready within a minute")
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.terminate()
        process.wait(30)


def measure(server: Server, n: int, seed: int, jobs: int, show: bool) -> dict[str, float]:
    scores: dict[str, float] = {}
    with ThreadPoolExecutor(jobs) as pool:
        for category in (*CATEGORIES, KNOWN):
            grammar = Grammar(seed, held_out=category != KNOWN)
            cases = [grammar.case("tool, realistic" if category == KNOWN else category) for _ in range(n)]
            scores[category] = sum(pool.map(lambda c: check(server, c, show), cases)) / n
            print(f"{category:16} {scores[category]:7.1%}", file=sys.stderr, flush=True)
    scores["all tool requests"] = sum(scores[c] for c in TOOL_CATEGORIES) / len(TOOL_CATEGORIES)
    return scores


def main() -> None:
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("--base-url", help="a running server, e.g. http://127.0.0.1:8000/v1")
    args.add_argument("--api-key", default="none")
    args.add_argument("--quire", type=Path, default=ROOT / "build/release/bin/quire", help="started when there is no --base-url")
    args.add_argument("--model", type=Path, default=HERE / "quire-tiny")
    args.add_argument("--n", type=int, default=200, help="dialogues per category")
    args.add_argument("--seed", type=int, default=20_000_003)
    args.add_argument("--jobs", type=int, default=8, help="requests in flight")
    args.add_argument("--json", action="store_true", help="print one JSON object")
    args.add_argument("--show", action="store_true", help="print every wrong answer")
    a = args.parse_args()
    with contextlib.nullcontext(a.base_url) if a.base_url else served(a.quire, a.model) as url:
        server = Server(url, a.api_key)
        said = conversation(server)
        scores = measure(server, a.n, a.seed, a.jobs, a.show)
    if a.json:
        print(json.dumps({"model": server.model, "n": a.n, "seed": a.seed, "scores": scores, "conversation": said}))
        return
    print(f"\n{server.model}: {a.n} held-out dialogues per category, seed {a.seed}")
    for category, score in scores.items():
        print(f"  {category:18} {score:7.1%}")
    print("\n".join("  " + line for line in said))


if __name__ == "__main__":
    main()
