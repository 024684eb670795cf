# SPDX-License-Identifier: Apache-2.0
"""What a run of tests/gpu/run.py has found: OUT/results.json, written anew after every job, so that nothing is lost whatever
ends the run; and the programs that it starts, each with a time limit, in a process group that is ended with it."""
import hashlib
import json
import os
import signal
import subprocess
import time

LOG_TAIL = 100_000  # bytes of one program's output that are kept


class Failed(Exception):
    """A job did not hold; rows are what it found all the same."""

    def __init__(self, why, rows=()):
        super().__init__(why)
        self.rows = list(rows)


class Skipped(Exception):
    """It cannot be done here, and why; no failure."""


class NoTime(Exception):
    """The run's time is up; the job is done by a later run."""


def digest(paths):
    """Names the programs: a result of others is no result. By content, so that copying them changes nothing."""
    whole = hashlib.sha256()
    for path in paths:
        if path.exists():
            with open(path, "rb") as source:
                whole.update(path.name.encode() + hashlib.file_digest(source, "sha256").digest())
    return whole.hexdigest()[:16]


class Store:
    """results.json: {"card", "programs", "jobs": {"PART/JOB": {"status", "seconds", "rows", "why"}}}"""

    def __init__(self, out, card, programs):
        self.path, self.log_path = out / "results.json", out / "log.txt"
        self.data = {"card": card, "programs": programs, "jobs": {}}
        try:
            before = json.loads(self.path.read_text())
            if (before["card"], before["programs"]) == (card, programs) and isinstance(before["jobs"], dict):
                self.data = before
            elif before["jobs"]:
                print(f"{self.path} is of another card or of other programs; begun anew", flush=True)
        except FileNotFoundError:
            pass
        except (ValueError, KeyError, TypeError, AttributeError):
            print(f"{self.path} cannot be read; begun anew", flush=True)

    def get(self, name):
        return self.data["jobs"].get(name, {})

    def rows(self, part):
        return [row for name, job in self.data["jobs"].items() if name.split("/")[0] == part for row in job["rows"]]

    def put(self, name, **job):
        self.data["jobs"][name] = job
        self.write(self.path, json.dumps(self.data, indent=1))

    @staticmethod
    def write(path, text):
        """The whole text or what was there before."""
        new = path.with_name(path.name + ".new")
        new.write_text(text)
        os.replace(new, path)

    def log(self, text):
        with open(self.log_path, "a", errors="replace") as out:
            out.write(text if text.endswith("\n") else text + "\n")


class Child:
    """A program of ours with its output in files; ended, with all it started, at the end of the block."""

    def __init__(self, store, work, args, env=None, gently=False):
        """gently: asked to end first, for what has children in groups of their own."""
        self.args, self.store, self.gently = [str(a) for a in args], store, gently
        self.out_path, self.err_path = work / "stdout", work / "stderr"
        with open(self.out_path, "wb") as out, open(self.err_path, "wb") as err:
            self.start = time.monotonic()
            self.process = subprocess.Popen(self.args, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True,
                                            env={**os.environ, **(env or {})})

    def __enter__(self):
        return self

    def output(self):
        return self.out_path.read_text(errors="replace")

    def errors(self):
        return self.err_path.read_text(errors="replace")

    def __exit__(self, *_):
        if self.gently and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(15)
            except subprocess.TimeoutExpired:
                pass
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        rc = self.process.wait()
        took = time.monotonic() - self.start
        self.store.log(f"$ {' '.join(self.args)}\n{self.output()[-LOG_TAIL:]}\n{self.errors()[-LOG_TAIL:]}\n"
                       f"-- exit {rc} after {took:.1f} s\n")


class Ended:
    """How a program ended: rc None means that it was stopped when its time was up."""

    def __init__(self, rc, out, err, name, limit):
        self.rc, self.out, self.err, self.name, self.limit = rc, out, err, name, limit

    def why(self):
        last = " / ".join((self.err.strip() or self.out.strip()).splitlines()[-3:])[-400:]
        return (f"{self.name} did not end within {self.limit:.0f} s" if self.rc is None else
                f"{self.name} ended with {self.rc}") + (f": {last}" if last else "")

    def rows(self):
        """Its lines that are JSON objects."""
        found = []
        for line in self.out.splitlines():
            if line.startswith("{"):
                try:
                    found.append(json.loads(line))
                except ValueError:
                    pass  # cut off
        return found


def run(store, work, args, limit, env=None):
    """Run a program to its end, at most `limit` seconds."""
    name = os.path.basename(str(args[0]))
    try:
        with Child(store, work, args, env) as child:
            try:
                rc = child.process.wait(max(limit, 0.1))
            except subprocess.TimeoutExpired:
                rc = None
            return Ended(rc, child.output(), child.errors(), name, limit)
    except OSError as e:
        raise Failed(f"{args[0]}: {e.strerror}") from None
