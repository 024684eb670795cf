# SPDX-License-Identifier: Apache-2.0
"""Every row of common/metrics.def is produced by code, is exported, and changes when its event happens."""
import json
import os
import re
import shutil
import signal
import struct
import threading
import time

from servers import BUNDLED, MODELS, ROOT

TABLE = (ROOT / "common/metrics.def").read_text(encoding="utf-8")
ROWS = {m[2]: (m[1], m[3], (m[4] or "").replace('\\"', '"')) for m in re.finditer(
    r'^(COUNTER|TOTAL|GAUGE|HISTOGRAM)\((\w+), "([^"]+)", (?:"((?:[^"\\]|\\.)*)"|\w+), ', TABLE, re.M)}

# Rows whose events are not caused here, and the test that causes them: (file, a word in it).
ELSEWHERE = {
    "TIMEOUTS": ("tests/e2e/test_scheduling.py", "quire:requests_timed_out_total"),  # seconds of waiting
    "PUSHED_OUT": ("tests/e2e/test_scheduling.py", "quire:requests_pushed_out_total"),  # a full queue of one user
    "SLOW_CLIENTS": ("tests/e2e/test_limits.py", "quire:slow_clients_total"),  # a stream of megabytes without a reader
    "TLS_FAILED": ("tests/e2e/test_tls.py", "quire:tls_handshakes_failed_total"),  # a client that speaks no TLS
    "FRAMES_DROPPED": ("tests/unit/test_link.c", "METRIC_FRAMES_DROPPED"),  # frames of a faulty engine
    "TOKENS_DUPLICATE": ("tests/unit/test_link.c", "METRIC_TOKENS_DUPLICATE"),  # tokens that a faulty engine repeats
    "TOKENS_GAP": ("tests/unit/test_link.c", "METRIC_TOKENS_GAP"),  # tokens that a faulty engine leaves out
    "ENGINE_LOADING": ("tests/unit/test_link.c", "METRIC_ENGINE_LOADING"),  # a second engine that loads for long
    "ENGINE_STALLED": ("tests/unit/test_link.c", "METRIC_ENGINE_STALLED"),  # an engine that does not answer
    "ENGINE_BAD_FRAMES": ("tests/unit/test_proto_socket.c", "socket_n_bad"),  # frames of a faulty frontend
}


def samples(server):
    """{(name, labels of the table): value}"""
    found = {}
    for line in server.get("/metrics")[1].splitlines():
        if match := re.fullmatch(r"([^{ ]+)\{(.*)\} (\S+)", line):
            labels = re.sub(r'(model_name|engine)="[^"]*",?', "", match[2]).strip(",")
            found[match[1], labels] = float(match[3])
    return found


def key(row):
    kind, name, labels = ROWS[row]
    return (name + "_count" if kind == "HISTOGRAM" else name, labels)


class Watch:
    """Notes every value that a server's metrics have, from a thread, until it is stopped."""

    def __init__(self, server):
        self.server, self.seen, self.over = server, {}, threading.Event()
        self.look()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def look(self):
        for at, value in samples(self.server).items():
            self.seen.setdefault(at, set()).add(value)

    def run(self):
        while not self.over.wait(0.02):
            try:
                self.look()
            except OSError:  # the server has ended, after a failure of the test
                return

    def until(self, rows, act):
        """Do it until each of these rows has shown a value that is not 0."""
        deadline = time.monotonic() + 60
        while left := [row for row in rows if not any(self.seen.get(key(row), ()))]:
            assert time.monotonic() < deadline, left
            act()

    def moved(self):
        """The rows of which more than one value was seen."""
        self.over.set()
        self.thread.join()
        self.look()
        assert not [row for row in ROWS if key(row) not in self.seen], "rows that are not exported"
        return {row for row in ROWS if len(self.seen[key(row)]) > 1}


def test_the_table_is_read_whole():
    assert len(ROWS) == len(re.findall(r'^[A-Z]+\(\w+, "', TABLE, re.M)) > 75
    assert len({key(row) for row in ROWS}) == len(ROWS)


def test_every_row_is_set_by_code():
    sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "frontend").rglob("*.c"))
    assert not [row for row in ROWS if not re.search(rf"\bMETRIC_{row}\b", sources)]


def test_rows_that_change_in_other_tests():
    for row, (path, word) in ELSEWHERE.items():
        assert row in ROWS and word in (ROOT / path).read_text(encoding="utf-8"), row


def answers(server):
    """Requests that end in every way, a repeated prompt, a grammar, drafts that are accepted, and errors."""
    chat = {"messages": [{"role": "user", "content": "Who are you?"}], "temperature": 0}
    assert server.post("/v1/chat/completions", chat)[1]["choices"][0]["finish_reason"] == "stop"
    for _ in range(2):
        assert server.complete([*range(5, 45)], max_tokens=6, ignore_eos=True, n=2)["usage"]["completion_tokens"] == 12
    status, answer = server.post("/v1/chat/completions", {**chat, "structured_outputs": {"choice": ["a rather long fixed answer"]}})
    assert status == 200 and answer["choices"][0]["message"]["content"] == "a rather long fixed answer", answer
    assert server.post("/v1/completions", {"prompt": 5})[0] == 400


def leave(server, watch):
    """Clients that close their streams in the middle; the engine then aborts, and the last one meets an engine that ends. Before
    anything ends that is seen for a while only, the watcher has to have seen it."""
    def stream():  # whatever is guessed of it, it takes seconds
        events = server.events("/v1/completions", {"prompt": [[1, 2, 3 + i] for i in range(16)], "max_tokens": 1500, "ignore_eos": True})
        next(events)
        return events

    def seen(*rows):
        watch.until(rows, lambda: time.sleep(0.01))
    events = stream()
    server.wait_metric("quire:tenants", 1)
    seen("ENGINE_TENANTS", "RUNNING", "OPEN_REQUESTS", "OPEN_SEQUENCES")
    events.close()
    server.wait_metric("quire:clients_gone_total", 1)
    seen("ENGINE_ABORTED")
    events, n_line = stream(), len(server.process.lines)
    os.kill(server.children("quire-engine")[0], signal.SIGKILL)
    server.process.wait_line("link: connected to engine", start=n_line)
    server.wait_metric_above("quire:requests_resubmitted_total", 0)
    next(events)
    os.kill(server.children("quire-engine")[0], signal.SIGTERM)
    seen("ENGINE_DRAINING")
    events.close()


def under_pressure(start, mode):
    """More sequences than blocks."""
    server = start(MODELS / "llama", "--skip-tokenizer-init", "--dtype", "float32", "--max-num-seqs", "6", "--num-gpu-blocks-override", "17",
                   "--swap-space", "0.01", "--preemption-mode", mode, "--no-enable-prefix-caching", "--heartbeat-ms", "50")
    watch = Watch(server)
    rows = ["WAITING", "RUNNING", "KV_USED", "KV_USAGE", "PREEMPTIONS", "OPEN_SEQUENCES"]
    rows += ["PREEMPTIONS_SWAP", "SWAPPED", "SWAP_USED", "SWAP_USAGE"] if mode == "swap" else ["PREEMPTIONS_RECOMPUTE"]
    watch.until(rows, lambda: server.complete([[5 + 3 * i, 6, 7 + i] for i in range(8)], max_tokens=200, ignore_eos=True))
    return watch.moved()


def broken_weights(start, folder):
    """Logits that are no numbers: the request ends with an error."""
    model = shutil.copytree(MODELS / "llama", folder / "model")
    path = model / "model.safetensors"
    data = bytearray(path.read_bytes())
    n = struct.unpack_from("<Q", data)[0]
    begin, end = json.loads(data[8:8 + n])["model.norm.weight"]["data_offsets"]
    data[8 + n + begin:8 + n + end] = struct.pack("<f", float("nan")) * ((end - begin) // 4)
    path.write_bytes(data)
    server = start(model, "--skip-tokenizer-init", "--dtype", "float32", "--num-gpu-blocks-override", "64")
    watch = Watch(server)
    status, answer = server.post("/v1/completions", {"prompt": [1, 2], "max_tokens": 4})
    assert status == 500 and "failed to compute" in answer["error"]["message"], answer
    return watch.moved()


def test_every_row_is_exported_and_changes(start, tmp_path):
    server = start(BUNDLED, "--heartbeat-ms", "100", "--num-gpu-blocks-override", "256", "--speculative-config",
                   json.dumps({"method": "ngram", "num_speculative_tokens": 8, "prompt_lookup_min": 1, "prompt_lookup_max": 3}))
    watch = Watch(server)
    answers(server)
    tokens = iter(range(3, 2000))
    watch.until(["ACCEPTED_7"], lambda: server.complete([next(tokens)] * 30, max_tokens=200, ignore_eos=True, temperature=0))
    leave(server, watch)
    moved = watch.moved() | under_pressure(start, "swap") | under_pressure(start, "recompute") | broken_weights(start, tmp_path)
    # constants of a server show a value that is not 0
    moved |= {row for row in ("KV_TOTAL", "SWAP_TOTAL", "START_TIME", "RSS", "ENGINE_UP") if max(watch.seen[key(row)]) > 0}
    missing = set(ROWS) - moved - set(ELSEWHERE)
    assert not missing, sorted(missing)
