# SPDX-License-Identifier: Apache-2.0
"""quire chat as a person meets it: at a terminal, with keys pressed and a screen read."""
import contextlib
import fcntl
import http.server
import json
import os
import pathlib
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import threading
import time

import pytest

from servers import BIN, BUNDLED, Server

CTRL_C, CTRL_D, UP, BACKSPACE, TAB, ENTER = "\x03", "\x04", "\x1b[A", "\x7f", "\t", "\r"
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[()][A-Z0-9]|\x1b[=>]|[\x07\x0f]")
TITLE = "\x1b]0;owned\x07\x9b31m"  # sets a terminal's title and its colour, were it printed as it is
LONG = "Once upon a time"  # the bundled model goes on for two thousand tokens
WAIT_S = 30


class Terminal:
    """quire chat on a terminal of its own."""

    def __init__(self, home, *args, columns=80):
        self.screen, self.at = "", 0
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
            os.execve(BIN / "quire", ["quire", "chat", *map(str, args)], {
                "HOME": str(home), "TERM": "xterm", "LC_ALL": "C.UTF-8", "PATH": os.environ["PATH"]})
        self.code = None

    def read(self, seconds):
        """Some more of the screen; False: nothing came, or the program is over."""
        if not select.select([self.fd], [], [], seconds)[0]:
            return False
        try:
            data = os.read(self.fd, 65536)
        except OSError:
            return False
        self.screen += ESCAPES.sub("", data.decode(errors="replace"))
        return bool(data)

    def expect(self, pattern):
        """The match of a pattern in what was not read yet; what stands before it is passed over."""
        deadline = time.monotonic() + WAIT_S
        while not (match := re.compile(pattern, re.S).search(self.screen, self.at)):
            assert time.monotonic() < deadline, f"no /{pattern}/ in {self.screen[self.at:]!r}"
            if not self.read(1) and self.ended():
                raise AssertionError(f"ended before /{pattern}/: {self.screen[self.at:]!r}")
        self.at = match.end()
        return match

    def press(self, keys):
        os.write(self.fd, keys.encode())

    def say(self, line, answer=r"\r\n.*?\r\n> $"):
        """A line, and the screen from there to the next prompt."""
        self.press(line + ENTER)
        return self.expect(re.escape(line[-8:]) + answer)[0]

    def ended(self):
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.code = os.waitstatus_to_exitcode(status) if pid else None
        return self.code is not None

    def end(self):
        """The exit code; the program ends by itself."""
        deadline = time.monotonic() + WAIT_S
        while not self.ended():
            assert time.monotonic() < deadline, self.screen
            self.read(0.1)
        return self.code

    def close(self):
        if not self.ended():
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self.fd)


@pytest.fixture(scope="module")
def server():
    s = Server(BUNDLED, "--num-gpu-blocks-override", "512")
    yield s
    assert s.stop() == 0


@pytest.fixture
def chat(server, tmp_path):
    """chat(*args): a terminal at the prompt."""
    open_ones = []

    def start(*args, **more):
        t = Terminal(tmp_path, "--url", server.url, "--temperature", "0", *args, **more)
        open_ones.append(t)
        t.expect(r"quire chat with (\S+) at http.*?/help lists the commands.*?> $")
        return t
    yield start
    for t in open_ones:
        t.close()


def messages(t, path):
    """What /save writes."""
    t.say(f"/save {path}", r".*?\(saved\).*?> $")
    return json.loads(pathlib.Path(path).read_text())


def test_a_conversation(chat, tmp_path):
    t = chat()
    assert "Hello! How can I help you?" in t.say("Hello!")
    assert "I am the small model" in t.say("Who are you?")
    t.press(UP + UP + ENTER)  # from the history
    t.expect(r"Hello!\r\n.*?\r\n> $")
    said = messages(t, tmp_path / "talk.json")["messages"]
    assert [m["role"] for m in said] == ["user", "assistant"] * 3 and said[0] == said[4] == {"role": "user", "content": "Hello!"}
    t.press(CTRL_D)
    assert t.end() == 0
    kept = tmp_path / ".local/state/quire/chat_history"
    assert kept.stat().st_mode & 0o777 == 0o600 and "Who" in kept.read_text()
    later = chat()
    later.press(UP + UP)  # the history of the last time: /save, then Hello!
    later.expect("Hello!")
    later.press(ENTER)
    later.expect(r"How can I help you\?.*?> $")
    later.press("/quit" + ENTER)
    assert later.end() == 0


def test_ctrl_c_stops_the_answer_and_not_the_program(chat, tmp_path):
    t = chat()
    t.press(LONG + ENTER)
    t.expect("tool_call")
    t.press(CTRL_C)
    t.expect(r"\(stopped\).*?> $")
    assert "Hello! How can I help you?" in t.say("Hello!")
    said = messages(t, tmp_path / "talk.json")["messages"]
    assert len(said) == 4 and said[1]["role"] == "assistant" and len(said[1]["content"]) < 2000
    t.press("something")
    t.expect("something")
    t.press(CTRL_C)  # the line is gone, the program is not
    t.expect(r"\^C.*?again or Ctrl-D to quit\).*?> $")
    t.press("other" + CTRL_C)  # again a line that is gone
    t.expect(r"\^C.*?again or Ctrl-D to quit\).*?> $")
    t.press(CTRL_C)
    assert t.end() == 0


def test_messages_of_several_lines(chat, tmp_path):
    t = chat("--max-tokens", "4")
    t.press("one\\" + ENTER)
    t.expect(r"\.\.\. $")
    t.say("two")
    t.press('"""' + ENTER)
    t.expect(r"\.\.\. $")
    t.press("/reset is text here" + ENTER)
    t.expect(r"\.\.\. $")
    t.say('and "more"""')
    t.press('"""given' + ENTER)
    t.expect(r"\.\.\. $")
    t.press("up" + CTRL_C)
    t.expect(r"\^C.*?> $")
    t.press("\x1b[200~pasted\r\ttext\x03\r/reset\r\x1b[201~")  # as terminals send a paste
    t.expect("/reset")
    assert not t.read(0.5) or "> " not in t.screen[t.at:].split("/reset")[-1]
    t.press(" end" + ENTER)
    t.expect(r"end\r\n.*?\r\n> $")
    said = [m["content"] for m in messages(t, tmp_path / "talk.json")["messages"] if m["role"] == "user"]
    assert said == ["one\ntwo", '/reset is text here\nand "more', "pasted\n\ttext\x03\n/reset\n end"]


def test_characters_not_bytes(chat, tmp_path):
    t = chat("--max-tokens", "4")
    t.press("h\u00e9\u4e16x" + BACKSPACE * 2 + "\u754c")
    t.say("!")
    assert messages(t, tmp_path / "talk.json")["messages"][0]["content"] == "h\u00e9\u754c!"


def test_commands(chat, tmp_path):
    t = chat("--system", "You are quire.", "--max-tokens", "20")
    listed = t.say("/help", r".*?stops an answer.*?> $")
    assert all(name in listed for name in ("/reset", "/retry", "/save", "/system", "/tools", "/quit"))
    assert "You are quire." in t.say("/system", r".*?\).*?> $")
    first = t.say("Hello!").split("Hello!", 1)[1]
    again = t.say("/retry", r".*?\r\n> $").split("/retry", 1)[1]
    assert again == first
    t.say("/system Be brief.", r".*?is set\).*?> $")
    said = messages(t, tmp_path / "one.json")
    assert [m["role"] for m in said["messages"]] == ["system", "user", "assistant"]
    assert said["messages"][0]["content"] == "Be brief." and said["model"]
    t.say("/reset", r".*?a new conversation\).*?> $")
    t.say("/system off", r".*?is removed\).*?> $")
    assert messages(t, tmp_path / "two.json")["messages"] == []
    (tmp_path / "there").write_text("kept")
    assert "File exists" in t.say(f"/save {tmp_path}/there", r".*?quire chat: .*?> $") and (tmp_path / "there").read_text() == "kept"
    t.say(f"/save {tmp_path}/blank.json  ", r".*?\(saved\).*?> $")
    assert (tmp_path / "blank.json").exists()
    assert f"{tmp_path}: is a folder" in t.say(f"/save {tmp_path}", r".*?quire chat: .*?> $").replace("\r\n", "")
    t.press("/system Be\\" + ENTER)
    t.expect(r"\.\.\. $")
    t.say("very brief.  ", r".*?is set\).*?> $")
    t.press("/etc/hosts\\" + ENTER)  # no command: a message
    t.expect(r"\.\.\. $")
    t.say("what is it?")
    assert [m["content"] for m in messages(t, tmp_path / "three.json")["messages"]][:2] == ["Be\nvery brief.", "/etc/hosts\nwhat is it?"]
    t.say("/system off", r".*?is removed\).*?> $")
    t.say("/reset", r".*?a new conversation\).*?> $")
    assert "no message to answer" in t.say("/retry", r".*?\).*?> $")
    assert "unknown command" in t.say("/nothing", r".*?\).*?> $")
    t.press("/sys" + TAB)
    t.expect(r"/sys\s*tem")
    t.press(CTRL_C)
    t.expect(r"\^C.*?> $")
    t.press(f"/save {tmp_path}/the" + TAB)
    t.expect(r"the\s*re")


def test_tools(chat, tmp_path):
    (tmp_path / "tools.json").write_text(json.dumps([{"type": "function", "function": {
        "name": "get_weather", "description": "Weather in a city.", "parameters": {
            "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}]))
    (tmp_path / "bad.json").write_text("{")
    t = chat()
    assert "no tools" in t.say("/tools", r".*?\).*?> $")
    assert "not valid JSON" in t.say(f"/tools {tmp_path}/bad.json", r".*?quire chat: .*?> $")
    assert "tool get_weather: Weather in a city." in t.say(f"/tools {tmp_path}/tools.json", r".*?\(tool .*?\).*?> $")
    t.press("What is the weather in Oslo?" + ENTER)
    t.expect(r'tool call get_weather\(\{"city": "Oslo"\}\).*?result of get_weather> $')
    t.press('{"temperature": 4}' + ENTER)
    assert "4" in t.expect(r"temperature.*?\r\n> $")[0]
    said = messages(t, tmp_path / "talk.json")
    assert [m["role"] for m in said["messages"]] == ["user", "assistant", "tool", "assistant"]
    assert said["messages"][2]["tool_call_id"] == said["messages"][1]["tool_calls"][0]["id"] and len(said["tools"]) == 1
    t.press("What is the weather in Rome?" + ENTER)
    t.expect(r"result of get_weather> $")
    t.press(CTRL_C)
    t.expect(r"calls are discarded.*?> $")
    assert messages(t, tmp_path / "later.json")["messages"][-1] == {"role": "user", "content": "What is the weather in Rome?"}
    assert "no tools" in t.say("/tools off", r".*?\).*?> $")


def test_words_are_wrapped_at_the_width(chat):
    t = chat("--verbose", columns=30)
    screen = t.say("Who are you?")
    lines = screen.split("\r\n")[1:-1]
    told = [line for line in lines if line.startswith("[") and "tokens" in line]
    text = lines[:lines.index(told[0])]
    assert len(text) >= 3 and all(len(line) <= 30 for line in text) and " ".join(text).startswith("I am the small model that comes")


def children(pid):
    out = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True).stdout
    return [int(p) for p in out.split()]


def gone(pid):
    try:
        return "State:\tZ" in pathlib.Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return True


@pytest.mark.parametrize("how", ["quit", "kill"])
def test_with_a_model_the_program_runs_it(tmp_path, how):
    """And no process of it is left, however the program ends."""
    t = Terminal(tmp_path, BUNDLED, "--temperature", "0", "--max-model-len", "256", "--num-gpu-blocks-override", "64")
    t.expect(r"quire chat with \S*quire-tiny.*?> $")
    assert "Hello! How can I help you?" in t.say("Hello!")
    family = children(t.pid)
    family += [grandchild for child in family for grandchild in children(child)]
    assert len(family) >= 3
    if how == "quit":
        t.press("/quit" + ENTER)
        assert t.end() == 0
    else:
        os.kill(t.pid, signal.SIGKILL)
    deadline = time.monotonic() + WAIT_S
    while not all(gone(pid) for pid in family):
        assert time.monotonic() < deadline, family
        time.sleep(0.05)
    t.close()


@pytest.mark.parametrize("number, how", [(signal.SIGTERM, r"exited with code 0"), (signal.SIGKILL, r"was killed by signal 9 \(Killed\)")])
def test_the_end_of_the_models_server_is_explained(tmp_path, number, how):
    """With the last lines of its log; the conversation can be saved."""
    t = Terminal(tmp_path, BUNDLED, "--temperature", "0", "--num-gpu-blocks-override", "512")
    t.expect(r"quire chat with \S*quire-tiny.*?> $")
    t.say("Hello!")
    server, = children(t.pid)
    family = [server, *children(server)]
    os.kill(server, number)
    deadline = time.monotonic() + WAIT_S
    while not all(gone(pid) for pid in family):
        assert time.monotonic() < deadline, family
        time.sleep(0.05)
    t.press("Who are you?" + ENTER)
    t.expect(rf"server {how}; the end of its log:\r\n(  \w+: [^\r]*\r\n){{1,8}}\(use /save FILE to save.*?> $")
    assert [m["role"] for m in messages(t, tmp_path / "talk.json")["messages"]] == ["user", "assistant"]
    t.press("/quit" + ENTER)
    assert t.end() == 0
    t.close()


def test_help_fits_the_terminal(chat):
    t = chat(columns=50)
    listed = t.say("/help", r".*?its\s+result\.\r\n> $")
    assert max(map(len, listed.split("\r\n"))) <= 50 and "show, set or remove" in " ".join(listed.split())


def test_a_context_that_is_full_names_reset(tmp_path):
    t = Terminal(tmp_path, BUNDLED, "--temperature", "0", "--max-tokens", "8", "--max-model-len", "64", "--num-gpu-blocks-override", "16")
    t.expect(r"quire chat with \S*quire-tiny.*?> $")
    for _ in range(8):
        if "maximum context" in (said := t.say("Hello!")):
            break
    assert "/reset starts a new one" in said
    t.say("/reset", r".*?a new conversation\).*?> $")
    assert "/reset" not in t.say("Hello! " * 40).split("400")[1]  # the message alone is too long
    t.close()


@pytest.mark.parametrize("template, cause", [(None, "the model has no chat template"), ("{% if %}", "chat template line 1, column 7"), ("", "is empty")])
def test_a_model_that_cannot_chat_is_told_at_the_start(tmp_path, template, cause):
    model = tmp_path / "m"
    model.mkdir()
    for path in BUNDLED.iterdir():
        (model / path.name).symlink_to(path)
    config = json.loads((BUNDLED / "tokenizer_config.json").read_text())
    config.pop("chat_template")
    (model / "tokenizer_config.json").unlink()
    (model / "tokenizer_config.json").write_text(json.dumps(config))
    if template is not None:
        (model / "chat_template.jinja").write_text(template)
    done = subprocess.run([BIN / "quire", "chat", model, "--num-gpu-blocks-override", "128"], capture_output=True, text=True, timeout=60, input="Hello!\n")
    assert done.returncode == 3 and done.stdout == "" and done.stderr.count("\n") == 1, done
    assert cause in done.stderr and "/v1/" not in done.stderr


@contextlib.contextmanager
def stand_in(delta, status=200):
    """The address of a server whose model has control characters in its name, and answers with this delta, or an error."""
    answer = {"choices": [{"delta": delta}]} if status == 200 else {"error": {"message": "refused" + TITLE}}

    class Handler(http.server.BaseHTTPRequestHandler):
        def reply(self, status, body):
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body.encode())

        def do_GET(self):
            self.reply(200, json.dumps({"data": [{"id": "tiny" + TITLE}]}))

        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            text = json.dumps(answer, ensure_ascii=False)
            self.reply(status, text if status != 200 else f"data: {text}\n\ndata: [DONE]\n\n")

        def log_message(self, *args):
            pass
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as s:
        threading.Thread(target=s.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{s.server_port}"
        s.shutdown()


def test_no_answer_steers_the_terminal(tmp_path):
    """Each part of an answer that is printed: text, reasoning, a function's name, an error, the model's name."""
    call = {"index": 0, "id": "1", "function": {"name": "look\n" + TITLE, "arguments": json.dumps({"a": TITLE}, ensure_ascii=False)}}
    with stand_in({"reasoning": "so" + TITLE, "content": "yes" + TITLE, "tool_calls": [call]}) as url:
        t = Terminal(tmp_path, "--url", url)
        t.expect(r"quire chat with tiny\]0;owned31m at http.*?> $")
        t.press("Hello!" + ENTER)
        t.expect(r"so\]0;owned31m.*?yes\]0;owned31m.*?tool call look.*?\]0;owned31m\(\{.*?\}\).*?result of look \]0;owned31m> $")
        assert not re.search("[\x07\x1b\x9b]", t.screen)
        t.close()
    for delta, status, said in (({"reasoning": "hm\té" + TITLE, "content": "yes"}, 200, "hm\té]0;owned31m"), ({}, 400, "refused]0;owned31m")):
        with stand_in(delta, status) as url:
            done = subprocess.run([BIN / "quire", "chat", "--url", url], capture_output=True, text=True, timeout=60, input="Hello!\n")
        assert said in done.stderr and not re.search("[\x07\x1b\x9b]", done.stderr), done


def test_a_pipe_gets_an_answer_as_it_is():
    with stand_in({"content": "yes" + TITLE}) as url:
        done = subprocess.run([BIN / "quire", "chat", "--url", url], capture_output=True, text=True, timeout=60, input="Hello!\n")
    assert done.stdout == "yes" + TITLE + "\n"


def test_answers_that_are_lost_are_a_failure(server):
    with open("/dev/full", "wb") as full:
        done = subprocess.run([BIN / "quire", "chat", "--url", server.url], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, input="Hello!\n")
    assert done.returncode == 1 and "cannot write to standard output" in done.stderr, done


def test_what_is_wrong_is_said_at_once(tmp_path):
    for args, code, said in ((("--port", "1"), 1, "cannot connect to http://127.0.0.1:1: Connection refused \\(start a server with `quire serve MODEL`"),
                             (("/nowhere",), 3, "/nowhere: no such folder"), ((BUNDLED, "--url", "http://x"), 2, "are both given"),
                             (("--tools", tmp_path / "none"), 2, "No such file"), ((BUNDLED, "--dtype", "int3"), 3, "--dtype")):
        t = Terminal(tmp_path, *args)
        t.expect(said)
        assert t.end() == code
        t.close()
