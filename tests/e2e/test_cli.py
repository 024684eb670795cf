# SPDX-License-Identifier: Apache-2.0
"""The command people type."""
import re
import subprocess

import pytest
from servers import BIN, BUNDLED, MODELS


def quire(*args, stdin=""):
    return subprocess.run([BIN / "quire", *map(str, args)], capture_output=True, text=True, input=stdin, timeout=60)


def test_help_lists_the_verbs():
    out = quire("help")
    assert out.returncode == 0
    for verb in ("serve", "engine", "frontend", "worker", "generate", "run-batch", "chat", "tokenize", "parse", "render", "keygen", "distill", "teach"):
        assert f"\n  {verb} " in out.stdout
    assert quire().returncode == 2
    assert quire("--version").stdout.startswith("quire 0.")


def test_unknown_verb_suggests():
    out = quire("srve")
    assert out.returncode == 2 and 'did you mean "quire serve"' in out.stderr
    assert "did you mean" not in quire("elephant").stderr


def test_every_verb_has_help_and_refuses_nonsense():
    for verb in ("serve", "engine", "frontend", "generate", "run-batch", "chat", "tokenize", "parse", "render", "keygen", "distill", "teach"):
        out = quire(verb, "--help")
        assert out.returncode == 0 and "usage: " in out.stdout and "--help" in out.stdout
        flag, name = re.search(r"for\s+example\s+(--\S+)\s+by\s+(QUIRE_\w+)\.", out.stdout).groups()
        assert f"  {flag} " in out.stdout and name == "QUIRE_" + flag[2:].upper().replace("-", "_")
        wrong = quire(verb, "--no-such-flag")
        assert wrong.returncode == 2 and "--no-such-flag" in wrong.stderr


def test_verbs_that_find_nothing_to_work_with_exit_alike(tmp_path):
    for verb in (("tokenize",), ("render",), ("schema",), ("generate", "--prompt", "x")):
        gone = quire(verb[0], tmp_path / "gone", *verb[1:])
        assert gone.returncode == 3 and "gone" in gone.stderr and gone.stdout == "", verb
    unknown = quire("parse", "--tool-call-parser", "hermees")
    assert unknown.returncode == 2 and "hermees" in unknown.stderr


def test_serve_says_what_is_wrong_with_the_address(run):
    process = run("quire", "serve", BUNDLED, "--host", "192.0.2.1")
    assert process.exit_code(10) == 5 and "cannot listen" in process.log()


def test_chat_through_a_pipe(bundled):
    out = quire("chat", "--url", bundled.url, "--temperature", "0", "--max-tokens", "30", stdin="Hello!\n\nHello!\n")
    assert out.returncode == 0 and out.stderr == ""
    lines = out.stdout.splitlines()
    assert len(lines) >= 2 and all(lines)
    first = quire("chat", "--url", bundled.url + "/v1/", "--temperature", "0", "--max-tokens", "30", stdin="Hello!\n")
    assert first.stdout.splitlines()[0] == lines[0]
    reset = quire("chat", "--url", bundled.url, "--temperature", "0", "--max-tokens", "30", stdin="Hello!\n/reset\nHello!\n/exit\nx\n")
    assert reset.stdout == first.stdout * 2
    assert quire("chat", "--url", bundled.url, "--system", "You are quire.", "--max-tokens", "5", stdin="Hi\n").returncode == 0


def test_chat_errors():
    nobody = quire("chat", "--port", "1", stdin="Hello!\n")
    assert nobody.returncode == 1 and "cannot connect to" in nobody.stderr and nobody.stdout == ""
    assert quire("chat", "--url", "ftp://x").returncode == 2


def test_chat_shows_refusals(bundled):
    out = quire("chat", "--url", bundled.url, "--model", "other", stdin="Hello!\n")
    assert out.returncode == 1 and "does not exist" in out.stderr


def test_nothing_is_said_where_sys_is_not_mounted():
    """A plain chroot: processors are then those that the process may use, without a word of hwloc's on standard error."""
    alone = ["unshare", "--mount", "--propagation", "private", "sh", "-c"]
    if subprocess.run([*alone, "mount -t tmpfs none /sys"], capture_output=True, check=False).returncode:
        pytest.skip("mounts are not permitted here")
    done = subprocess.run([*alone, 'mount -t tmpfs none /sys && exec "$0" "$@"', str(BIN / "quire"), "generate", str(MODELS / "llama"), "--raw", "--prompt-ids", "1,2,3",
                           "--max-tokens", "2"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0 and done.stdout and "hwloc" not in done.stderr, done
