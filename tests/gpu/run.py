# SPDX-License-Identifier: Apache-2.0
"""tests/gpu/run.sh: which jobs of jobs.py are run, in which order, for how long.

A job is a few seconds of one thing, with a time limit of its own. What it finds is in OUT/results.json before the next one
begins, and OUT/page.md is made of that; OUT/log.txt has what every program said. A job with a result of this card and of these
programs is not run again, so a run that was cut off goes on. A job that fails, hangs or finds a bug of this script costs
itself only; what the time of the run (--minutes) does not reach is left to the next run and said."""
import argparse
import collections
import os
import pathlib
import re
import signal
import sys
import tempfile
import time
import traceback

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import clocks  # noqa: E402
import machine  # noqa: E402
import report  # noqa: E402
from jobs import NOT_OURS, PARTS  # noqa: E402
from store import Failed, NoTime, Skipped, Store, digest, run  # noqa: E402

# The order of a run, what is worth most first: does it compute what it should, then the figures that have a bar, then the rest.
# A stage is jobs of a part that no stage before had, and its seconds of a run of all (540); what it leaves goes to those behind.
STAGES = (
    ("machine", "", 5), ("ceilings", "copy", 5), ("kernels", "", 90), ("goldens", "graphs$|same bits|as the CPU", 80),
    ("ceilings", "", 20), ("bench", "Llama-3-8B (latency|throughput|http|fp8)$", 180), ("torch", "kernels", 15),
    ("bench", "", 50), ("sanitizer", "memcheck", 35), ("torch", "sdpa", 20), ("goldens", "eager", 10), ("profile", "", 10),
    ("torch", "", 10), ("sanitizer", "", 5), ("goldens", "", 5))
# What our programs say of what they do not do: on a card yet, or on the CPU when that is the device.
CANNOT = re.compile(r'architecture \S+ is not supported|--quantization is "|run on the CPU only|fp8 is not supported on the CPU')
TOY = " with toy shapes"
TRIAL = "machine/trial"
MEASURES = ("ceilings", "kernels", "bench", "torch")  # parts whose rows are figures: the card's clocks stand beside them


class Hangs(Exception):
    """The card answers nobody any more."""


class Run:
    """One run of the script: where things are, what the options say, how long it may take."""

    def __init__(self, o, work, store):
        self.o, self.work, self.store = o, work, store
        self.deadline = time.monotonic() + o.minutes * 60
        self.clocks = None
        self.device = os.environ.get("QUIRE_DEVICE", "cuda")
        self.env = machine.environment(o.out)
        if store.get(TRIAL):
            self.env |= machine.WITHOUT
        self.n_diagnosed = 0
        self.hung = False  # a program was stopped since this was last looked at

    def program(self, name):
        for place in (self.o.bin, self.o.bin.parent / "tests"):
            if (place / name).exists():
                return place / name
        raise Failed(f"no {name} in {self.o.bin} or {self.o.bin.parent / 'tests'}; cmake --build --preset portable makes it")

    def left(self, most):
        """Seconds that a job may take."""
        return min(most * self.o.patience, self.deadline - time.monotonic())

    def call(self, args, most, env=None):
        limit = self.left(most)
        done = run(self.store, self.work, args, limit, self.env | (env or {}))
        self.hung = self.hung or done.rc is None
        if done.rc is None and limit < most * self.o.patience:
            raise NoTime(f"the time was up after {limit:.0f} s")
        return done

    def cannot(self, done):
        return CANNOT.search(done.err)

    def must(self, args, most):
        done = self.call(args, most)
        if done.rc and self.cannot(done):
            raise Skipped(done.why())
        if done.rc != 0:
            raise Failed(done.why(), done.rows())
        return done

    def engine(self, device=None):
        return ["--device", device or self.device]

    def toy(self, *args):
        """Arguments of --small."""
        return list(args) if self.o.small else []

    def ask_card(self):
        """After a program that never ended: the next one could hang as well, and so the whole run. {PART/JOB: status} of what is
        known now: a kernel that hangs when the card is opened is done without."""
        hung, self.hung = self.hung, False
        limit = 20 * self.o.patience
        if not hung or self.left(20) < limit:
            return {}
        copy = [self.program("cuda_bench"), "--json", "--op", "copy", "--ms", "1", *self.toy("--small")]
        if run(self.store, self.work, copy, limit, self.env).rc is not None:
            return {}
        if machine.WITHOUT.items() <= self.env.items() or run(self.store, self.work, copy, limit, self.env | machine.WITHOUT).rc is None:
            raise Hangs("the card does not answer any more: not even a copy ends. Give the machine back, and take another")
        self.env |= machine.WITHOUT
        why = "programs that take attention by wgmma on trial hang; from here on " + " ".join(f"{k}={v}" for k, v in machine.WITHOUT.items())
        self.store.put(TRIAL, status="FAIL", seconds=0, rows=[], why=why, ours=True)
        print(f"FAIL {TRIAL}: {why}", flush=True)
        return {TRIAL: "FAIL"}


def run_job(r, name, job):
    """Its status; what it found is stored before this returns. A run's time that is up stores nothing."""
    start = time.monotonic()
    rows, why = [], ""
    r.clocks.since()
    try:
        rows, status = job(r), "ok"
    except NoTime:
        return "not reached"
    except Skipped as e:
        status, why = "skipped", str(e)
    except Failed as e:
        status, why, rows = "FAIL", str(e), e.rows
    except Exception as e:  # of this script: the other jobs are run all the same
        status, why = "FAIL", f"tests/gpu: {type(e).__name__}: {e}"
        r.store.log(traceback.format_exc())
    seconds = time.monotonic() - start
    if name.split("/")[0] in MEASURES:
        card = clocks.summary(r.clocks.since())
        rows = [{**row, **card} for row in rows]
    r.store.put(name, status=status, seconds=round(seconds, 2), rows=rows, why=why, ours=not NOT_OURS.match(name))
    print(f"{status:4} {name} ({seconds:.1f} s){': ' + why if why else ''}", flush=True)
    return status


def make_page(r):
    try:
        r.store.save("page.md", report.page(r.store, PARTS))
    except Exception:  # the figures are in results.json
        r.store.log(traceback.format_exc())
        print(f"the page could not be made; {r.store.log_path} says why", flush=True)


def jobs_of(r, part):
    """{PART/JOB: (function, seconds it needs)}"""
    try:
        found = list(PARTS[part](r))
    except Failed as e:
        found = [("start", lambda r, e=e: (_ for _ in ()).throw(e), 0)]
    return {f"{part}/{name}": (job, need) for name, job, need in found if not r.o.job or re.search(r.o.job, f"{part}/{name}")}


def stages(r):
    """[(share of the time, {PART/JOB: …})]. What failed before, with these very programs, comes last."""
    jobs = {part: jobs_of(r, part) for part in r.o.parts}
    plan, late = [], {}
    for part, pattern, seconds in STAGES:
        mine = {k: v for k, v in jobs.get(part, {}).items() if re.search(pattern, k.split("/", 1)[1])}
        jobs[part] = {k: v for k, v in jobs.get(part, {}).items() if k not in mine}
        failed = [k for k in mine if r.store.get(k).get("status") == "FAIL" and not r.o.again]
        late |= {k: mine.pop(k) for k in failed}
        if part in r.o.parts:
            plan.append((seconds, mine))
    return plan + [(0, late)]


def run_stage(r, jobs, until):
    """{PART/JOB: status}. None is begun when its share of the time is over."""
    came = {}
    for name, (job, need) in jobs.items():
        left = min(until, r.deadline) - time.monotonic()
        if r.store.get(name).get("status") in ("ok", "skipped") and not r.o.again and not name.startswith("machine/"):
            came[name] = "have"
        elif left < r.o.minutes / 4 or (not r.o.small and r.deadline - time.monotonic() < need):
            came[name] = "not reached"
        else:
            came[name] = run_job(r, name, job)
            make_page(r)
            came |= r.ask_card()
    return came


def run_all(r):
    """({PART/JOB: status}, whether the card went on to the end)"""
    came, plan = {}, stages(r)
    shares = sum(seconds for seconds, _ in plan) or 1
    until = r.deadline - r.o.minutes * 60
    try:
        for seconds, jobs in plan:
            until += r.o.minutes * 60 * seconds / shares
            came |= run_stage(r, jobs, until)
        missed = {k: v for _, jobs in plan for k, v in jobs.items() if came[k] == "not reached"}
        came |= run_stage(r, missed, r.deadline)  # what the others left
    except Hangs as e:
        print(e, flush=True)
        return came, False
    return came, True


def stop(*_):
    raise SystemExit("stopped; what was found is kept")


def options():
    parser = argparse.ArgumentParser(prog="tests/gpu/run.sh", description="See the head of tests/gpu/run.sh.")
    parser.add_argument("--bin", type=pathlib.Path, required=True, help="folder of the programs")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="folder of results.json, page.md and log.txt")
    parser.add_argument("--with", dest="others", type=pathlib.Path, action="append", default=[], metavar="FOLDER",
                        help="results are read from there too, and kept up to date there; may be repeated")
    parser.add_argument("--again", action="store_true", help="also what has a result of this card and of these programs")
    parser.add_argument("--job", default="", help="only jobs (PART/NAME) that this regular expression finds")
    parser.add_argument("--minutes", type=float, default=9, help="how long the run may take; default 9")
    parser.add_argument("--times", type=int, default=5, help="random cases of the kernels: this many times a short run's")
    parser.add_argument("--patience", type=float, default=1, help="the time limit of every job times this")
    parser.add_argument("--small", action="store_true", help="toy shapes, to try the script")
    parser.add_argument("parts", nargs="*", metavar="PART", help="all when none is named: " + " ".join(PARTS))
    o = parser.parse_args()
    for part in o.parts:
        if part not in PARTS:
            parser.error(f'no part "{part}"; there are {" ".join(PARTS)}')
    o.parts = o.parts or list(PARTS)
    return o


def main():
    o = options()
    signal.signal(signal.SIGTERM, stop)
    card = machine.card(os.environ.get("QUIRE_DEVICE", "cuda"))
    o.out.mkdir(parents=True, exist_ok=True)
    library = os.environ.get("QUIRE_CUDA_LIBRARY")
    known = ("quire-generate", "quire-bench", "quire-engine", "quire-frontend", "cuda_check_card", "cuda_bench")
    programs = digest([*(o.bin / p for p in known), pathlib.Path(library) if library else o.bin.parent / "lib/libquire-cuda.so"])
    toy = TOY if o.small else ""  # neither goes for the other
    store = Store(o.out, card, programs + toy, toy, o.others)
    store.share("quire")  # choices of algorithms
    temporary = pathlib.Path(tempfile.gettempdir())
    machine.sweep([temporary, pathlib.Path("/dev/shm")])
    with machine.workspace(temporary) as work:
        r = Run(o, work, store)
        with clocks.Clocks(work) as r.clocks:
            came, whole = run_all(r)
        make_page(r)
    store.share("quire")
    print("\n".join(report.bars(store)), flush=True)
    counts = collections.Counter(came.values())
    print(", ".join(f"{n} {status}" for status, n in counts.items()) + f"; {o.out}/page.md", flush=True)
    if counts["not reached"]:
        print("not all was reached: the same command goes on", flush=True)
    sys.exit(1 if counts["FAIL"] or not counts or not whole else 0)


if __name__ == "__main__":
    main()
