# SPDX-License-Identifier: Apache-2.0
"""Requests of many kinds to the bundled model, whose answers are always the same, and clients that ask for them again and again.

An answer is what a client can see of it: for each choice text, token ids, logprobs, tool calls and the reason of its end. Its times,
its id and how many tokens were cached are left out. A stream that ends without [DONE], that has an error event, or whose connection
breaks raises Broken with what had come."""
import http.client
import json
import random
import struct
import threading
import time

TOOL = {"type": "function", "function": {"name": "get_weather", "description": "Get the weather", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}
SCHEMA = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 40}, "count": {"type": "integer"}},
          "required": ["name", "count"], "additionalProperties": False}
CITIES = ("Oslo", "Lima", "Rome", "Paris", "Cairo", "Tokyo", "Quito", "Bern")


class Broken(Exception):
    """A stream or an answer that is not whole."""


def ask(text, **more):
    return "/v1/chat/completions", {"messages": [{"role": "user", "content": text}], **more}


def complete(text, **more):
    return "/v1/completions", {"prompt": text, "ignore_eos": True, "return_token_ids": True, **more}


def write_adapter(folder, seed=1):
    """A low-rank adapter of random numbers for the bundled model, in PEFT's format."""
    rng, header, data = random.Random(seed), {}, b""
    for layer in range(6):
        for module, n_out in (("q_proj", 256), ("v_proj", 128)):
            for name, shape in (("lora_A", [4, 256]), ("lora_B", [n_out, 4])):
                n = shape[0] * shape[1]
                begin = len(data)
                data += struct.pack(f"<{n}f", *(rng.uniform(-0.05, 0.05) for _ in range(n)))
                header[f"base_model.model.model.layers.{layer}.self_attn.{module}.{name}.weight"] = {
                    "dtype": "F32", "shape": shape, "data_offsets": [begin, len(data)]}
    text = json.dumps(header).encode()
    folder.mkdir(exist_ok=True)
    (folder / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    (folder / "adapter_config.json").write_text(json.dumps({
        "peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"], "bias": "none"}))
    return folder


def kinds(i, adapter=None):
    """The requests of client i: name, path, body. adapter: the name of one that the server has."""
    city, seed = CITIES[i % len(CITIES)], 1000 + i
    text = f"{city} is number {i} of the places where"
    yield "greedy", *complete(text, max_tokens=96, temperature=0, stream=True)
    yield "seeded", *complete(text, max_tokens=96, temperature=1, seed=seed, stream=True)
    yield "logprobs", *complete(text, max_tokens=48, temperature=1, seed=seed, logprobs=3, stream=True)
    yield "n=2", *complete(text, max_tokens=48, temperature=1, seed=seed, n=2, stream=True)
    yield "penalties", *complete(text, max_tokens=48, temperature=1, seed=seed, repetition_penalty=1.2, presence_penalty=0.5,
                                 min_p=0.02, top_k=50, logit_bias={"7": 2}, stream=True)
    yield "tools", *ask(f"What is the weather in {city}?", tools=[TOOL], tool_choice="required", temperature=0, max_tokens=64, stream=True)
    yield "grammar", *ask(f"Count the letters of {city}.", temperature=1, seed=seed, max_tokens=80, stream=True, response_format={
        "type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}})
    yield "beams", *complete(text, max_tokens=12, use_beam_search=True, n=3)
    yield "whole", *complete(text, max_tokens=64, temperature=1, seed=seed, logprobs=1)
    if adapter:
        yield "adapter", *complete(text, model=adapter, max_tokens=64, temperature=1, seed=seed, stream=True)


def fold(choices, part):
    """Add a choice of an event to what there is of it."""
    c = choices.setdefault(part["index"], {"text": "", "ids": [], "logprobs": [], "calls": {}, "finish": None})
    delta = part.get("delta") or part.get("message") or {}
    c["text"] += (part.get("text") or "") + (delta.get("content") or "")
    c["ids"] += part.get("token_ids") or []
    logprobs = part.get("logprobs")
    if logprobs:
        c["logprobs"] += [logprobs["token_logprobs"], logprobs["top_logprobs"]]
    for call in delta.get("tool_calls") or []:
        to = c["calls"].setdefault(str(call.get("index", 0)), ["", ""])
        to[0] += call["function"].get("name") or ""
        to[1] += call["function"].get("arguments") or ""
    c["finish"] = part.get("finish_reason") or c["finish"]


def joined(choices):
    """Chunks may be cut otherwise after a restart: lists of logprobs are joined."""
    for c in choices.values():
        c["logprobs"] = [[v for part in c["logprobs"][k::2] for v in part] for k in (0, 1)]
    return json.loads(json.dumps(choices, sort_keys=True))


def answer(server, path, body, tell=lambda: None):
    """The choices of one answer; tell() is called for each event."""
    choices = {}
    try:
        connection, response = server.raw("POST", path, body, timeout=180)
        if response.status != 200:
            raise Broken(f"status {response.status}: {response.read()[:300]!r}")
        if not body.get("stream"):
            for part in json.loads(response.read())["choices"]:
                fold(choices, part)
            tell()
            return joined(choices)
        done = False
        for line in response:
            if line.strip() == b"data: [DONE]":
                done = True
            elif line.startswith(b"data: "):
                event = json.loads(line[6:])
                if "error" in event:
                    raise Broken(f"an error event: {event}")
                for part in event["choices"]:
                    fold(choices, part)
                tell()
        connection.close()
    except (OSError, http.client.HTTPException, ValueError) as e:
        raise Broken(f"{type(e).__name__}: {e}") from e
    if not done:
        raise Broken("the stream ended without [DONE]")
    return joined(choices)


class Client(threading.Thread):
    """Asks its requests in a random order until `stop` is set, and compares. may_break: a broken stream is asked again."""

    def __init__(self, server, i, stop, may_break=False, adapter=None):
        super().__init__(daemon=True)
        self.server, self.stop, self.may_break = server, stop, may_break
        self.asks = list(kinds(i, adapter))
        self.rng = random.Random(i)
        self.want = {}
        self.n_answer = self.n_event = self.n_broken = 0
        self.wrong = []
        self.longest_s, self.last = 0.0, None

    def learn(self):
        """The answers of an undisturbed run."""
        for name, path, body in self.asks:
            self.want[name] = answer(self.server, path, body)

    def tell(self):
        now = time.monotonic()
        if self.last:
            self.longest_s = max(self.longest_s, now - self.last)
        self.last = now
        self.n_event += 1

    def run(self):
        while not self.stop.is_set() and len(self.wrong) < 3:
            name, path, body = self.rng.choice(self.asks)
            self.last = time.monotonic()
            try:
                got = answer(self.server, path, body, self.tell)
            except Broken as e:
                self.n_broken += 1
                if not self.may_break:
                    self.wrong.append(f"{name}: {e}")
                time.sleep(0.05)
                continue
            if got != self.want[name]:
                self.wrong.append(f"{name}: got {json.dumps(got)[:600]}, want {json.dumps(self.want[name])[:600]}")
            self.n_answer += 1
