# SPDX-License-Identifier: Apache-2.0
"""What those who train in a loop do: sleep, wake up, pause, resume; requests meanwhile wait and give the same tokens."""
import json
import threading

import pytest

from servers import MODELS

BODY = {"prompt": [5, 6, 7], "max_tokens": 8, "temperature": 0, "ignore_eos": True}


@pytest.fixture
def server(start):
    return start(MODELS / "llama", "--skip-tokenizer-init", "--dtype", "float32", "--num-gpu-blocks-override", "64", "--api-key", "k", key="k")


def post(server, path):
    connection, answer = server.raw("POST", path)
    status, body = answer.status, answer.read()
    connection.close()
    return status, body


def state(server, name):
    return json.loads(server.get("/" + name)[1])[name]


@pytest.mark.parametrize("begin, end, name", [("/sleep", "/wake_up", "is_sleeping"), ("/sleep?level=2", "/wake_up", "is_sleeping"),
                                              ("/pause?mode=keep", "/resume", "is_paused")])
def test_rest_and_go_on(server, begin, end, name):
    want = server.post("/v1/completions", BODY)[1]["choices"][0]["token_ids"]
    assert not state(server, name)
    assert post(server, begin) == (200, b"") and state(server, name)
    assert post(server, begin) == (200, b"")  # again is fine
    answers = []
    thread = threading.Thread(target=lambda: answers.append(server.post("/v1/completions", BODY)))
    thread.start()
    server.wait_metric("vllm:num_requests_waiting", 1)
    assert not answers
    assert post(server, end) == (200, b"") and not state(server, name)
    thread.join()
    assert answers[0][1]["choices"][0]["token_ids"] == want


def test_refused(server):
    for path, param in [("/sleep?level=3", "level"), ("/pause", "mode"), ("/pause?mode=abort", "mode")]:
        status, body = post(server, path)
        assert status == 400 and json.loads(body)["error"]["param"] == param
    server.key = None
    for path in ["/sleep", "/wake_up", "/pause?mode=keep", "/resume"]:
        assert post(server, path)[0] == 401
