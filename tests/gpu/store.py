# SPDX-License-Identifier: Apache-2.0
"""What a run of tests/gpu/run.py has found: OUT/results.json, written anew after every job, so that nothing is lost whatever
ends the run; and the programs that it starts, each with a time limit, in a process group that is ended with it."""
import ctypes
import hashlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import time

LOG_MAX = 12 << 20  # bytes of log.txt; what comes later is cut to LOG_SHORT a program
LOG_TAIL, LOG_SHORT = 100_000, 2_000  # bytes of one program's output that are kept
END_S = 20  # seconds that a killed program may take to be gone; one that waits for a card that hangs takes longer
_libc = ctypes.CDLL(None)


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
    """results.json: {"card", "drivers", "jobs": {"PART/JOB": {"status", "seconds", "at", "programs", "rows", "why"}}}

    A job's result goes for this card and for the programs it was made with; `programs` is `nobody` where they have no part in it.
    others: folders whose results.json is read too, and kept up to date: what is known in the end is in each of them."""

    def __init__(self, out, card, programs, nobody="", others=()):
        self.out, self.others, self.programs, self.nobody = out, [pathlib.Path(o) for o in others], programs, nobody
        self.path, self.log_path = out / "results.json", out / "log.txt"
        self.data = {"card": card[0], "drivers": [], "jobs": {}}
        left_out = 0
        for path in [o / "results.json" for o in self.others] + [self.path]:
            left_out += self._read(path)
        if left_out:
            print(f"{left_out} results are of another card or of other programs, and are left out", flush=True)
        if card[1] and card[1] not in self.data["drivers"]:
            self.data["drivers"].append(card[1])

    def _read(self, path):
        """Take what is newer than what we have; how many results do not go for this card and these programs."""
        try:
            before = json.loads(path.read_text())
            card, jobs = before["card"], before["jobs"]
            fits = {k: v for k, v in jobs.items() if card == self.data["card"] and v["programs"] in (self.nobody, self.programs)}
            for name, job in fits.items():
                if job["at"] > self.data["jobs"].get(name, {"at": 0})["at"]:
                    self.data["jobs"][name] = job
            if fits:
                self.data["drivers"] += [d for d in before["drivers"] if d not in self.data["drivers"]]
            return len(jobs) - len(fits)
        except FileNotFoundError:
            pass
        except (ValueError, KeyError, TypeError, AttributeError, OSError):
            print(f"{path} cannot be read; begun anew", flush=True)
        return 0

    def get(self, name):
        return self.data["jobs"].get(name, {})

    def rows(self, part):
        return [row for name, job in self.data["jobs"].items() if name.split("/")[0] == part for row in job["rows"]]

    def put(self, name, **job):
        """ours: whether the programs have a part in it."""
        programs = self.programs if job.pop("ours") else self.nobody
        self.data["jobs"][name] = {**job, "programs": programs, "at": time.time()}
        self.save("results.json", json.dumps(self.data, indent=1))

    def save(self, name, text):
        self.write(self.out / name, text)
        for other in self.others:
            try:
                other.mkdir(parents=True, exist_ok=True)
                self.write(other / name, text)
            except OSError as e:
                self.log(f"{other}: {e}")

    @staticmethod
    def write(path, text):
        """The whole text or what was there before."""
        new = path.with_name(path.name + ".new")
        new.write_text(text)
        os.replace(new, path)

    def log(self, text):
        with open(self.log_path, "a", errors="replace") as out:
            out.write(text if text.endswith("\n") else text + "\n")

    def log_tail(self):
        """Bytes of one program's output that the log still takes."""
        full = self.log_path.exists() and self.log_path.stat().st_size > LOG_MAX
        return LOG_SHORT if full else LOG_TAIL

    def share(self, name):
        """A folder below OUT and below the others: what one of them has, all have."""
        places = [p / name for p in (self.out, *self.others)]
        for there in [p for p in places if p.is_dir()]:
            for to in places:
                if to != there:
                    shutil.copytree(there, to, dirs_exist_ok=True)


def die_with_parent():
    _libc.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: who kills this script frees the card


class Child:
    """A program of ours with its output in files; ended, with all it started, at the end of the block."""

    def __init__(self, store, work, args, env=None, gently=False):
        """gently: asked to end first, for what has children in groups of their own."""
        self.args, self.store, self.gently = [str(a) for a in args], store, gently
        self.out_path, self.err_path = work / "stdout", work / "stderr"
        with open(self.out_path, "wb") as out, open(self.err_path, "wb") as err:
            self.start = time.monotonic()
            self.process = subprocess.Popen(self.args, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True,
                                            preexec_fn=die_with_parent, env={**os.environ, **(env or {})})

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
        try:
            rc = self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            rc = f"none: it was killed and is not gone after {END_S} s, as one that waits for a card that hangs"
        took, tail = time.monotonic() - self.start, self.store.log_tail()
        self.store.log(f"$ {' '.join(self.args)}\n{self.output()[-tail:]}\n{self.errors()[-tail:]}\n-- exit {rc} after {took:.1f} s\n")


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
