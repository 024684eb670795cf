# SPDX-License-Identifier: Apache-2.0
"""--uds: a server on a Unix socket. Answers, streams, clients that leave, what a killed server leaves, servers that follow one another."""
import http.client
import signal
import socket
import stat

import httpx2
import openai
import pytest

from servers import BUNDLED, MODELS, Http


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path, timeout):
        super().__init__("localhost", timeout=timeout)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self.path))


class UnixHttp(Http):
    def __init__(self, path):
        self.path, self.key = path, None

    def connection(self, timeout):
        return UnixConnection(self.path, timeout)


@pytest.fixture
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("s") / "s"


def begin(run, model, path, *options):
    server = run("quire", "serve", model, "--uds", path, *options)
    server.wait_line(f"listening on unix:{path}$")
    server.wait_line("serve: ready")
    return server


def test_answers_and_streams(run, path):
    server = begin(run, BUNDLED, path, "--frontends", "2")
    assert stat.S_ISSOCK(path.stat().st_mode)
    client = openai.OpenAI(base_url="http://localhost/v1", api_key="none", max_retries=0,
                           http_client=httpx2.Client(transport=httpx2.HTTPTransport(uds=str(path)), timeout=60))
    ask = {"model": "quire-tiny", "messages": [{"role": "user", "content": "Who are you?"}], "temperature": 0}
    whole = client.chat.completions.create(**ask).choices[0].message.content
    parts = [event.choices[0].delta.content or "" for event in client.chat.completions.create(**ask, stream=True)]
    assert "".join(parts) == whole and len(parts) > 10
    at = UnixHttp(path)
    assert at.get("/health")[0] == 200
    for route in ("/sleep", "/wake_up"):  # a client of this machine
        assert at.raw("POST", route)[1].status == 200
    assert at.post("/v1/completions", {"prompt": 3})[0] == 400
    assert server.stop() == 0 and not path.exists()


def test_a_client_that_leaves(run, path):
    begin(run, MODELS / "llama", path, "--skip-tokenizer-init")
    at = UnixHttp(path)
    events = at.events("/v1/completions", {"prompt": [1, 2], "max_tokens": 120, "ignore_eos": True, "n": 8})
    next(events)
    events.close()
    at.wait_metric("vllm:num_requests_running", 0)
    at.wait_metric("quire:open_requests", 0)


def test_what_a_killed_server_leaves_is_replaced(run, path):
    first = begin(run, MODELS / "llama", path, "--skip-tokenizer-init")
    first.process.send_signal(signal.SIGKILL)
    first.exit_code()
    for _ in range(100):  # until the frontend of the first, which has the socket too, has ended
        second = run("quire", "serve", MODELS / "llama", "--uds", path, "--skip-tokenizer-init")
        try:
            second.wait_line("listening on")
            break
        except AssertionError:
            assert "another process listens on it" in second.log()
    second.wait_line("serve: ready")
    assert UnixHttp(path).get("/health")[0] == 200


def test_a_server_follows_another(run, path, large):
    """The first finishes its stream while the second has the path, and does not remove its socket."""
    first = begin(run, large, path, "--load-format", "dummy", "--skip-tokenizer-init", "--shutdown-timeout", "100")
    events = UnixHttp(path).events("/v1/completions", {"prompt": [1], "max_tokens": 300, "ignore_eos": True, "detokenize": False})
    next(events)
    first.process.send_signal(signal.SIGTERM)
    first.wait_line("frontend: terminated")  # the path is free then
    begin(run, MODELS / "llama", path, "--skip-tokenizer-init")
    assert UnixHttp(path).get("/health")[0] == 200
    assert [event for event in events][-1]["choices"][0]["finish_reason"] == "length"
    assert first.exit_code() == 0
    assert UnixHttp(path).get("/health")[0] == 200


def test_one_frontend(run, path, tmp_path):
    engine = run("quire-engine", MODELS / "llama", "--listen", f"ipc://{tmp_path}/engine")
    engine.wait_line("ready")
    options = (MODELS / "llama", "--engine", f"ipc://{tmp_path}/engine", "--skip-tokenizer-init", "--uds", path)
    frontend = run("quire-frontend", *options)
    frontend.wait_line("frontend: ready")
    assert len(UnixHttp(path).complete([1, 2], max_tokens=3, return_token_ids=True, detokenize=False)["choices"][0]["token_ids"]) == 3
    second = run("quire-frontend", *options)
    assert second.exit_code() == 5 and "another process listens on it" in second.log()
    shared = run("quire-frontend", *options, "--reuse-port")
    assert shared.exit_code() == 2 and "--reuse-port" in shared.log() and "--uds" in shared.log()
    assert frontend.stop() == 0 and not path.exists()
    (tmp_path / "m").mkdir()  # what fails behind the listening
    (tmp_path / "m/config.json").write_bytes((BUNDLED / "config.json").read_bytes())
    (tmp_path / "m/tokenizer.json").write_text("{}")
    failed = run("quire-frontend", tmp_path / "m", "--engine", f"ipc://{tmp_path}/engine", "--uds", path)
    failed.wait_line("listening on unix:")
    assert failed.exit_code() == 3 and not path.exists(), failed.log()


@pytest.mark.parametrize("bad, why", [("x" * 200, "expected at most 107"), ("no/such/folder", "No such file"), (".", "is no socket")])
def test_paths_that_are_refused(run, tmp_path, bad, why):
    server = run("quire", "serve", MODELS / "llama", "--uds", tmp_path / bad, "--skip-tokenizer-init")
    assert server.exit_code() == 5 and why in server.log() and "--uds" in server.log(), server.log()
