# SPDX-License-Identifier: Apache-2.0
"""Real programs from QUIRE_BIN (default build/dev/bin) on free ports, and plain HTTP to them."""
import http.client
import json
import os
import pathlib
import re
import signal
import subprocess
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("QUIRE_BIN", ROOT / "build/dev/bin")).resolve()
BUNDLED = ROOT / "deploy/model/quire-tiny"
MODELS = ROOT / "tests/data/models"
START_S = 60
HANG_S = 120  # what has not happened by then never will: a busy machine takes a minute for what takes a second on an idle one


class Process:
    """One program; its log is collected and can be waited for."""

    def __init__(self, *args, env=None):
        self.lines = []
        self.news = threading.Condition()
        self.args = [str(a) for a in args]
        self.process = subprocess.Popen(
            self.args, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace",
            env={**os.environ, **(env or {})})
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        for line in self.process.stderr:
            with self.news:
                self.lines.append(line.rstrip("\n"))
                self.news.notify_all()
        with self.news:
            self.lines.append(None)
            self.news.notify_all()

    def exit_code(self, seconds=HANG_S):
        """Of a process that ends by itself; its log is complete then."""
        code = self.process.wait(seconds)
        self.reader.join(seconds)
        return code

    def log(self):
        return "\n".join(line for line in self.lines if line is not None)

    def wait_line(self, pattern, seconds=START_S, start=0):
        """The match of the first log line from index `start` on that has `pattern`."""
        deadline = time.monotonic() + seconds
        with self.news:
            while True:
                for line in self.lines[start:]:
                    if line is None:
                        raise AssertionError(f"{self.args[0]} ended before /{pattern}/:\n{self.log()}")
                    if match := re.search(pattern, line):
                        return match
                left = deadline - time.monotonic()
                if left <= 0:
                    raise AssertionError(f"no /{pattern}/ within {seconds} s:\n{self.log()}")
                self.news.wait(left)

    def children(self, name, of=None):
        """Process ids of our children (or those of process `of`) whose executable is `name`."""
        found = []
        for entry in os.listdir("/proc"):
            if not entry.isdigit():
                continue
            try:
                fields = pathlib.Path("/proc", entry, "stat").read_text().rsplit(")", 1)[1].split()
                exe = os.path.basename(os.readlink(f"/proc/{entry}/exe"))
            except OSError:
                continue
            if int(fields[1]) == (of or self.process.pid) and exe == name:
                found.append(int(entry))
        return sorted(found)

    def wait_children(self, name, n=1, of=None):
        """As children(), when there are n of them: a process that starts another one, or starts it again, takes a while."""
        deadline = time.monotonic() + HANG_S
        while len(found := self.children(name, of)) != n:
            assert time.monotonic() < deadline, f"{len(found)} processes {name}, not {n}:\n{self.log()}"
            time.sleep(0.01)
        return found

    def stop(self, seconds=HANG_S):
        """SIGTERM; the exit code. The log is complete then."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.exit_code(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"did not stop within {seconds} s:\n{self.log()}")


class Http:
    """Plain requests to one server, a connection each."""

    def __init__(self, url, key=None):
        self.url = url
        self.host, self.port = re.fullmatch(r"http://(.+):(\d+)", url).groups()
        self.key = key

    def connection(self, timeout):
        return http.client.HTTPConnection(self.host, int(self.port), timeout=timeout)

    def raw(self, method, path, body=None, headers=None, timeout=60):
        connection = self.connection(timeout)
        head = {"Content-Type": "application/json"} if body is not None else {}
        if self.key:
            head["Authorization"] = f"Bearer {self.key}"
        head.update(headers or {})
        data = body if isinstance(body, (bytes, str, type(None))) else json.dumps(body)
        connection.request(method, path, data, head)
        return connection, connection.getresponse()

    def get(self, path, **more):
        connection, answer = self.raw("GET", path, **more)
        text = answer.read().decode()
        connection.close()
        return answer.status, text

    def post(self, path, body, **more):
        """(status, JSON)"""
        connection, answer = self.raw("POST", path, body, **more)
        text = answer.read().decode()
        connection.close()
        return answer.status, json.loads(text)

    def complete(self, prompt, **more):
        status, answer = self.post("/v1/completions", {"prompt": prompt, **more})
        assert status == 200, answer
        return answer

    def events(self, path, body, **more):
        """The data of each event as it comes; comments are yielded as strings."""
        connection, answer = self.raw("POST", path, {**body, "stream": True}, **more)
        assert answer.status == 200, answer.read()
        try:
            for line in answer:
                line = line.decode().rstrip("\n")
                if line.startswith("data: [DONE]"):
                    return
                if line.startswith("data: "):
                    yield json.loads(line[6:])
                elif line:
                    yield line
        finally:
            connection.close()

    def metric(self, name, **labels):
        """The sum of the samples of that name (with those labels)."""
        status, text = self.get("/metrics")
        assert status == 200, text
        total, found = 0.0, False
        for line in text.splitlines():
            match = re.fullmatch(r"([^{ ]+)\{(.*)\} (\S+)", line)
            if match and match[1] == name and all(f'{k}="{v}"' in match[2] for k, v in labels.items()):
                total += float(match[3])
                found = True
        assert found, f"no metric {name} {labels} in\n{text}"
        return total

    def wait_metric(self, name, want, seconds=HANG_S, **labels):
        deadline = time.monotonic() + seconds
        while (value := self.metric(name, **labels)) != want:
            assert time.monotonic() < deadline, f"{name} is {value}, not {want}, after {seconds} s"
            time.sleep(0.05)

    def wait_metric_above(self, name, floor, seconds=HANG_S, **labels):
        """For the engine's figures, which come with its heartbeats."""
        deadline = time.monotonic() + seconds
        while (value := self.metric(name, **labels)) <= floor:
            assert time.monotonic() < deadline, f"{name} is {value}, not above {floor}, after {seconds} s"
            time.sleep(0.05)


class Server(Http):
    """quire serve MODEL, ready."""

    def __init__(self, model, *options, key=None, env=None, wait=True):
        self.process = Process(BIN / "quire", "serve", model, "--port", "0", *options, env=env)
        super().__init__(self.process.wait_line(r"listening on (http://\S+)")[1], key)
        if wait:
            self.process.wait_line(r"serve: ready")

    def stop(self, **more):
        return self.process.stop(**more)

    def children(self, name, of=None):
        return self.process.children(name, of)

    def wait_children(self, name, n=1, of=None):
        return self.process.wait_children(name, n, of)

    def n_connection(self, pid):
        """How many connections of clients that process (a frontend) has accepted and not closed."""
        rows = [line.split() for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]]
        inodes = {row[9] for row in rows if row[3] == "01" and int(row[1].split(":")[1], 16) == int(self.port)}
        n = 0
        for fd in os.listdir(f"/proc/{pid}/fd"):
            try:
                n += os.readlink(f"/proc/{pid}/fd/{fd}").removeprefix("socket:[").rstrip("]") in inodes
            except OSError:  # closed since it was listed
                continue
        return n

    def wait_read(self, *sockets):
        """Until the server has read all that was sent on these connections."""
        ours = {f"{s.getsockname()[1]:04X}" for s in sockets}
        deadline = time.monotonic() + HANG_S
        while True:
            rows = [line.split() for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]]
            # a row is one end of a connection: what it has not sent on yet, what it has not read yet
            sent = [row[4].split(":")[0] for row in rows if row[1].split(":")[1] in ours]
            read = [row[4].split(":")[1] for row in rows if row[2].split(":")[1] in ours and int(row[1].split(":")[1], 16) == int(self.port)]
            if len(sent) == len(read) == len(ours) and all(int(n, 16) == 0 for n in sent + read):
                return
            assert time.monotonic() < deadline, (sent, read)
            time.sleep(0.01)
