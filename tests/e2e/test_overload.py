# SPDX-License-Identifier: Apache-2.0
"""Clients that hold what others need: slots, connections, memory. Whatever they do, other clients are served."""
import gzip
import json
import pathlib
import socket
import struct
import time

import pytest

from http2_frames import DATA, ENHANCE_YOUR_CALM, HEADERS, REFUSED_STREAM, RST_STREAM, Http2
from servers import BUNDLED, HANG_S, MODELS, Http

# One thread: on a machine that is busy with other things two of them mostly wait for each other.
OPTIONS = ("--skip-tokenizer-init", "--dtype", "float32", "--num-gpu-blocks-override", "256", "--heartbeat-ms", "100", "--threads", "1")
ONE = {"prompt": [1, 2], "max_tokens": 1}
LONG = {"max_tokens": 1900, "ignore_eos": True, "stream": True}  # of the bundled model: it takes seconds
JSON = ("content-type", "application/json")


def status_of(payload):
    """Of the block of headers in a HEADERS frame: an index of the static table (RFC 7541, appendix A), or a literal."""
    known = {8: 200, 9: 204, 10: 206, 11: 304, 12: 400, 13: 404, 14: 500}
    if payload[0] & 0x80:
        return known[payload[0] & 0x7F]
    return int(payload[2:2 + (payload[1] & 0x7F)]) if not payload[1] & 0x80 else None


def post(path, body, *headers):
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n"
    return head.encode() + b"".join(h.encode() + b"\r\n" for h in headers) + b"\r\n" + data


def connect(server, timeout=HANG_S):
    return socket.create_connection((server.host, int(server.port)), timeout=timeout)


def read_all(s):
    said = b""
    try:
        while piece := s.recv(1 << 16):
            said += piece
    except ConnectionResetError:
        pass
    return said


def answered(server, key=None):
    assert Http(server.url).get("/health")[0] == 200
    for _ in range(3):
        assert server.post("/v1/completions", ONE)[0] == 200
    assert server.get("/metrics")[0] == 200


def test_refusals_hold_no_slots(start):
    """Windows of 0: no answer can be sent. The requests have no key, so they must not count as open."""
    server = start(MODELS / "llama", *OPTIONS, "--api-key", "alpha", "--max-open-requests", "64", key="alpha")
    attackers = [Http2(server.host, server.port, window=0) for _ in range(3)]
    for a in attackers:
        for _ in range(60):
            last = a.request("POST", "/v1/completions", [JSON, ("authorization", "Bearer no")], b"{}")
        assert a.wait_frame(HEADERS, last) is not None  # the server has answered all of them
    assert server.metric("quire:open_requests") == 0
    answered(server)
    for a in attackers:
        a.close()


def test_unread_answers_hold_no_slots(start):
    """With a key: what is computed and not read does not keep others out."""
    server = start(MODELS / "llama", *OPTIONS, "--max-open-requests", "8")
    attacker = Http2(server.host, server.port, window=0)
    for _ in range(40):
        last = attacker.request("POST", "/v1/completions", [JSON], json.dumps(ONE).encode())
        assert attacker.wait_frame(HEADERS, last) is not None
    answered(server)
    attacker.close()


@pytest.mark.parametrize("http", (1, 2))
def test_answers_have_a_write_timeout(start, http):
    server = start(MODELS / "llama", *OPTIONS, "--write-timeout", "2")
    big = {"prompt": [[5, i + 1] for i in range(32)], "max_tokens": 60, "ignore_eos": True, "logprobs": 20, "n": 4, "temperature": 1}
    if http == 2:
        attacker = Http2(server.host, server.port, window=0, timeout=HANG_S)
        attacker.request("GET", "/health")
        while attacker.next_frame():
            pass  # until the server closes
    else:
        attacker = socket.socket()
        attacker.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        attacker.connect((server.host, int(server.port)))
        attacker.sendall(post("/v1/completions", big))
    server.wait_metric("quire:slow_clients_total", 1)
    attacker.close()
    # One that reads slowly, but reads, gets all of it: also where it takes less than the kernel has room for (megabytes).
    reader = socket.socket()
    reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
    reader.connect((server.host, int(server.port)))
    reader.settimeout(HANG_S)
    reader.sendall(post("/v1/completions", big, "Connection: close"))
    said = b""
    for n in range(1, 25):
        while len(said) < n << 16:
            said += reader.recv((n << 16) - len(said))
        time.sleep(0.25)
    said += read_all(reader)
    begin, body = said.split(b"\r\n\r\n", 1)
    assert int(begin.lower().split(b"content-length: ")[1].split(b"\r\n")[0]) == len(body)
    assert len(json.loads(body)["choices"]) == 128


def test_health_and_metrics_of_a_full_server(start):
    server = start(BUNDLED, *OPTIONS, "--max-open-requests", "1")
    connection, answer = server.raw("POST", "/v1/completions", {"prompt": [5, 7, 9], **LONG})
    assert answer.status == 200
    assert server.post("/v1/completions", ONE)[0] == 429
    assert server.get("/metrics")[0] == 200 and server.get("/ready")[0] == 200
    connection.close()
    answer.close()


def test_a_key_leaves_room_for_others(start, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("alpha\nbeta\n")
    keys.chmod(0o600)
    server = start(BUNDLED, *OPTIONS, "--num-gpu-blocks-override", "1024", "--api-key-file", keys, "--max-open-requests", "8", key="beta")
    alpha = Http(server.url, "alpha")
    streams = [alpha.raw("POST", "/v1/completions", {"prompt": [5, i + 1], **LONG}) for i in range(6)]
    assert all(answer.status == 200 for _, answer in streams)
    status, answer = alpha.post("/v1/completions", ONE)
    assert status == 429 and "this API key" in answer["error"]["message"]
    assert server.post("/v1/completions", ONE)[0] == 200
    for connection, answer in streams:
        connection.close()
        answer.close()


def test_connections_are_limited(start):
    server = start(MODELS / "llama", *OPTIONS, "--max-connections", "12", "--max-connections-per-address", "8")
    held = [connect(server) for _ in range(8)]
    held[0].sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
    assert held[0].recv(4096).startswith(b"HTTP/1.1 200")
    with connect(server) as refused:
        said = read_all(refused)
    assert said.startswith(b"HTTP/1.1 503 ") and b"--max-connections-per-address" in said and b"Retry-After: 1" in said
    assert json.loads(said.split(b"\r\n\r\n", 1)[1])["error"]["type"] == "service_unavailable_error"
    others = []
    for i in range(5):  # another address of this machine
        s = socket.socket()
        s.bind((f"127.0.0.{i + 2}", 0))
        s.settimeout(HANG_S)
        s.connect((server.host, int(server.port)))
        s.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        said = s.recv(4096)
        others.append(s)
        if i < 4:
            assert said.startswith(b"HTTP/1.1 200"), i
    assert said.startswith(b"HTTP/1.1 503 ") and b"(--max-connections)" in said
    for s in held + others:
        s.close()
    deadline = time.monotonic() + HANG_S
    while True:
        with connect(server) as s:
            s.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            if read_all(s).startswith(b"HTTP/1.1 200"):
                break
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_http2_key_is_checked_before_the_body(start):
    server = start(MODELS / "llama", *OPTIONS, "--api-key", "alpha", key="alpha")
    for key, small in ((None, 401), ("no", 401), ("alpha", 200)):
        headers = [JSON] + ([("authorization", f"Bearer {key}")] if key else [])
        c = Http2(server.host, server.port)
        stream = c.request("POST", "/v1/completions", headers, json.dumps(ONE).encode())
        assert status_of(c.wait_frame(HEADERS, stream)) == small
        stream = c.request("POST", "/v1/completions", headers, b" " * 100000, end=False)
        if key == "alpha":
            server.wait_read(c.socket)
            c.data(stream, json.dumps(ONE).encode(), end=True)
            assert status_of(c.wait_frame(HEADERS, stream)) == 200
        else:
            assert struct.unpack(">I", c.wait_frame(RST_STREAM, stream))[0] == ENHANCE_YOUR_CALM
        stream = c.request("GET", "/health")  # the connection goes on
        assert status_of(c.wait_frame(HEADERS, stream)) == 200
        c.close()


def rss_kib(server):
    pid, = server.children("quire-frontend")
    with open(f"/proc/{pid}/status", encoding="utf-8") as f:
        return int(next(line for line in f if line.startswith("VmRSS")).split()[1])


def test_bodies_are_limited_together(start):
    """Bodies that never end, over HTTP/1, chunked, over HTTP/2 and compressed: what is too much is refused, the rest is served."""
    server = start(MODELS / "llama", *OPTIONS, "--max-body-bytes", "4M", "--max-total-body-bytes", "6M")
    before = rss_kib(server)
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nX-Request-Id: mine\r\n"
    first = connect(server)
    first.sendall(head + b"Content-Length: 3000000\r\n\r\n" + b" " * 2900000)
    second = connect(server)
    second.sendall(head + b"Transfer-Encoding: chunked\r\n\r\n" + (b"10000\r\n" + b" " * 65536 + b"\r\n") * 40)
    server.wait_read(first, second)
    refused = []
    for coding in (b"Content-Length: 3000000\r\n\r\n" + b" " * 2000000,
                   b"Transfer-Encoding: chunked\r\n\r\n" + (b"10000\r\n" + b" " * 65536 + b"\r\n") * 30):
        s = connect(server)
        s.sendall(head + coding)
        refused.append(read_all(s))
        s.close()
    for said in refused:
        assert said.startswith(b"HTTP/1.1 429 ") and b"--max-total-body-bytes" in said and b"X-Request-Id: mine" in said, said
    c = Http2(server.host, server.port)
    stream = c.request("POST", "/v1/completions", [JSON], b" " * 2000000, end=False)
    assert struct.unpack(">I", c.wait_frame(RST_STREAM, stream))[0] == REFUSED_STREAM
    packed = gzip.compress(json.dumps(ONE).encode() + b" " * 3900000)
    status, answer = server.post("/v1/completions", packed, headers={"Content-Encoding": "gzip"})
    assert status == 429 and "--max-total-body-bytes" in answer["error"]["message"]
    assert rss_kib(server) - before < 40 * 1024
    answered(server)  # small ones pass
    first.sendall(b" " * 100000)
    assert first.recv(4096).startswith(b"HTTP/1.1 400 ")  # no JSON in it
    first.close()
    second.close()
    deadline = time.monotonic() + HANG_S
    while server.post("/v1/completions", packed, headers={"Content-Encoding": "gzip"})[0] != 200:
        assert time.monotonic() < deadline
    stream = c.request("POST", "/v1/completions", [JSON], json.dumps(ONE).encode() + b" " * 2000000)
    assert status_of(c.wait_frame(HEADERS, stream)) == 200
    assert c.wait_frame(DATA, stream)
    c.close()


@pytest.mark.parametrize("end", (False, True))
def test_small_http2_bodies_without_a_key(start, end):
    """Many bodies below the size at which the key is looked at: incomplete, or complete with a window of 0 for the answer."""
    server = start(MODELS / "llama", *OPTIONS, "--api-key", "alpha", "--max-body-bytes", "4M", "--max-total-body-bytes", "4M", key="alpha")
    before = rss_kib(server)
    attackers = [Http2(server.host, server.port, window=0) for _ in range(26)]
    for a in attackers:
        a.socket.settimeout(HANG_S)
        for _ in range(90):
            stream = a.request("POST", "/v1/completions", [JSON], b" " * 60000, end=end)
        if end:
            assert a.wait_frame(HEADERS, stream) is not None
    assert rss_kib(server) - before < 64 * 1024  # of 140 MB; the number of connections does not matter
    if not end:  # the first one is ended as soon as there are too many; the last ones may be few enough again
        assert struct.unpack(">I", attackers[0].wait_frame(RST_STREAM, 1))[0] == ENHANCE_YOUR_CALM
    answered(server)
    assert server.post("/v1/completions", json.dumps(ONE).encode() + b" " * 100000)[0] == 200  # a large one with a key
    for a in attackers:
        a.close()


def test_total_of_bodies_below_one(run):
    from servers import BIN
    process = run(BIN / "quire", "serve", MODELS / "llama", "--port", "0", "--max-body-bytes", "4M", "--max-total-body-bytes", "1M")
    assert process.exit_code() == 2
    assert "--max-total-body-bytes is 1048576" in process.log()


@pytest.mark.parametrize("stream", (False, True))
def test_half_closed_clients_are_served(start, stream):
    server = start(BUNDLED, *OPTIONS, "--num-gpu-blocks-override", "1024")
    with connect(server) as s:
        s.sendall(post("/v1/completions", {"prompt": [5, 7, 9], **LONG, "max_tokens": 250, "stream": stream}))
        s.shutdown(socket.SHUT_WR)
        said = read_all(s)
    assert b"HTTP/1.1 200 OK" in said
    if stream:
        assert b"data: [DONE]\n\n" in said and said.endswith(b"\r\n0\r\n\r\n")
    else:
        body = said.split(b"HTTP/1.1 200 OK", 1)[1].split(b"\r\n\r\n", 1)[1]
        assert json.loads(body)["usage"]["completion_tokens"] == 250
    # One that has gone wholly is noticed at once.
    s = connect(server)
    s.sendall(post("/v1/completions", {"prompt": [[5, i + 1] for i in range(8)], **LONG, "stream": stream}))
    server.wait_metric("vllm:num_requests_running", 8)
    s.close()
    server.wait_metric("quire:clients_gone_total", 1)
    server.wait_metric("quire:kv_blocks_used", 0)


def test_long_bodies_are_read_at_a_low_priority(start):
    """By a thread whose nice value is above that of the loop, which keeps its own."""
    server = start(MODELS / "llama", *OPTIONS)
    frontend, = server.children("quire-frontend")

    def nices():
        stat = {int(t.name): (t / "stat").read_text() for t in pathlib.Path(f"/proc/{frontend}/task").iterdir()}
        return {thread: int(text.rsplit(")", 1)[1].split()[16]) for thread, text in stat.items()}

    own = nices()[frontend]
    low = min(own + 10, 19)
    assert low not in nices().values() or low == own
    assert server.post("/v1/completions", {**ONE, "user": "u" * 100000})[0] == 200
    assert low in nices().values()
    assert nices()[frontend] == own
