# SPDX-License-Identifier: Apache-2.0
"""Keys, limits, pings, slow readers, HTTP/2."""
import concurrent.futures
import json
import resource
import socket
import subprocess
import time

import openai
import pytest

from servers import BUNDLED, HANG_S, MODELS, Http

OPTIONS = ("--skip-tokenizer-init", "--dtype", "float32", "--num-gpu-blocks-override", "256", "--heartbeat-ms", "100")
ROUTES = [("GET", "/v1/models"), ("GET", "/v1/models/x"), ("POST", "/v1/completions"), ("POST", "/v1/chat/completions"),
          ("POST", "/tokenize"), ("POST", "/detokenize"), ("GET", "/metrics"), ("GET", "/nothing"), ("POST", "/")]


def test_api_keys(start):
    server = start(MODELS / "llama", *OPTIONS, "--api-key", "alpha", "--api-key", "beta", key="beta")
    for key in (None, "alph", "alphaa", "", "gamma"):
        other = Http(server.url, key)
        for method, path in ROUTES:
            connection, answer = other.raw(method, path, {} if method == "POST" else None)
            assert answer.status == 401, (key, path)
            assert json.loads(answer.read())["error"]["code"] == "invalid_api_key"
            assert answer.headers["www-authenticate"] == "Bearer"
        for path in ("/health", "/ready", "/version"):
            assert other.get(path)[0] == 200
    for key in ("alpha", "beta"):
        assert Http(server.url, key).get("/v1/models")[0] == 200
        assert Http(server.url, key).get("/metrics")[0] == 200
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=server.url + "/v1", api_key="no", max_retries=0).models.list()


def test_key_is_checked_before_the_body(start):
    """Only heads are sent: a server that waits for the body first does not answer."""
    server = start(MODELS / "llama", *OPTIONS, "--api-key", "alpha", key="alpha")
    for name, body, extra in (("none", "Content-Length: 30000000", ""), ("wrong", "Content-Length: 30000000", "Authorization: Bearer alphaa"),
                              ("chunked", "Transfer-Encoding: chunked", "X-Api-Key: beta"),
                              ("expects", "Content-Length: 9\r\nExpect: 100-continue", "Authorization: alpha"),
                              ("public", "Content-Length: 30000000", "")):
        path = "GET /health" if name == "public" else "POST /v1/completions"
        with socket.create_connection((server.host, int(server.port)), timeout=HANG_S) as client:
            head = f"{path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n{body}\r\n{extra}"
            client.sendall(head.strip().encode() + b"\r\n\r\n")
            # What follows is no request, although it looks like one.
            client.sendall(b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n")
            said = b""
            while piece := client.recv(1 << 16):
                said += piece
        want = b"HTTP/1.1 200" if name == "public" else b"HTTP/1.1 401"
        assert said.startswith(want) and said.count(b"HTTP/1.1") == 1, (name, said)
    with socket.create_connection((server.host, int(server.port)), timeout=HANG_S) as client:
        body = b'{"prompt": [1, 2], "max_tokens": 1}'
        for part in (b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nX-Api-Key: alpha\r\n"
                     + f"Content-Length: {len(body)}\r\n\r\n".encode(), body[:9], body[9:]):
            client.sendall(part)
        assert client.recv(1 << 16).startswith(b"HTTP/1.1 200")


def test_key_from_environment_stays_out_of_ps(start):
    server = start(MODELS / "llama", *OPTIONS, "--public-metrics", env={"QUIRE_API_KEY": "secret-in-env"}, key="secret-in-env")
    assert Http(server.url).get("/v1/models")[0] == 401
    assert Http(server.url).get("/metrics")[0] == 200  # --public-metrics
    assert server.get("/v1/models")[0] == 200
    for pid in server.children("quire-frontend") + server.children("quire-engine"):
        with open(f"/proc/{pid}/cmdline", encoding="utf-8") as f:
            assert "secret-in-env" not in f.read()


def test_body_limit(start):
    server = start(MODELS / "llama", *OPTIONS, "--max-body-bytes", "10K")
    small = {"prompt": [1] * 100, "max_tokens": 1}
    assert server.post("/v1/completions", small)[0] == 200
    status, answer = server.post("/v1/completions", {"prompt": [1] * 9000, "max_tokens": 1})
    assert status == 413 and "max-body-bytes" in answer["error"]["message"]
    with socket.create_connection((server.host, int(server.port))) as s:  # chunked: no length to judge by
        s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                  b"Transfer-Encoding: chunked\r\n\r\n" + b"1000\r\n" + b" " * 4096 + b"\r\n")
        s.sendall((b"1000\r\n" + b" " * 4096 + b"\r\n") * 4)
        s.settimeout(HANG_S)
        assert b" 413 " in s.recv(4096).split(b"\r\n")[0]
    assert server.post("/v1/completions", small)[0] == 200


def test_open_request_limit(start):
    server = start(BUNDLED, *OPTIONS, "--max-open-requests", "2")
    streams = []
    for i in range(2):
        streams.append(server.raw("POST", "/v1/completions", {"prompt": [5, i + 1], "max_tokens": 1900, "ignore_eos": True, "stream": True}))
        assert streams[-1][1].status == 200
    connection, answer = server.raw("POST", "/v1/completions", {"prompt": [1], "max_tokens": 1})
    assert answer.status == 429 and int(answer.headers["retry-after"]) >= 1
    assert json.loads(answer.read())["error"]["code"] == "rate_limit_exceeded"
    assert server.get("/health")[0] == 200
    for connection, answer in streams:
        connection.close()
        answer.close()
    deadline = time.monotonic() + HANG_S
    while server.post("/v1/completions", {"prompt": [1], "max_tokens": 1})[0] != 200:
        assert time.monotonic() < deadline


def prompts(count, **fields):
    return {"prompt": [[5, i + 1] for i in range(count)], "max_tokens": 3, "ignore_eos": True, **fields}


def test_requests_of_many_choices(start):
    """What the batch and the queue have room for is accepted by an idle server, at once and again; what they never have
    room for is refused for good, with the numbers."""
    server = start(MODELS / "llama", *OPTIONS, "--max-num-queued-reqs", "2", "--max-num-seqs", "2")
    for _ in range(5):
        for body in (prompts(3), prompts(4), prompts(1, n=4), prompts(2, best_of=2), prompts(2, n=2, use_beam_search=True, temperature=0)):
            status, answer = server.post("/v1/completions", body)
            assert status == 200, answer
    for body in (prompts(5), prompts(1, n=5), prompts(1, best_of=5), prompts(3, n=2, use_beam_search=True, temperature=0)):
        status, answer = server.post("/v1/completions", body)
        said = answer["error"]["message"]
        assert status == 400 and "expected at most 4" in said and "--max-num-seqs" in said and "--max-num-queued-reqs" in said, said


def test_queue_full_is_429(start):
    """A request is refused as a whole: one whose first choice has room is answered, however little room there is."""
    server = start(MODELS / "llama", *OPTIONS, "--max-num-queued-reqs", "2", "--max-num-seqs", "2")
    assert server.raw("POST", "/pause?mode=keep")[1].read()
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        held = []
        for n, waiting in ((1, 1), (4, 4)):
            held.append(pool.submit(server.post, "/v1/completions", prompts(n)))
            server.wait_metric("vllm:num_requests_waiting", waiting)
        connection, answer = server.raw("POST", "/v1/completions", prompts(3))
        assert answer.status == 429 and int(answer.headers["retry-after"]) >= 1
        assert json.loads(answer.read())["error"]["type"] == "rate_limit_error"
        assert server.raw("POST", "/resume")[1].read()
        assert [(h.result(HANG_S)[0], len(h.result()[1]["choices"])) for h in held] == [(200, 1), (200, 4)]
    assert server.post("/v1/completions", prompts(3))[0] == 200


@pytest.mark.parametrize("option", [("--max-num-queued-tokens", "50"), ("--max-ttft", "0.000001")])
def test_prompts_do_not_refuse_each_other(start, option):
    """One prompt of a request is no reason to refuse the next one: that would be so whenever its client came again."""
    server = start(MODELS / "llama", *OPTIONS, "--max-num-seqs", "2", "--num-gpu-blocks-override", "64", *option)
    assert server.post("/v1/completions", {"prompt": [[7] * 30] * 2, "max_tokens": 1})[0] == 200
    status, answer = server.post("/v1/completions", {"prompt": [[i] * 30 for i in range(1, 9)], "max_tokens": 2, "ignore_eos": True})
    assert status == 200 and [c["index"] for c in answer["choices"]] == list(range(8)), answer
    assert answer["usage"]["completion_tokens"] == 16


def test_reader_that_does_not_read(start):
    """Its stream is given up when the buffer is full; others and memory are not harmed."""
    server = start(MODELS / "llama", *OPTIONS)
    body = json.dumps({"prompt": [[5, i + 1] for i in range(32)], "max_tokens": 250, "ignore_eos": True, "stream": True, "n": 4,
                       "logprobs": 20, "temperature": 1}).encode()
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.connect((server.host, int(server.port)))
    sock.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                 b"Content-Length: %d\r\n\r\n" % len(body) + body)
    server.wait_metric("quire:slow_clients_total", 1)
    server.wait_metric("quire:kv_blocks_used", 0)
    sock.close()
    assert server.post("/v1/completions", {"prompt": [1], "max_tokens": 1})[0] == 200


def test_http2(bundled):
    """Cleartext HTTP/2 with prior knowledge, where curl can."""
    version = subprocess.run(["curl", "--version"], capture_output=True, text=True)
    if version.returncode or "HTTP2" not in version.stdout:
        pytest.skip("no curl with HTTP/2")
    body = json.dumps({"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 5, "stream": True})
    out = subprocess.run(["curl", "-sN", "--http2-prior-knowledge", "-w", "%{http_version}", "-H", "content-type: application/json",
                          "-d", body, bundled.url + "/v1/chat/completions"], capture_output=True, text=True, timeout=HANG_S)
    assert out.stdout.endswith("data: [DONE]\n\n2"), out.stdout


def test_keep_alive_and_pipelining(bundled):
    with socket.create_connection((bundled.host, int(bundled.port))) as s:
        s.settimeout(HANG_S)
        s.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n" * 3)
        data = b""
        while data.count(b'{"status":"ok"}') < 3:
            data += s.recv(4096)


def test_many_connections(bundled):
    """More than the usual soft limit on descriptors; idle ones do not keep others out."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 4096:
        pytest.skip(f"this machine allows only {hard} descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, hard))
    idle = []
    try:
        for _ in range(1500):
            idle.append(socket.create_connection((bundled.host, int(bundled.port))))
        assert bundled.get("/health")[0] == 200
        for s in idle[::100] + idle[-1:]:
            s.settimeout(HANG_S)
            s.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            assert b"200 OK" in s.recv(4096)
    finally:
        for s in idle:
            s.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_broken_http(bundled):
    for raw in (b"\x00\x01\x02\r\n\r\n", b"GET\r\n\r\n", b"POST /v1/completions HTTP/1.1\r\nContent-Length: x\r\n\r\n"):
        with socket.create_connection((bundled.host, int(bundled.port))) as s:
            s.settimeout(HANG_S)
            s.sendall(raw)
            s.shutdown(socket.SHUT_WR)
            while s.recv(4096):
                pass
    assert bundled.get("/health")[0] == 200


def test_ready_says_what_is_missing(run):
    address = "ipc:///tmp/quire-test-nobody-there"
    frontend = run("quire-frontend", BUNDLED, "--engine", address, "--port", "0", "--engine-timeout", "1")
    server = Http(frontend.wait_line(r"listening on (http://\S+)")[1])
    deadline = time.monotonic() + HANG_S
    while "waiting for the engine" not in server.get("/ready")[1]:
        assert time.monotonic() < deadline
    assert server.get("/ready")[0] == 503 and server.get("/health")[0] == 200
    assert server.get("/v1/models")[0] == 200
    status, answer = server.post("/v1/completions", {"prompt": "x"})
    assert status == 503 and address in answer["error"]["message"]


def waiting(server, prompts):
    """Requests that wait for the end of a pause; their answers."""
    import concurrent.futures
    pool = concurrent.futures.ThreadPoolExecutor(len(prompts))
    found = []
    for i, prompt in enumerate(prompts):
        found.append(pool.submit(server.post, "/v1/completions", {"prompt": prompt, "max_tokens": 1, "ignore_eos": True}))
        server.wait_metric("vllm:num_requests_waiting", i + 1)
    return found


def test_queued_tokens_are_limited(start):
    server = start(MODELS / "llama", *OPTIONS, "--num-gpu-blocks-override", "64", "--max-num-queued-tokens", "50")
    assert server.raw("POST", "/pause?mode=keep")[1].read()
    held = waiting(server, [[5] * 20, [6] * 20])
    connection, answer = server.raw("POST", "/v1/completions", {"prompt": [7] * 20, "max_tokens": 1})
    assert answer.status == 429 and int(answer.headers["retry-after"]) >= 1
    assert "2 waiting requests of 40 tokens" in answer.read().decode()
    assert server.raw("POST", "/resume")[1].read()
    assert [h.result(HANG_S)[0] for h in held] == [200, 200]
    assert server.post("/v1/completions", {"prompt": [7] * 60, "max_tokens": 1})[0] == 200  # alone, it may have more


def test_predicted_time_to_first_token(start, large):
    """What is ahead takes longer than --max-ttft, by the costs of earlier steps: 429, and when it will be less."""
    server = start(large, "--load-format", "dummy", *OPTIONS, "--num-gpu-blocks-override", "512", "--max-ttft", "0.02",
                   "--no-enable-prefix-caching")
    assert server.post("/v1/completions", {"prompt": [7] * 600, "max_tokens": 1})[0] == 200  # nothing is ahead of it
    assert server.raw("POST", "/pause?mode=keep")[1].read()
    held = waiting(server, [[5] * 3000])
    connection, answer = server.raw("POST", "/v1/completions", {"prompt": [7] * 20, "max_tokens": 1})
    text = answer.read().decode()
    assert answer.status == 429 and "--max-ttft" in text and int(answer.headers["retry-after"]) >= 1, text
    assert server.raw("POST", "/resume")[1].read()
    assert held[0].result(120)[0] == 200
    assert server.post("/v1/completions", {"prompt": [7] * 20, "max_tokens": 1})[0] == 200


LONG_TEXT = "many words " * 30000  # more bytes than the longest tokens of 2048 positions have


@pytest.mark.parametrize("path, body", [
    ("/v1/completions", {"prompt": LONG_TEXT}), ("/v1/completions", {"prompt": ["few", LONG_TEXT], "stream": True}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": LONG_TEXT}]})], ids=["text", "second", "chat"])
def test_prompts_that_cannot_fit_are_not_encoded(bundled, path, body):
    """By their bytes alone, with the words of any prompt that is too long."""
    status, answer = bundled.post(path, {**body, "max_tokens": 1})
    error = answer["error"]
    assert status == 400 and error["code"] == "context_length_exceeded" and error["param"] == ("messages" if "chat" in path else "prompt")
    assert "This model's maximum context length is 2048 tokens. However, you requested at least " in error["message"], error
    if "chat" not in path:  # a template adds bytes
        assert "(330000 bytes in the prompt)" in error["message"], error


def test_long_texts_that_are_encoded(bundled):
    """Those that are to be cut, and those that are to be counted."""
    status, answer = bundled.post("/v1/completions", {"prompt": LONG_TEXT, "truncate_prompt_tokens": 100, "max_tokens": 1})
    assert status == 200 and answer["usage"]["prompt_tokens"] == 100
    status, answer = bundled.post("/tokenize", {"prompt": LONG_TEXT})
    assert status == 200 and answer["count"] > 2048 == answer["max_model_len"]
    status, answer = bundled.post("/tokenize", {"prompt": LONG_TEXT * 24})
    assert status == 400 and "7920000 bytes are more than 16 times" in answer["error"]["message"] and answer["error"]["param"] == "prompt"


def test_texts_that_cannot_be_embedded_are_not_encoded(start):
    server = start(BUNDLED, "--runner", "pooling", "--num-gpu-blocks-override", "256")
    status, answer = server.post("/v1/embeddings", {"input": ["few", LONG_TEXT]})
    assert status == 400 and answer["error"]["code"] == "context_length_exceeded"
    assert "but text 1 has at least " in answer["error"]["message"] and "(330000 bytes)" in answer["error"]["message"]
    assert server.post("/v1/embeddings", {"input": LONG_TEXT, "truncate_prompt_tokens": -1})[0] == 200


def test_answers_that_are_too_large_are_refused_first(start):
    server = start(BUNDLED, "--max-answer-bytes", "1M", "--num-gpu-blocks-override", "1024")
    large = {"prompt": "a", "n": 8, "max_tokens": 2000, "logprobs": 5, "ignore_eos": True}
    status, answer = server.post("/v1/completions", large)
    assert status == 400 and answer["error"]["param"] == "n", answer
    for part in ("8 choices", "2000 tokens", "688 bytes each", "1048576 bytes of --max-answer-bytes"):  # 16 + 6 * 112
        assert part in answer["error"]["message"], answer
    status, answer = server.post("/v1/completions", {**large, "n": 1, "max_tokens": 1600})
    assert status == 400 and answer["error"]["param"] == "max_tokens", answer
    for few in ({"n": 2, "max_tokens": 100}, {"n": 1, "max_tokens": 700}, {"n": 8, "logprobs": None, "max_tokens": 200}):
        assert server.post("/v1/completions", {**large, **few})[0] == 200, few
    assert sum(len(e["choices"]) for e in server.events("/v1/completions", {**large, "max_tokens": 200})) >= 8 * 200 / 4
    ids = [5] * 1500
    for stream in (False, True):  # what is repeated comes at once
        status, answer = server.post("/v1/completions", {"prompt": ids, "echo": True, "logprobs": 20, "max_tokens": 1, "stream": stream})
        assert status == 400 and answer["error"]["param"] == "echo" and "and the prompt's" in answer["error"]["message"], answer
    assert server.post("/v1/completions", {"prompt": ids, "echo": True, "logprobs": 3, "max_tokens": 1})[0] == 200
    # one that was not asked for is what fits: 1 MiB / 8 choices / 688 bytes
    chat = {"messages": [{"role": "user", "content": "hi"}], "n": 8, "logprobs": True, "top_logprobs": 5, "ignore_eos": True}
    status, answer = server.post("/v1/chat/completions", chat)
    assert status == 200 and answer["usage"]["completion_tokens"] == 8 * 190
    assert {c["finish_reason"] for c in answer["choices"]} == {"length"}
