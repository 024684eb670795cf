# SPDX-License-Identifier: Apache-2.0
"""--ssl-certfile and its kin: HTTPS by the server itself. Clients of both protocols, certificates of clients, files that are replaced,
clients that leave, stop reading, or speak no TLS, the limits that hold without TLS too, and the end of a server."""
import contextlib
import http.client
import json
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import time

import httpx2
import openai
import pytest

from servers import BIN, BUNDLED, HANG_S, MODELS, Http

ASK = {"model": "quire-tiny", "messages": [{"role": "user", "content": "Who are you?"}], "temperature": 0}
LONG = {"prompt": [5, 7, 9], "ignore_eos": True, "temperature": 0}


class Pki:
    """Certificates, signed by one of two authorities."""

    def __init__(self, folder):
        self.folder = folder
        for name in ("ca", "other-ca"):
            self.openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj", f"/CN={name}",
                         "-keyout", folder / f"{name}.key", "-out", folder / f"{name}.pem")

    def openssl(self, *args):
        subprocess.run(["openssl", *map(str, args)], check=True, capture_output=True)

    def make(self, name, ca="ca", kind="ec", days=2):
        key, cert, request = (self.folder / f"{name}.{end}" for end in ("key", "pem", "csr"))
        how = ["ec", "-pkeyopt", "ec_paramgen_curve:P-256"] if kind == "ec" else ["rsa:2048"]
        self.openssl("req", "-newkey", *how, "-nodes", "-subj", f"/CN={name}", "-keyout", key, "-out", request)
        names = self.folder / "names"
        names.write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
        self.openssl("x509", "-req", "-in", request, "-CA", self.folder / f"{ca}.pem", "-CAkey", self.folder / f"{ca}.key", "-CAcreateserial",
                     "-days", days, "-extfile", names, "-out", cert)
        return cert, key

    @property
    def ca(self):
        return self.folder / "ca.pem"


@pytest.fixture(scope="module")
def pki(tmp_path_factory):
    return Pki(tmp_path_factory.mktemp("pki"))


@pytest.fixture(scope="module")
def cert(pki):
    return pki.make("server")


class Https(Http):
    """Requests over TLS; the server's certificate must be the authority's."""

    def __init__(self, url, ca, client=None, key=None):
        self.host, self.port = re.fullmatch(r"https://(.+):(\d+)", url).groups()
        self.url, self.key = url, key
        self.context = ssl.create_default_context(cafile=ca)
        if client:
            self.context.load_cert_chain(*client)

    def connection(self, timeout):
        return http.client.HTTPSConnection(self.host, int(self.port), timeout=timeout, context=self.context)

    def connect(self):
        raw = socket.create_connection((self.host, int(self.port)), timeout=HANG_S)
        return self.context.wrap_socket(raw, server_hostname=self.host)

    def serial(self):
        """Of the certificate that the server shows."""
        with self.connect() as s:
            return s.getpeercert()["serialNumber"]


@pytest.fixture
def begin(run, pki, cert):
    """begin(model, *options) -> a ready server over TLS"""
    def start(model, *options, files=cert, key=None):
        process = run("quire", "serve", model, "--port", "0", "--ssl-certfile", files[0], "--ssl-keyfile", files[1], *options)
        server = Https(process.wait_line(r"listening on (https://\S+)")[1], pki.ca, key=key)
        process.wait_line("serve: ready")
        server.process = process
        return server
    return start


def read_all(s):
    said = b""
    while part := s.recv(65536):
        said += part
    return said


def request(path, body, *headers):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = [f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json", f"Content-Length: {len(data)}", *headers]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + data


def test_answers_and_streams(begin, pki):
    server = begin(BUNDLED, "--frontends", "2")
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0,
                           http_client=httpx2.Client(verify=ssl.create_default_context(cafile=pki.ca), timeout=60))
    whole = client.chat.completions.create(**ASK).choices[0].message.content
    parts = [event.choices[0].delta.content or "" for event in client.chat.completions.create(**ASK, stream=True)]
    assert "".join(parts) == whole and len(parts) > 10
    for path in ("/sleep", "/wake_up"):  # a client of this machine
        connection, answer = server.raw("POST", path)
        assert answer.status == 200, answer.read()
    assert server.post("/v1/completions", {"prompt": 3})[0] == 400
    with pytest.raises(openai.APIConnectionError):  # an authority that the client does not trust
        openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0).models.list()
    assert server.process.stop() == 0


@pytest.mark.parametrize("curl, version", [(["--http2"], "2"), (["--http1.1"], "1.1"), (["--http2", "--tls-max", "1.2"], "2")],
                         ids=["http2", "http1", "tls12"])
def test_protocols(begin, pki, curl, version):
    server = begin(BUNDLED)
    whole = server.post("/v1/chat/completions", ASK)[1]["choices"][0]["message"]["content"]
    said = subprocess.run(["curl", "-sS", "--cacert", pki.ca, *curl, "-w", "\n%{http_version}", "-H", "Content-Type: application/json", "-d",
                           json.dumps({**ASK, "stream": True}), server.url + "/v1/chat/completions"], capture_output=True, text=True, timeout=HANG_S)
    assert said.returncode == 0, said.stderr
    *lines, used = said.stdout.splitlines()
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    assert used == version and "data: [DONE]" in lines
    assert "".join(e["choices"][0]["delta"].get("content") or "" for e in events) == whole


def test_old_versions_are_refused(begin, pki):
    server = begin(MODELS / "llama", "--skip-tokenizer-init", "--ssl-ciphers", "ECDHE-ECDSA-AES128-GCM-SHA256")
    server.context.maximum_version = ssl.TLSVersion.TLSv1_2
    with server.connect() as s:
        assert s.cipher()[0] == "ECDHE-ECDSA-AES128-GCM-SHA256"
    server.context.set_ciphers("ALL:@SECLEVEL=0")
    server.context.minimum_version = server.context.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises(ssl.SSLError):
        server.connect()
    server.context.minimum_version, server.context.maximum_version = ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3
    assert server.get("/health")[0] == 200
    server.wait_metric("quire:tls_handshakes_failed_total", 1)
    server.process.wait_line(r"tls: the handshake with 127\.0\.0\.1 failed: .*(protocol|version)")


def test_clients_need_certificates(begin, pki):
    mine, foreign = pki.make("client"), pki.make("foreign", ca="other-ca")
    server = begin(MODELS / "llama", "--skip-tokenizer-init", "--ssl-ca-certs", pki.ca, "--ssl-cert-reqs", "2")
    for files, is_served in ((mine, True), (None, False), (foreign, False)):
        client = Https(server.url, pki.ca, files)
        if is_served:
            assert client.get("/health")[0] == 200
        else:
            with pytest.raises((ssl.SSLError, ConnectionError, http.client.BadStatusLine)):  # TLS 1.3: seen by the first read
                client.get("/health")
    server = begin(MODELS / "llama", "--skip-tokenizer-init", "--ssl-ca-certs", pki.ca, "--ssl-cert-reqs", "1")
    assert server.get("/health")[0] == 200 and Https(server.url, pki.ca, mine).get("/health")[0] == 200
    with pytest.raises((ssl.SSLError, ConnectionError, http.client.BadStatusLine)):
        Https(server.url, pki.ca, foreign).get("/health")


@pytest.mark.parametrize("by_signal", (True, False), ids=["sighup", "refresh"])
def test_files_are_read_again(begin, pki, tmp_path, by_signal):
    files = tmp_path / "cert.pem", tmp_path / "key.pem"
    first, second = pki.make("first"), pki.make("second", kind="rsa")
    for have, want in zip(first, files):
        shutil.copy(have, want)
    server = begin(MODELS / "llama", "--skip-tokenizer-init", *[] if by_signal else ["--enable-ssl-refresh"], files=files)
    before = server.serial()
    old = server.connect()
    events = server.events("/v1/completions", {**LONG, "max_tokens": 100})
    next(events)

    def replace(have, want):
        at = len(server.process.lines)
        shutil.copy(have, tmp_path / "new")
        (tmp_path / "new").rename(want)
        if by_signal:
            server.process.process.send_signal(signal.SIGHUP)
        return at

    at = replace(second[1], files[1])  # the key alone: it does not match
    server.process.wait_line("certificate stays as it was: .*the private key is not that of", start=at)
    assert server.serial() == before
    at = replace(second[0], files[0])
    server.process.wait_line(f"read the certificate {files[0]}", start=at)
    assert server.serial() != before
    assert len(list(events)) >= 99  # what was open goes on
    old.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert b"200 OK" in read_all(old)


def test_what_is_no_tls(begin):
    server = begin(MODELS / "llama", "--skip-tokenizer-init")
    at = server.host, int(server.port)
    plain = http.client.HTTPConnection(*at, timeout=HANG_S)
    plain.request("GET", "/health")
    answer = plain.getresponse()
    assert answer.status == 400 and "use https://" in json.loads(answer.read())["error"]["message"]
    with socket.create_connection(at, timeout=HANG_S) as s:
        s.sendall(b"\x00\x01\x02 nothing of the kind" * 40)
        s.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionError):  # a reset is as good an end as any
            read_all(s)
    for _ in range(3):  # what looks whether a port is open
        socket.create_connection(at, timeout=HANG_S).close()
    server.wait_metric("quire:tls_handshakes_failed_total", 2)
    assert "handshake with 127.0.0.1 failed: http request" in server.process.log()


def test_large_bodies(begin):
    server = begin(BUNDLED, "--max-body-bytes", "8M")
    text = "many words " * 24000
    status, answer = server.post("/tokenize", {"prompt": text})
    assert status == 200 and answer["count"] > 24000
    ids = json.dumps({"tokens": answer["tokens"] * 10}).encode()
    assert 1 << 20 < len(ids) < 8 << 20
    status, answer = server.post("/detokenize", ids)
    assert status == 200 and answer["prompt"] == text * 10
    with server.connect() as s:  # too large: the answer arrives although the client still sends
        s.sendall(request("/v1/completions", b" " * (9 << 20)))
        assert b"413 Content Too Large" in read_all(s)


def test_clients_that_leave(begin):
    server = begin(BUNDLED)
    ask = {**LONG, "max_tokens": 1500, "n": 8}  # so long that its heartbeats are seen
    for stream in (True, False):
        s = server.connect()
        s.sendall(request("/v1/completions", {**ask, "stream": stream}))
        server.wait_metric("vllm:num_requests_running", 8)
        s.close()
        server.wait_metric("vllm:num_requests_running", 0)
    server.wait_metric("quire:clients_gone_total", 2)
    server.wait_metric("quire:open_requests", 0)


class HalfClosed:
    """A connection whose client ends its side, with close_notify or without, and reads on: ssl.SSLSocket cannot."""

    def __init__(self, server):
        self.socket = socket.create_connection((server.host, int(server.port)), timeout=HANG_S)
        self.read, self.write = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = server.context.wrap_bio(self.read, self.write, server_hostname=server.host)
        self.until(self.tls.do_handshake)

    def until(self, step):
        while True:
            try:
                done = step()
                self.send()
                return done
            except ssl.SSLWantReadError:
                self.send()
                part = self.socket.recv(65536)
                self.read.write(part) if part else self.read.write_eof()

    def send(self):
        if part := self.write.read():
            self.socket.sendall(part)

    def end(self):
        self.socket.shutdown(socket.SHUT_WR)

    def read_all(self):
        said = b""
        try:
            while part := self.until(lambda: self.tls.read(65536)):
                said += part
        except ssl.SSLEOFError:
            raise AssertionError("the server's end has no close_notify")
        except ssl.SSLZeroReturnError:
            pass
        return said


@pytest.mark.parametrize("stream", (True, False))
def test_half_closed_clients_are_served(begin, stream):
    server = begin(MODELS / "llama", "--skip-tokenizer-init")
    client = HalfClosed(server)
    client.until(lambda: client.tls.write(request("/v1/completions", {**LONG, "max_tokens": 100, "stream": stream})))
    client.end()
    said = client.read_all()
    assert b"HTTP/1.1 200 OK" in said
    assert (b"data: [DONE]\n\n" if stream else b'"completion_tokens":100') in said


def test_clients_that_do_not_read(begin):
    """An answer that fits no queue: its client loses the connection after --write-timeout; others are served meanwhile."""
    server = begin(MODELS / "llama", "--skip-tokenizer-init", "--write-timeout", "1", "--max-model-len", "128")
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    s.settimeout(HANG_S)
    s.connect((server.host, int(server.port)))
    tls = server.context.wrap_socket(s, server_hostname=server.host)
    ask = {"prompt": [[5, 7, 9 + i] for i in range(64)], "n": 2, "max_tokens": 100, "logprobs": 20, "ignore_eos": True, "return_tokens_as_token_ids": True}
    tls.sendall(request("/v1/completions", ask))
    server.wait_metric("quire:slow_clients_total", 1)
    assert server.post("/v1/completions", {**LONG, "max_tokens": 1})[0] == 200
    server.wait_metric("quire:open_requests", 0)
    tls.close()


def test_clients_that_send_on(begin):
    """The server has answered and closed: a client that sends without end loses the connection, although bytes always wait to be read."""
    server = begin(MODELS / "llama", "--skip-tokenizer-init")
    with server.connect() as s:
        s.sendall(request("/v1/completions", {**LONG, "max_tokens": 1}, "Connection: close"))
        assert b"200 OK" in read_all(s)
        deadline = time.monotonic() + HANG_S
        with pytest.raises((ConnectionError, ssl.SSLError)):
            while time.monotonic() < deadline:
                s.sendall(b" " * (1 << 16))


def test_connections_are_limited(begin):
    server = begin(MODELS / "llama", "--skip-tokenizer-init", "--max-connections", "2", "--max-connections-per-address", "2")
    held = [server.connect(), server.connect()]
    status, answer = server.post("/v1/completions", {**LONG, "max_tokens": 1})
    assert status == 503 and "--max-connections" in answer["error"]["message"]
    held[0].close()
    deadline = time.monotonic() + HANG_S
    while server.post("/v1/completions", {**LONG, "max_tokens": 1})[0] != 200:
        assert time.monotonic() < deadline


def own_address():
    """An address of this machine that is no loopback address, so that a client which uses it does not count as one of this machine."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        with contextlib.suppress(OSError):
            s.connect(("198.51.100.1", 9))  # sends nothing
            return s.getsockname()[0]
    return None


def test_clients_of_other_machines(begin, pki):
    """The administration endpoints are for clients of this machine: the client's address counts, not that of the relay's pair of sockets."""
    other = own_address()
    if not other:
        pytest.skip("this machine has no address but 127.0.0.1")
    server = begin(MODELS / "llama", "--skip-tokenizer-init", "--host", "0.0.0.0")
    server.host = "127.0.0.1"
    assert server.raw("POST", "/reset_prefix_cache")[1].status == 200
    server.host, server.context.check_hostname = other, False
    assert server.get("/health")[0] == 200
    for version in ([], ["--http2"]):
        said = subprocess.run(["curl", "-sSk", *version, "-X", "POST", f"https://{other}:{server.port}/reset_prefix_cache"], capture_output=True,
                              text=True, timeout=HANG_S)
        assert "administration" in json.loads(said.stdout)["error"]["message"], said
    answer = server.raw("POST", "/reset_prefix_cache")[1]
    assert answer.status == 403, answer.read()


def test_keys(begin):
    server = begin(MODELS / "llama", "--skip-tokenizer-init", "--api-key", "sk-1", key="sk-1")
    assert server.post("/v1/completions", {**LONG, "max_tokens": 1})[0] == 200
    server.key = None
    assert server.post("/v1/completions", {**LONG, "max_tokens": 1})[0] == 401


def test_the_end_of_a_server(begin):
    """Streams end with all their events, and with close_notify."""
    server = begin(BUNDLED)
    clients = [HalfClosed(server) for _ in range(4)]
    for c in clients:
        c.until(lambda c=c: c.tls.write(request("/v1/completions", {**LONG, "max_tokens": 600, "stream": True}, "Connection: close")))
    server.wait_metric("vllm:num_requests_running", 4)
    idle = server.connect()
    server.process.process.send_signal(signal.SIGTERM)
    for c in clients:
        said = c.read_all()
        assert b"data: [DONE]\n\n" in said and said.endswith(b"\r\n0\r\n\r\n")
    assert read_all(idle) == b""
    assert server.process.exit_code() == 0


@pytest.mark.parametrize("change, message", [
    ({"cert": "missing.pem"}, r"--ssl-certfile \S*missing\.pem: No such file or directory"),
    ({"key": "missing.pem"}, r"--ssl-keyfile \S*missing\.pem: No such file or directory"),
    ({"cert": "text"}, r"--ssl-certfile \S*text: expected certificates in PEM"),
    ({"key": "text"}, r"--ssl-keyfile \S*text: expected a private key in PEM"),
    ({"key": "other"}, r"--ssl-keyfile \S*: the private key is not that of --ssl-certfile"),
    ({"key": "encrypted"}, r"--ssl-keyfile \S*: the private key is encrypted; decrypt it with"),
    ({"key": None}, r"--ssl-certfile \S*: expected a private key in PEM"),
    ({"cert": None}, r"--ssl-keyfile needs --ssl-certfile"),
    ({"more": ["--ssl-cert-reqs", "2"]}, r"--ssl-cert-reqs 2 needs --ssl-ca-certs"),
    ({"more": ["--ssl-cert-reqs", "3"]}, r"--ssl-cert-reqs"),
    ({"more": ["--ssl-ca-certs", "text"]}, r"--ssl-ca-certs \S*text: expected certificates in PEM"),
    ({"more": ["--ssl-ciphers", "nothing"]}, r'--ssl-ciphers: OpenSSL knows no cipher of "nothing"'),
], ids=lambda v: "-".join(f"{k}-{x}" if not isinstance(x, list) else "-".join(x) for k, x in v.items()) if isinstance(v, dict) else None)
def test_wrong_files(run, pki, cert, tmp_path, change, message):
    (tmp_path / "text").write_text("no PEM\n")
    pki.openssl("ec", "-in", cert[1], "-aes128", "-passout", "pass:secret", "-out", tmp_path / "encrypted")
    shutil.copy(pki.make("other")[1], tmp_path / "other")
    flags = {"cert": "--ssl-certfile", "key": "--ssl-keyfile"}
    args = []
    for part, path in (("cert", cert[0]), ("key", cert[1])):
        if path := change.get(part, path):
            args += [flags[part], path if path in cert else tmp_path / path]
    args += [tmp_path / a if a == "text" else a for a in change.get("more", [])]
    process = run("quire", "serve", MODELS / "llama", "--port", "0", *args)
    assert process.exit_code() == 2
    assert re.search(message, process.log()), process.log()


def test_one_file_for_both_and_a_certificate_that_has_expired(run, pki, cert, tmp_path):
    both = tmp_path / "both.pem"
    both.write_text(cert[0].read_text() + cert[1].read_text())
    process = run("quire", "serve", MODELS / "llama", "--skip-tokenizer-init", "--port", "0", "--ssl-certfile", both)
    server = Https(process.wait_line(r"listening on (https://\S+)")[1], pki.ca)
    assert server.get("/health")[0] == 200
    assert process.stop() == 0 and "expired" not in process.log()
    old = pki.make("old", days=0)
    time.sleep(1)  # its last second
    process = run("quire", "serve", MODELS / "llama", "--skip-tokenizer-init", "--port", "0", "--ssl-certfile", old[0], "--ssl-keyfile", old[1])
    process.wait_line("the certificate has expired; clients will refuse it")


def test_chat_at_a_terminal(begin, pki):
    server = begin(BUNDLED)
    args = [BIN / "quire", "chat", "--url", server.url]

    def chat(**env):
        return subprocess.run(args, input="Who are you?\n", capture_output=True, text=True, timeout=HANG_S, env={**os.environ, **env})
    said = chat(SSL_CERT_FILE=str(pki.ca))
    assert said.returncode == 0 and len(said.stdout) > 10, said.stderr
    said = chat()
    assert said.returncode != 0 and "the server's certificate is not valid" in said.stderr and "SSL_CERT_FILE" in said.stderr
