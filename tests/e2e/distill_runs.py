# SPDX-License-Identifier: Apache-2.0
"""Runs of `quire distill` for test_distill.py: the goldens' cases as commands, and what a run leaves."""
import json
import os
import pathlib
import subprocess
import sys

import numpy
from safetensors.numpy import load_file

from servers import BIN, ROOT

sys.path.append(str(ROOT / "tests/data/distill"))
import sketch  # noqa: E402

GOLDENS = pathlib.Path(os.environ.get("QUIRE_DISTILL_GOLDENS") or ROOT / "tests/data/distill")  # others: tests/data/distill/make.py
CASES = sorted(p.name for p in (GOLDENS / "cases").iterdir())
SEQUENCES = 16  # of a step


def expected(case, goldens=GOLDENS):
    return json.loads((goldens / "cases" / case / "expected.json").read_text())


def write_samples(path, name, goldens=GOLDENS):
    """The golden data as JSONL without padding, one sequence a line, in the order of steps."""
    data = json.loads((goldens / "data" / f"{name}.json").read_text())
    with open(path, "w", encoding="utf-8") as out:
        for step in zip(data["input_ids"], data["attention_mask"], data["labels"], strict=True):
            for batch in zip(*step, strict=True):
                for ids, mask, labels in zip(*batch, strict=True):
                    n = sum(mask)
                    out.write(json.dumps({"input_ids": ids[:n], "labels": labels[:n]}) + "\n")
    return path


class Run:
    """A command of quire distill in a folder; its options are changed by keyword, its results read back."""

    def __init__(self, folder, case="fkl_T1", name="out", goldens=GOLDENS):
        self.folder, self.goldens = pathlib.Path(folder), goldens
        self.case, self.expected = case, expected(case, goldens)
        self.output, self.metrics = self.folder / name, self.folder / f"{name}.jsonl"
        c, o = self.expected["case"], self.expected["optimizer"]
        pair, sequences = goldens / f"pair{c['pair']}", self.expected.get("sequences", SEQUENCES)
        data = self.folder / f"{c['data']}.jsonl"
        if not data.exists():
            write_samples(data, c["data"], goldens)
        self.options = {
            "teacher": pair / "teacher", "student": pair / "student", "data": data, "output": self.output, "dtype": "float32",
            "loss": c["kind"], "temperature": c["temperature"], "kd-weight": c["w_kd"], "ce-weight": c["w_ce"],
            "micro-batch-size": sequences // 8, "global-batch-size": sequences, "steps": 10, "lr": o["lr_max"], "min-lr": o["lr_min"],
            "warmup-steps": o["warmup"], "adam-beta1": o["beta1"], "adam-beta2": o["beta2"], "adam-eps": o["eps"],
            "weight-decay": o["weight_decay"], "max-grad-norm": o["clip"], "no-shuffle": True, "no-packing": True,
            "save-steps": "1,2,10", "save-gradients": 1, "metrics": self.metrics, "threads": 2}
        if c["kind"] == "jsd":
            self.options["beta"] = c["beta"]
        if not c["t2"]:
            self.options["no-t2"] = True
        if c.get("hidden"):
            self.options |= {"hidden-loss": c["hidden"], "hidden-weight": c["w_hidden"]}
        if c.get("attention"):
            self.options |= {"attention-loss": c["attention"], "attention-weight": c["w_attention"], "value-weight": c["w_value"]}
        if c["top_k"]:
            self.options |= {"top-k": c["top_k"], "top-k-student": c["top_k_student"]}

    def command(self, **changes):
        words = [BIN / "quire-distill"]
        for name, value in (self.options | {key.replace("_", "-"): v for key, v in changes.items()}).items():
            if value is True:
                words.append(f"--{name}")
            elif value is not None:
                words += [f"--{name}", value]
        return [str(word) for word in words]

    def start(self, **changes):
        return subprocess.Popen(self.command(**changes), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def start_held(self, **changes):
        """As start(). It waits for a reader of what it prints: some tens of steps of --json are more than a pipe of 4 KiB and the reader's
        buffer hold, so that it is not over when something is done to it."""
        return subprocess.Popen(self.command(**changes), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, pipesize=4096)

    def go(self, code=0, **changes):
        """Runs to the end; returns (standard output, standard error)."""
        done = subprocess.run(self.command(**changes), capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == code, f"exit code {done.returncode}\n{done.stderr}"
        return done.stdout, done.stderr

    def lines(self):
        return [json.loads(line) for line in self.metrics.read_text().splitlines()]

    def weights(self, step):
        return load_file(self.output / f"step-{step}" / "model.safetensors")

    def weight_bytes(self, step):
        return (self.output / f"step-{step}" / "model.safetensors").read_bytes()

    def gradients(self, step=1):
        return load_file(self.output / f"gradients-{step}.safetensors")


# ---- against a golden ----

def relative(got, want):
    return abs(got - want) / abs(want)


def check_steps(run, lines):
    tolerances = run.expected["tolerances"]
    assert [line["step"] for line in lines] == [step["step"] for step in run.expected["steps"]]
    for line, step in zip(lines, run.expected["steps"], strict=True):
        n = step["n_tokens"]
        sums = [sum(batch[name] for batch in step["micro_batches"]) for name in ("kd_sum", "ce_sum")]
        assert line["n_tokens"] == n
        assert relative(line["loss"], step["loss"]) <= tolerances["loss_rel"], line
        assert relative(line["kd_loss"], sums[0] / n) <= tolerances["loss_rel"], line
        assert relative(line["ce_loss"], sums[1] / n) <= tolerances["loss_rel"], line
        for of in [of for of in ("hidden", "attention", "value") if run.expected["case"].get(f"w_{of}")]:
            wanted = sum(batch[f"{of}_sum"] for batch in step["micro_batches"])
            assert relative(line[f"{of}_loss"], wanted / n) <= tolerances["loss_rel"], line
        assert relative(line["grad_norm"], step["grad_norm"]) <= tolerances["grad_norm_rel"], line
        assert relative(line["lr"], step["lr"]) <= 1e-9
        assert line["tok_s"] > 0 and all(mb > 1 for mb in line["peak_rss_mb"])


def check_gradient(name, got, want, tolerances):
    difference = sketch.Difference(name, got.astype(numpy.float64), want)
    assert difference.elements.max() <= tolerances["grad_max_rel"] * difference.most, name
    assert difference.squared ** 0.5 <= tolerances["grad_l2_rel"] * difference.norm, name


def check_gradients(run):
    tolerances = run.expected["tolerances"]
    want = sketch.read(run.goldens / "cases" / run.case, "grads_step1")
    start, got = load_file(run.options["student"] / "model.safetensors"), run.gradients()
    assert sorted(got) == sorted(want)
    for name, g in want.items():
        assert got[name].dtype == numpy.float32 and got[name].shape == start.get(name, got[name]).shape
        check_gradient(name, got[name], g, tolerances)


FAR_CHANCE = 4  # elements in a sample of some hundreds that may be far where a thousandth of all may


def check_weights(run):
    tolerances = run.expected["tolerances"]
    start = load_file(run.options["student"] / "model.safetensors")
    for step in (1, 2, 10):
        want, got = sketch.read(run.goldens / "cases" / run.case, f"weights_step{step}", start), run.weights(step)
        assert sorted(got) == sorted(want)
        moved = off = far = n = 0
        for name, w in want.items():
            difference = sketch.Difference(name, got[name].astype(numpy.float64) - start[name], w)
            off += difference.squared
            moved += difference.norm ** 2
            far += (difference.elements > 2e-6).sum()
            n += difference.elements.size
        assert (off / moved) ** 0.5 <= tolerances[f"weights_step{step}_update_l2_rel"], step
        assert far <= tolerances[f"weights_step{step}_far"] * n + FAR_CHANCE, step


def check_golden(run):
    check_steps(run, run.lines())
    check_gradients(run)
    check_weights(run)
