# SPDX-License-Identifier: Apache-2.0
"""HTTP itself: framing that others may read differently, bodies beyond the limit, packed bodies, pages of other origins."""
import concurrent.futures
import gzip
import json
import random
import socket
import zlib

import httpx2
import pytest

from servers import MODELS, Http

OPTIONS = ("--skip-tokenizer-init", "--dtype", "float32", "--num-gpu-blocks-override", "256")
BODY = json.dumps({"prompt": [1], "max_tokens": 1}).encode()
JSON = b"Host: x\r\nContent-Type: application/json\r\n"
HEALTH = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"


def completion(head, body=BODY):
    return b"POST /v1/completions HTTP/1.1\r\n" + JSON + head + b"\r\n" + body


def length(n=len(BODY)):
    return b"Content-Length: %d\r\n" % n


class Answers:
    """What comes back on one connection, an answer after the other."""

    def __init__(self, s):
        self.s, self.got = s, b""

    def more(self):
        piece = self.s.recv(1 << 16)
        assert piece, f"closed after {self.got!r}"
        self.got += piece

    def next(self):
        """(status, headers, body)"""
        while b"\r\n\r\n" not in self.got:
            self.more()
        head, _, self.got = self.got.partition(b"\r\n\r\n")
        lines = head.decode().split("\r\n")
        headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines[1:])}
        n = int(headers.get("content-length", 0))
        while len(self.got) < n:
            self.more()
        body, self.got = self.got[:n], self.got[n:]
        return int(lines[0].split()[1]), headers, body


LONG = 417792  # bytes of a head, and
MANY = 100  # headers, that h2o takes


def head_of(n_byte=0, n_field=2):
    """A request of at least so many bytes and of just so many headers, Host among them."""
    lines = [b"GET /health HTTP/1.1", b"Host: x", *(b"X-%d: y" % i for i in range(n_field - 2)), b"Y: "]
    rest = n_byte - len(b"\r\n".join(lines)) - 4
    return b"\r\n".join(lines) + b"y" * max(rest, 1) + b"\r\n\r\n"


@pytest.mark.parametrize("piece", [1 << 30, 65536, 1000])
@pytest.mark.parametrize("request_bytes, status, words", [
    (head_of(LONG), 200, b""), (head_of(n_field=MANY), 200, b""),
    (head_of(LONG + 1), 431, b"exceed 408 KiB"), (head_of(3 * LONG), 431, b"exceed 408 KiB"),
    (head_of(LONG + 9)[:-4], 431, b"exceed 408 KiB"),  # and never ends
    (b"GET /" + b"x" * LONG, 431, b"exceed 408 KiB"),
    (head_of(n_field=MANY + 1), 431, b"more than 100 headers"), (head_of(n_field=5 * MANY), 431, b"more than 100 headers"),
    (head_of(n_field=2 * MANY)[:-4], 431, b"more than 100 headers"),
    (HEALTH + head_of(LONG + 1), 431, b"exceed 408 KiB"),  # behind another on the same connection
])
def test_a_head_that_is_too_large_is_answered(wide, request_bytes, status, words, piece):
    with connect(wide) as s:
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for at in range(0, len(request_bytes), piece):
            s.sendall(request_bytes[at:at + piece])
        answers = Answers(s)
        got, headers, body = answers.next()
        if request_bytes.startswith(HEALTH):
            assert got == 200
            got, headers, body = answers.next()
        assert got == status and words in body
        if status == 431:
            assert headers["connection"] == "close" and not s.recv(1)
            error = json.loads(body)["error"]
            assert error["type"] == "invalid_request_error" and error["code"] == "request_too_large"
    assert wide.get("/health")[0] == 200


def talk(server, *pieces):
    """The statuses of all answers, until the server closes or as many are there as requests."""
    n = b"".join(pieces).count(b" HTTP/1.")
    with connect(server) as s:
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for piece in pieces:
            s.sendall(piece)
        answers, found = Answers(s), []
        while len(found) < n:
            status, headers, _ = answers.next()
            found.append(status)
            if headers["connection"] == "close":
                assert not answers.got and not s.recv(1)
                break
    return found


def exchange(s, request):
    """One request on an open connection, and its answer."""
    s.sendall(request)
    answers = Answers(s)
    answer = answers.next()
    assert not answers.got
    return answer


def connect(server):
    return socket.create_connection((server.host, int(server.port)), timeout=20)


@pytest.mark.parametrize("request_bytes, words", [
    (b"GET /health HTTP/1.1\r\n\r\n", b"requires the header Host"),
    (b"GET /health HTTP/1.1\r\nHost: x\r\nhost: y\r\n\r\n", b"more than one Host"),
    (completion(length() + length(len(BODY) + 9)), b"two different Content-Length"),
    (completion(length(10**6) + length()), b"two different Content-Length"),  # at once, without the rest of the longer one
    (completion(b"Content-Length: 5\r\nX: y\r\ncontent-length : 7\r\n"), b"is malformed"),
    (completion(length() + b"Transfer-Encoding: chunked\r\n"), b"exclude each other"),
    (completion(b"Transfer-Encoding: chunked\r\n" + length(3), b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)), b"exclude each other"),
    (completion(b"Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n", b"0\r\n\r\n"), b"more than one Transfer-Encoding"),
    (completion(length() + b"X: a\r\n Content-Length: 7\r\n"), b"starts with a space"),
    (b"hello\r\n\r\n", b"is malformed"), (b"GET /health\r\n\r\n", b"is malformed"), (b"\x16\x03\x01\x02\x00\x01\x00", b"is malformed"),
    (b"GET /health HTTP/1.1\r\nno colon\r\n\r\n", b"is malformed"), (b"GET /health HTTP/1.1\r\nHost : x\r\n\r\n", b"is malformed"),
    (HEALTH.replace(b"x", b"a b"), b"not a host name"), (HEALTH.replace(b"x", b"a/b"), b"not a host name"), (HEALTH.replace(b"x", b"u@b"), b"not a host name"),
    (b"POST /v1/completions HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", b"HTTP/1.0 does not support"),
])
def test_ambiguous_framing_is_refused_and_the_connection_closed(wide, request_bytes, words):
    with connect(wide) as s:
        s.sendall(request_bytes)
        got = b""
        while more := s.recv(1 << 16):  # to the end: closed, though we did not
            got += more
    assert got.startswith(b"HTTP/1.1 400 ") and b"\r\nconnection: close\r\n" in got.lower() and b"\r\nx-request-id: " in got.lower()
    assert words in got and got.count(b"HTTP/1.1 4") == 1
    assert json.loads(got.partition(b"\r\n\r\n")[2])["error"]["type"] == "invalid_request_error"


CHUNKED = b"Transfer-Encoding: chunked\r\n"


@pytest.mark.parametrize("request_bytes, status, words", [
    (completion(b"Content-Length: x\r\n"), 400, "Content-Length is not a whole number"),
    (completion(b"Content-Length: -1\r\n"), 400, "Content-Length is not a whole number"),
    (completion(b"Content-Length:\r\n"), 400, "Content-Length is empty"),
    (completion(b"Content-Length: %d\r\n" % 10**30), 400, "Content-Length is too large"),
    (completion(b"Transfer-Encoding: gzip\r\n"), 400, "the only Transfer-Encoding that is supported is chunked"),
    (completion(b"Transfer-Encoding: chunked, gzip\r\n"), 400, "the only Transfer-Encoding that is supported is chunked"),
    (completion(length() + b"Expect: a-miracle\r\n"), 417, "Expect is not supported with other values than 100-continue"),
    (completion(CHUNKED, b"zz\r\n"), 400, "not a hexadecimal number"),
    (completion(CHUNKED, b"-5\r\nhello\r\n0\r\n\r\n"), 400, "not a hexadecimal number"),
    (completion(CHUNKED, b"5\r\nhelloXX0\r\n\r\n"), 400, "its data do not end"),
    (completion(CHUNKED, b"%x\r\n" % 2**70), 400, "16 digits"),
    (completion(length(10**9)), 413, "exceeds the limit of 33554432 bytes (--max-body-bytes)"),
    (completion(CHUNKED, b"%x\r\n%b\r\n" % (34 << 20, b" " * (34 << 20))), 413, "exceeds the limit of 33554432 bytes"),
])
@pytest.mark.parametrize("before", [b"", HEALTH])
def test_what_h2o_refuses_has_a_reason_and_the_shape_of_errors(wide, before, request_bytes, status, words):
    with connect(wide) as s:
        s.sendall(before + request_bytes)
        answers = Answers(s)
        got = [answers.next() for _ in range(2 if before else 1)][-1]
    assert got[0] == status and got[1]["content-type"] == "application/json" and len(got[1]["x-request-id"]) == 32
    error = json.loads(got[2])["error"]
    assert words in error["message"] and error["type"] == "invalid_request_error" and error["param"] is None, error


def test_status_lines_of_refused_requests(wide):
    for request, line in ((completion(b"Content-Length: x\r\n"), b"HTTP/1.1 400 Bad Request\r\n"), (b"hello\r\n\r\n", b"HTTP/1.1 400 Bad Request\r\n"),
                          (completion(CHUNKED, b"zz\r\n"), b"HTTP/1.1 400 Bad Request\r\n"),
                          (completion(length() + b"Expect: x\r\n"), b"HTTP/1.1 417 Expectation Failed\r\n"),
                          (completion(length(10**9)), b"HTTP/1.1 413 Content Too Large\r\n")):
        with connect(wide) as s:
            s.sendall(request)
            answers = Answers(s)
            answers.more()
            assert answers.got.startswith(line), answers.got


def test_http2_headers_that_h2o_refuses(wide):
    """A header value with a control character: h2o answers 400 on the stream."""
    def literal(name, value):  # HPACK: literal header field without indexing, new name
        return b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value
    block = b"".join(literal(*h) for h in ((b":method", b"GET"), (b":path", b"/health"), (b":scheme", b"http"), (b":authority", b"x"),
                                           (b"x", b"a\x01b")))
    frame = len(block).to_bytes(3, "big") + b"\x01\x05" + (1).to_bytes(4, "big") + block  # HEADERS, END_STREAM | END_HEADERS
    with connect(wide) as s:
        s.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\x04\0\0\0\0\0" + frame)
        got = b""
        while b"}}" not in got and (more := s.recv(1 << 16)):
            got += more
    error = json.loads(got[got.index(b'{"error"'):got.index(b"}}") + 2])["error"]
    assert error["type"] == "invalid_request_error" and "not valid HTTP: " in error["message"] and "invalid" in error["message"].split("HTTP: ")[1]


@pytest.mark.parametrize("expect", [b"", b"Expect: 100-continue\r\n"])
@pytest.mark.parametrize("body, words", [
    (b"0x%x\r\n%b\r\n0\r\n\r\n", b"not a hexadecimal number"), (b"%xg\r\n%b\r\n0\r\n\r\n", b"not a hexadecimal number"),
    (b"%x \r\n%b\r\n0\r\n\r\n", b"not a hexadecimal number"), (b"%x\n%b\r\n0\r\n\r\n", b"not a hexadecimal number"),
    (b"%x\r\n%b\r\n0x\r\n\r\n", b"not a hexadecimal number"), (b"%x;a\x01\r\n%b\r\n0\r\n\r\n", b"control character"),
    (b"%x\r\n%b\n0\r\n\r\n", b"its data do not end"), (b"%x\r\n%b\r\n0\r\nno colon\r\n\r\n", b"not a header line"),
])
def test_faulty_chunks_are_refused_and_the_connection_closed(wide, body, words, expect):
    """Nothing behind them is read as a request, in whatever pieces they come."""
    request = completion(CHUNKED + expect, body % (len(BODY), BODY))
    head = len(request) - len(body % (len(BODY), BODY))
    for before, cuts in [(b"", []), (b"", [head]), (b"", range(head, len(request))), (HEALTH, []), (HEALTH, [head + 20])]:
        stream, at = before + request + HEALTH, 0
        with connect(wide) as s:
            s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for cut in [*(cut + len(before) for cut in cuts), len(stream)]:
                s.sendall(stream[at:cut])
                at = cut
            answers = Answers(s)
            found = [answers.next()]
            while found[-1][1].get("connection") != "close":
                found.append(answers.next())
            assert not answers.got and not s.recv(1)
        assert [status for status, _, _ in found if status != 100] == ([200] if before else []) + [400]
        assert words in found[-1][2] and json.loads(found[-1][2])["error"]["type"] == "invalid_request_error"


def test_faulty_chunks_behind_100_continue(wide):
    with connect(wide) as s:
        answers = Answers(s)
        s.sendall(completion(CHUNKED + b"Expect: 100-continue\r\n", b""))
        assert answers.next()[0] == 100
        s.sendall(b"0x5\r\nhello\r\n0\r\n\r\n" + HEALTH)
        status, headers, body = answers.next()
        assert status == 400 and b"not a hexadecimal" in body and headers["connection"] == "close" and not s.recv(1)


@pytest.mark.parametrize("body", [b"%x;a=b;c=\"d\"\r\n%b\r\n0\r\n\r\n", b"000%x\r\n%b\r\n000;x\r\nTrailer: y\r\n\r\n"])
def test_extensions_and_trailers_are_fine(wide, body):
    request = completion(CHUNKED, body % (len(BODY), BODY))
    assert talk(wide, request + HEALTH + request, HEALTH) == [200] * 4
    assert talk(wide, *(request[i:i + 1] for i in range(len(request))), HEALTH) == [200] * 2
    with connect(wide) as s:
        s.sendall(completion(CHUNKED + b"Expect: 100-continue\r\n", b""))
        assert Answers(s).next()[0] == 100
        assert exchange(s, body % (len(BODY), BODY))[0] == 200


@pytest.mark.parametrize("value, closes", [
    (b"close", True), (b"keep-alive, close", True), (b"close, keep-alive", True), (b"Keep-Alive ,CLOSE", True), (b"keep-alive\r\nConnection: close", True),
    (b"keep-alive", False), (b"keep-alive, closed", False)])
def test_close_goes_before_keep_alive(wide, value, closes):
    with connect(wide) as s:
        answers = Answers(s)
        s.sendall(HEALTH[:-2] + b"Connection: " + value + b"\r\n\r\n" + HEALTH)
        status, headers, _ = answers.next()
        assert status == 200 and (headers["connection"] == "close") == closes
        if closes:
            assert not answers.got and not s.recv(1)
        else:
            assert answers.next()[0] == 200


@pytest.mark.parametrize("host", [b"", b"a-b.example:8000", b"[::1]:80", b"127.0.0.1", b"under_score", b"%41"])
def test_hosts(wide, host):
    with connect(wide) as s:
        assert exchange(s, b"GET /health HTTP/1.1\r\nHost: %b\r\n\r\n" % host)[0] == 200


def test_early_answers_have_an_id_and_cors(small):
    page = b"Origin: http://page\r\nX-Request-Id: mine-1\r\n"
    chunked = b"%x\r\n%b\r\n0\r\n\r\n" % (200_000, b" " * 200_000)
    for request, status in [(completion(page + length(10**9)), 413), (completion(page + CHUNKED, chunked), 413),
                            (completion(page + b"Content-Length: x\r\n"), 400), (completion(page + CHUNKED, b"x\r\n"), 400),
                            (completion(page + b"Transfer-Encoding: gzip\r\n"), 400)]:
        with connect(small) as s:
            got, headers, body = exchange(s, request)
        assert got == status and headers["x-request-id"] == "mine-1" and headers["access-control-allow-origin"] == "*"
        assert json.loads(body)["error"]["type"] == "invalid_request_error" and headers["connection"] == "close"
    with connect(small) as s:
        assert len(exchange(s, completion(length(10**9)))[1]["x-request-id"]) == 32


def test_framing_is_checked_on_later_requests_too(wide):
    """On a connection that is kept, and behind another request in one piece."""
    bad = completion(length(10**6) + length())
    with connect(wide) as s:
        for _ in range(3):
            assert exchange(s, HEALTH)[0] == 200
            assert exchange(s, completion(length()))[0] == 200
        status, headers, _ = exchange(s, bad)
        assert status == 400 and headers["connection"] == "close"
        assert s.recv(1) == b""
    for good in (HEALTH, completion(length()), completion(b"Transfer-Encoding: chunked\r\n", b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY))):
        assert talk(wide, good + good + bad + HEALTH) == [200, 200, 400]
        assert talk(wide, good + bad[:40], bad[40:]) == [200, 400]
        assert talk(wide, good + good[:20], good[20:] + good) == [200, 200, 200]


@pytest.mark.parametrize("seed", range(12))
def test_requests_in_any_pieces(wide, seed):
    """Whole, torn and glued requests of all kinds; the first faulty one ends the connection, and none behind it is answered."""
    draw = random.Random(seed)
    kinds = [(HEALTH, 200), (completion(length()), 200), (b"GET /none/ HTTP/1.1\r\nHost: x\r\n\r\n", 404),
             (completion(length(1) + b"Content-Encoding: gzip\r\n", b"x"), 400), (completion(length(0), b""), 400),
             (completion(b"Transfer-Encoding: chunked\r\n", b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)), 200),
             (b"OPTIONS /sleep HTTP/1.1\r\nHost: x\r\nOrigin: http://a\r\nAccess-Control-Request-Method: POST\r\n\r\n", 400)]
    chosen = [draw.choice(kinds) for _ in range(draw.randrange(1, 12))]
    bad = completion(length() + b"Transfer-Encoding: chunked\r\n")
    stream = b"".join(request for request, _ in chosen) + bad + HEALTH * 3
    pieces, at = [], 0
    while at < len(stream):
        n = draw.choice([1, 2, 7, 40, 200, 1000])
        pieces.append(stream[at:at + n])
        at += n
    assert talk(wide, *pieces) == [status for _, status in chosen] + [400]


def test_equal_lengths_and_http_1_0_are_fine(wide):
    with connect(wide) as s:
        for request in [completion(length() + length()), HEALTH,
                        b"\r\n" + HEALTH, completion(b"Transfer-Encoding: chunked\r\n", b"1\r\n{\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(BODY) - 1, BODY[1:]))]:
            assert exchange(s, request)[0] == 200, request
    assert talk(wide, b"GET /health HTTP/1.0\r\n\r\n") == [200]


@pytest.mark.parametrize("target", ["http://other:1/health", "HTTP://x/health?y=1", "/health/", "/health///", "http://x/health/?a", "/health?x/"])
def test_forms_of_the_path(wide, target):
    with connect(wide) as s:
        for _ in range(2):
            assert exchange(s, f"GET {target} HTTP/1.1\r\nHost: x\r\n\r\n".encode())[0] == 200


def test_paths_that_are_none(wide):
    with connect(wide) as s:
        for target in ["http://x", "https://x?health", "/", "//", "http:/health", "http://", "*"]:
            assert exchange(s, f"GET {target} HTTP/1.1\r\nHost: x\r\n\r\n".encode())[0] == 404
    name = json.loads(wide.get("/v1/models/")[1])["data"][0]["id"]
    assert json.loads(wide.get(f"/v1/models/{name}/")[1])["id"] == name
    assert wide.get("/sleep/?level=1")[0] == 405


def test_methods(wide):
    for method, path, status, allow in [("GET", "/v1/completions", 405, "POST"), ("DELETE", "/v1/models", 405, "GET, HEAD"),
                                        ("OPTIONS", "/v1/models", 405, "GET, HEAD"), ("PUT", "/nothing", 404, None)]:
        connection, answer = wide.raw(method, path)
        assert (answer.status, answer.headers["allow"]) == (status, allow)
        answer.read()
    connection, answer = wide.raw("HEAD", "/v1/models")
    assert answer.status == 200 and answer.read() == b"" and int(answer.headers["content-length"]) > 0


@pytest.fixture(scope="module")
def small():
    """A server that takes bodies of 100 KB."""
    from servers import Server
    server = Server(MODELS / "llama", *OPTIONS, "--max-body-bytes", "100K")
    yield server
    assert server.stop() == 0


def test_too_large_is_read_by_clients(small):
    """The answer, not a reset, however much is still on its way."""
    def ask(i):
        body = b'{"prompt": "' + b"x" * (200_000 + i * 1_500_000) + b'"}'
        more = {"content": body} if i % 2 else {"content": iter([body[:99_000], body[99_000:]])}  # chunked
        with httpx2.Client(timeout=60) as client:
            return client.post(small.url + "/v1/completions", headers={"Content-Type": "application/json"}, **more)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for answer in pool.map(ask, range(16)):
            assert answer.status_code == 413 and answer.json()["error"]["code"] == "request_too_large"
            assert "102400" in answer.json()["error"]["message"] and answer.headers["connection"] == "close"
    assert small.post("/v1/completions", BODY)[0] == 200


def test_expect_gets_413_without_the_body(small):
    with connect(small) as s:
        status, headers, _ = exchange(s, completion(b"Expect: 100-continue\r\n" + length(10**9), b""))
        assert status == 413 and headers["connection"] == "close"
    with connect(small) as s:
        assert exchange(s, completion(b"Expect: 100-continue\r\n" + length(), b""))[0] == 100
        assert exchange(s, BODY)[0] == 200
        assert exchange(s, HEALTH)[0] == 200


def raw_deflate(data):
    z = zlib.compressobj(wbits=-15)
    return z.compress(data) + z.flush()


@pytest.mark.parametrize("coding, pack", [
    ("gzip", gzip.compress), ("GZIP", gzip.compress), ("x-gzip", gzip.compress), ("deflate", zlib.compress), ("deflate", raw_deflate),
    ("identity", bytes), ("gzip", lambda b: gzip.compress(b[:9]) + gzip.compress(b[9:]))])
def test_packed_bodies(small, coding, pack):
    large = json.dumps({"prompt": [1 + i * 7919 % 90 for i in range(200)], "max_tokens": 1, "user": "".join(map(str, range(12000)))}).encode()
    for body in (BODY, large):
        packed = pack(body)
        with connect(small) as s:
            for _ in range(2):
                request = completion(b"Content-Encoding: %b\r\n" % coding.encode() + length(len(packed)), packed)
                status, _, answer = exchange(s, request)
                assert status == 200 and json.loads(answer)["usage"]["completion_tokens"] == 1
    chunked = b"".join(b"%x\r\n%b\r\n" % (len(packed[i:i + 50]), packed[i:i + 50]) for i in range(0, len(packed), 50)) + b"0\r\n\r\n"
    request = completion(b"Transfer-Encoding: chunked\r\nContent-Encoding: %b\r\n" % coding.encode(), chunked)
    assert talk(small, request + HEALTH + request, HEALTH) == [200] * 4


@pytest.mark.parametrize("coding, body, status, words", [
    ("gzip", gzip.compress(b" " * 200_000 + BODY), 413, "decompressed request body exceeds 102400 bytes"),
    ("deflate", zlib.compress(b" " * 50_000_000), 413, "decompressed request body exceeds"),
    ("gzip", gzip.compress(BODY)[:-3], 400, "is incomplete"), ("gzip", gzip.compress(BODY) + b"x", 400, "is incomplete"),
    ("deflate", zlib.compress(BODY) + b"xyz", 400, "3 extra bytes follow"), ("gzip", BODY, 400, "does not match its Content-Encoding"),
    ("br", BODY, 415, "gzip, deflate"), ("gzip, gzip", BODY, 415, "gzip, deflate"), ("zstd", b"\x28\xb5\x2f\xfd", 415, "accepted"),
    ("gzip", b"\x1f\x8b" + bytes(5000), 400, "Content-Encoding")])
def test_packed_bodies_that_are_not(small, coding, body, status, words):
    with connect(small) as s:
        got, headers, answer = exchange(s, completion(b"Content-Encoding: %b\r\n" % coding.encode() + length(len(body)), body))
        assert got == status and words in json.loads(answer)["error"]["message"], answer
        assert (headers.get("accept-encoding") == "gzip, deflate, identity") == (status == 415)
        assert exchange(s, completion(length()))[0] == 200


def test_x_api_key(start):
    server = start(MODELS / "llama", *OPTIONS, "--api-key", "alpha", "--allowed-origins", '["https://a.example"]')
    for headers, status in [({"X-Api-Key": "alpha"}, 200), ({"x-api-key": "beta"}, 401), ({"X-Api-Key": ""}, 401), ({"X-Api-Key": "Bearer alpha"}, 401),
                            ({"Authorization": "Bearer alpha"}, 200), ({"Authorization": "Bearer x", "X-Api-Key": "alpha"}, 200)]:
        assert server.get("/v1/models", headers=headers)[0] == status, headers
    # a page of the named origin may ask, and may read what it is told without a key too
    ask = {"Origin": "https://a.example", "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization, content-type"}
    connection, answer = server.raw("OPTIONS", "/v1/chat/completions", headers=ask)
    assert answer.status == 200 and answer.headers["access-control-allow-origin"] == "https://a.example"
    assert answer.headers["access-control-allow-headers"] == ask["Access-Control-Request-Headers"]
    answer.read()
    connection, answer = server.raw("GET", "/v1/models", headers={"Origin": "https://a.example"})
    assert answer.status == 401 and answer.headers["access-control-allow-origin"] == "https://a.example" and answer.headers["vary"] == "Origin"
    answer.read()
    connection, answer = server.raw("OPTIONS", "/v1/models", headers={"Origin": "https://a.example"})
    assert answer.status == 401  # no preflight
    for origin in ("https://b.example", "null", "https://a.example.evil"):
        connection, answer = server.raw("OPTIONS", "/v1/models", headers={**ask, "Origin": origin})
        assert answer.status == 400 and answer.headers["access-control-allow-origin"] is None and b"--allowed-origins" in answer.read()
        connection, answer = server.raw("GET", "/health", headers={"Origin": origin})
        assert answer.status == 200 and answer.headers["access-control-allow-origin"] is None and answer.headers["vary"] == "Origin"
    # control is for named origins
    assert server.raw("OPTIONS", "/sleep", headers=ask)[1].status == 200


def test_cors_by_default(wide):
    """vLLM's defaults: all origins, methods and headers, no credentials; the engine is not for any page to control."""
    page = {"Origin": "http://page"}
    for method, path, body, status in [("GET", "/health", None, 200), ("GET", "/nothing", None, 404), ("POST", "/v1/completions", b"{", 400),
                                       ("POST", "/v1/completions", BODY, 200), ("GET", "/v1/completions", None, 405)]:
        connection, answer = wide.raw(method, path, body, headers=page)
        assert answer.status == status and answer.headers["access-control-allow-origin"] == "*"
        assert "X-Request-Id" in answer.headers["access-control-expose-headers"] and answer.headers["access-control-allow-credentials"] is None
        answer.read()
    connection, answer = wide.raw("POST", "/v1/completions", {"prompt": [1], "max_tokens": 2, "stream": True}, headers=page)
    assert answer.headers["access-control-allow-origin"] == "*" and b"[DONE]" in answer.read()
    assert wide.raw("GET", "/health")[1].headers["access-control-allow-origin"] is None
    ask = {**page, "Access-Control-Request-Method": "PATCH", "Access-Control-Request-Headers": "X-Any"}
    connection, answer = wide.raw("OPTIONS", "/anything", headers=ask)
    assert answer.status == 200 and answer.headers["access-control-allow-methods"] == "DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT"
    assert answer.headers["access-control-max-age"] == "600" and answer.headers["access-control-allow-headers"] == "X-Any"
    answer.read()
    connection, answer = wide.raw("OPTIONS", "/sleep", headers={**ask, "Access-Control-Request-Method": "POST"})
    assert answer.status == 400 and answer.headers["access-control-allow-origin"] is None
    answer.read()
    connection, answer = wide.raw("GET", "/health", headers={**page, "Cookie": "a=b"})
    assert answer.headers["access-control-allow-origin"] == "http://page" and answer.headers["vary"] == "Origin"
    with connect(wide) as s:  # h2o's own errors
        status, headers, _ = exchange(s, completion(b"Origin: http://page\r\nContent-Length: x\r\n"))
        assert status == 400 and headers["access-control-allow-origin"] == "*"


def test_cors_lists(start):
    server = start(MODELS / "llama", *OPTIONS, "--allowed-methods", '["GET"]', "--allowed-headers", '["X-One", "X-Two"]', "--allow-credentials")
    ask = {"Origin": "http://page", "Access-Control-Request-Method": "GET"}
    connection, answer = server.raw("OPTIONS", "/v1/models", headers={**ask, "Access-Control-Request-Headers": "x-two,content-type"})
    assert answer.status == 200 and answer.headers["access-control-allow-origin"] == "http://page"
    assert answer.headers["access-control-allow-credentials"] == "true" and answer.headers["access-control-allow-methods"] == "GET"
    assert answer.headers["access-control-allow-headers"] == "Accept, Accept-Language, Content-Language, Content-Type, X-One, X-Two"
    answer.read()
    for change, flag in [({"Access-Control-Request-Headers": "x-two, x-three"}, b"--allowed-headers"),
                         ({"Access-Control-Request-Method": "POST"}, b"--allowed-methods")]:
        connection, answer = server.raw("OPTIONS", "/v1/models", headers={**ask, **change})
        assert answer.status == 400 and flag in answer.read()


def test_no_origins_and_wrong_lists(start, run):
    server = start(MODELS / "llama", *OPTIONS, "--allowed-origins", "[]")
    connection, answer = server.raw("GET", "/health", headers={"Origin": "http://page"})
    assert answer.headers["access-control-allow-origin"] is None and answer.headers["vary"] is None
    process = run("quire-frontend", MODELS / "llama", "--engine", "ipc:///tmp/none", "--allowed-origins", '["a"')
    assert process.exit_code() == 2 and "--allowed-origins" in process.log()


def test_preflight_then_key(start):
    server = start(MODELS / "llama", *OPTIONS, "--api-key", "alpha")
    connection, answer = server.raw("OPTIONS", "/v1/models", headers={"Origin": "http://page", "Access-Control-Request-Method": "GET"})
    assert answer.status == 200
    answer.read()
    assert Http(server.url, "alpha").get("/v1/models", headers={"Origin": "http://page"})[0] == 200
