# SPDX-License-Identifier: Apache-2.0
"""Who shares cached prefixes with whom: keys, salts, public prompts, and the answers of one request."""
import re
import time

import openai
import pytest

from servers import BUNDLED, Http, Server

PUBLIC = ("You are the help desk of a public library. Answer briefly, name the shelf, and never promise a book that is not there. "
          "Opening hours are from nine to six; on Sundays the library is closed. Be polite even when the visitor is not. ") * 2


@pytest.fixture(scope="module")
def keyed(tmp_path_factory):
    """A server with two API keys, of which one may steer, and one public system prompt."""
    folder = tmp_path_factory.mktemp("shared")
    shared = folder / "public.txt"
    shared.write_text(PUBLIC + "\n")
    keys = folder / "keys"
    keys.write_text("ant admin\nbee\n")
    keys.chmod(0o600)
    server = Server(BUNDLED, "--served-model-name", "quire-tiny", "--num-gpu-blocks-override", "1024", "--api-key-file", keys,
                    "--prefix-cache-shared", shared, key="ant")
    yield server
    assert server.stop() == 0


def cached(server, key, system, extra=None, n=1):
    """(prompt tokens, those from the cache) of a conversation with that system message."""
    client = openai.OpenAI(base_url=server.url + "/v1", api_key=key, max_retries=0, timeout=60)
    usage = client.chat.completions.create(
        model="quire-tiny", max_tokens=2, temperature=0, n=n, extra_body=extra,
        messages=[{"role": "system", "content": system}, {"role": "user", "content": "Hello there!"}]).usage
    return usage.prompt_tokens, usage.prompt_tokens_details.cached_tokens


def private(word):
    return f"This is a secret about {word} that nobody else may find out by timing. " * 5


def test_keys_do_not_share(keyed):
    n, first = cached(keyed, "ant", private("honey"))
    assert n > 48 and first == 0
    assert cached(keyed, "ant", private("honey"))[1] >= n - 16
    assert cached(keyed, "bee", private("honey"))[1] == 0
    assert cached(keyed, "bee", private("honey"))[1] >= n - 16


def test_salt_and_switch(keyed):
    n, first = cached(keyed, "ant", private("wax"))
    assert first == 0
    assert cached(keyed, "ant", private("wax"), {"cache_salt": "one"})[1] == 0
    assert cached(keyed, "ant", private("wax"), {"cache_salt": "one"})[1] >= n - 16
    assert cached(keyed, "bee", private("wax"), {"cache_salt": "one"})[1] == 0
    assert cached(keyed, "ant", private("wax"), {"enable_prefix_caching": False})[1] == 0
    assert cached(keyed, "ant", private("wax"))[1] >= n - 16


def test_public_prompts_are_shared(keyed):
    n, _ = cached(keyed, "ant", PUBLIC)
    again = cached(keyed, "ant", PUBLIC)[1]
    other = cached(keyed, "bee", PUBLIC)[1]
    assert n > 48 and again >= n - 16
    assert 16 <= other <= again  # the public part alone
    longer = PUBLIC + private("queens")
    assert cached(keyed, "bee", longer)[1] == other - other % 16
    assert cached(keyed, "ant", longer)[1] == other - other % 16  # what came after it stays bee's
    assert cached(keyed, "ant", longer)[1] > other


def test_reset(keyed):
    cached(keyed, "ant", private("larvae"))
    n, found = cached(keyed, "ant", private("larvae"))
    assert found >= n - 16
    connection, answer = keyed.raw("POST", "/reset_prefix_cache")
    assert answer.status == 200
    connection.close()
    assert cached(keyed, "ant", private("larvae"))[1] == 0
    stranger = Http(keyed.url, key="wasp")
    connection, answer = stranger.raw("POST", "/reset_prefix_cache")
    assert answer.status == 401
    connection.close()


@pytest.mark.parametrize("extra", [{}, {"use_beam_search": True}])
def test_one_prompt_is_computed_once(keyed, extra):
    """n answers share the prompt's blocks: its tokens are computed once, but for the last block's."""
    def looked_up_and_found():
        text = keyed.get("/metrics")[1]
        return [float(re.search(rf"vllm:prefix_cache_{what}_total\{{.*\}} (\S+)", text)[1]) for what in ("queries", "hits")]
    settled = (-1, -1)
    while settled != (settled := looked_up_and_found()):
        time.sleep(1.5)  # a heartbeat brings the engine's figures
    n, found = cached(keyed, "ant", private("beams" if extra else "answers"), {**extra, "ignore_eos": True}, n=4)
    assert found == 0  # the first of them computed it
    keyed.wait_metric_above("vllm:prefix_cache_queries_total", settled[0] + 4 * n - 1)
    now = looked_up_and_found()
    computed = (now[0] - settled[0]) - (now[1] - settled[1])
    assert n <= computed <= n + 8 * 17, (n, computed)
