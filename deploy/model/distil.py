#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Improve the bundled model by distillation: a larger sibling first, then the model from it.

    distil.py --work /tmp/distil --out /tmp/quire-tiny    # needs build/release/bin/quire and `pip install tokenizers`, no torch
    eval.py --model /tmp/quire-tiny

Four parts, each into --work, each left out when its result is there; `quire distill` goes on from its
last state. So the same command continues a run that was stopped at any time:
    sibling.jsonl, student.jsonl, held-out.jsonl    dialogues of the grammar, as ids and labels
    sibling-start       the model with more layers, which add nothing yet (growth.py)
    sibling             trained on the labels
    student             the model, trained on the labels and on the sibling's probabilities
Then the student's folder is written to --out.

    distil.py --work /tmp/distil --out /tmp/quire-tiny-control --control
makes the same student from the same dialogues in as many steps by the labels alone (part control, which
needs no sibling): what the sibling's probabilities are worth is the difference of the two.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from growth import OTHER_FILES, copies, deepen

try:
    from samples import Mixture, stream, write_samples
    from tokenizers import Tokenizer
except ModuleNotFoundError as e:
    sys.exit(f"distil: Python's package {e.name} is missing: pip install -r {Path(__file__).parent / 'requirements.txt'}")

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
SEQ_LENGTH = 1024                       # of packed dialogues; none is longer (Mixture.token_max)
DRILL = 0.4                             # share of drills: training ends with few of them, but begins with half
SIBLING_SEED, STUDENT_SEED, HELD_OUT_SEED = 100_000_000, 200_000_000, 300_000_000  # make.py's grammars have smaller seeds
# AdamW as in training.py; one step of it moves a matrix about as far as Muon does at half of make.py's rate.
OPTIMIZER = ["--adam-beta2", "0.98", "--weight-decay", "0.01"]
WARM_UP_STEPS = 40                      # at most; a tenth of a short run
STATE_EVERY = 50                        # steps; a killed run loses at most these
# What may change while a run goes on: everything else decides its weights.
FREE = ("work", "out", "quire", "ranks", "control")


def say(text: str) -> None:
    print(f"distil: {text}", flush=True)


def check_run(a: argparse.Namespace) -> None:
    """A folder holds one run: its parts would not fit together if options changed between them."""
    asked = {name: str(value) for name, value in sorted(vars(a).items()) if name not in FREE}
    path = a.work / "options.json"
    begun = json.loads(path.read_text()) if path.exists() else asked
    for name, value in asked.items():
        if begun.get(name) != value:
            flag = "--" + name.replace("_", "-")
            sys.exit(f"distil: {a.work} was begun with {flag} {begun.get(name)}, and is now asked for with {value}; "
                     f"give {flag} {begun.get(name)}, or choose another --work")
    path.write_text(json.dumps(asked, indent=2) + "\n")


def write_data(a: argparse.Namespace) -> None:
    """The three files of dialogues, as many tokens as the steps can read."""
    tok = Tokenizer.from_file(str(a.start / "tokenizer.json"))
    quiet = Mixture(drill=0.1, relabel={"warm up": 0.0, "drill": 0.0, "tool": 0.0})
    wanted = {
        "sibling": (SIBLING_SEED, Mixture(drill=DRILL), a.sibling_steps * a.batch * SEQ_LENGTH),
        "student": (STUDENT_SEED, Mixture(drill=DRILL), a.steps * a.batch * SEQ_LENGTH),
        "held-out": (HELD_OUT_SEED, quiet, a.held_out_tokens)}
    if a.control:
        del wanted["sibling"]
    for name, (seed, mix, n_token) in wanted.items():
        path = a.work / f"{name}.jsonl"
        if not path.exists():
            rows = stream(tok, seed + a.seed * 1_000_000, mix, held_out=name == "held-out")
            say(f"{path}: {write_samples(path, rows, n_token)} tokens")


def write_sibling_start(a: argparse.Namespace) -> None:
    folder, part = a.work / "sibling-start", a.work / "sibling-start.part"
    if not folder.exists():
        deepen(a.start, part, a.layers)
        part.rename(folder)
        say(f"{folder}: {a.layers} layers, {(folder / 'model.safetensors').stat().st_size / 2e6:.1f} million parameters")


def distill_command(a: argparse.Namespace, name: str) -> list[str]:
    """`quire distill` for the sibling and the control, which have no teacher, or for the student."""
    student, steps, rate = a.start, a.steps, a.rate
    losses = ["--kd-weight", "0", "--ce-weight", "1"]
    if name == "sibling":
        student, steps, rate = a.work / "sibling-start", a.sibling_steps, a.sibling_rate
    if name == "control":                               # the same sum of weights: the same clipping of gradients
        losses[-1] = a.kd_weight + a.ce_weight
    if name == "student":
        losses = ["--teacher", a.work / "sibling" / f"step-{a.sibling_steps}", "--loss", "fkl", "--temperature", a.temperature,
                  "--kd-weight", a.kd_weight, "--ce-weight", a.ce_weight]
    data = a.work / f"{'sibling' if name == 'sibling' else 'student'}.jsonl"
    command = [
        a.quire, "distill", "--student", student, *losses, "--data", data, "--output", a.work / name,
        "--eval-data", a.work / "held-out.jsonl", "--seq-length", SEQ_LENGTH, "--global-batch-size", a.batch,
        "--micro-batch-size", 1, "--steps", steps, "--lr", rate,
        "--warmup-steps", min(WARM_UP_STEPS, steps // 10), *OPTIMIZER, "--seed", a.seed, "--state-every", STATE_EVERY,
        "--data-parallel-size", a.ranks, "--threads", a.ranks, "--max-restarts", 3, "--metrics", a.work / f"{name}-metrics.jsonl"]
    return [str(word) for word in command]


def run(command: list[str]) -> int:
    """The command's exit status. A signal to this program goes to the command, once: it then writes its state."""
    process = subprocess.Popen(command, start_new_session=True)     # else Ctrl-C would reach it twice, which kills it
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda got, _: process.send_signal(signal.SIGTERM))
    return process.wait()


def train(a: argparse.Namespace, name: str, steps: int) -> Path:
    """The trained folder of a part; without a result the program ends."""
    result = a.work / name / f"step-{steps}"
    if not result.exists():
        command = distill_command(a, name)
        say(" ".join(command))
        status = run(command)
        if not result.exists():
            sys.exit(f"distil: `quire distill` ended with status {status} before {result} was written; its last line says why. "
                     f"The same command goes on from the last state in {a.work / name}")
    return result


def write_out(a: argparse.Namespace, student: Path) -> None:
    """The student's weights beside the files that training does not change."""
    a.out.mkdir(parents=True, exist_ok=True)
    for name in ("config.json", *OTHER_FILES):
        if a.out.resolve() != a.start.resolve():
            shutil.copyfile(a.start / name, a.out / name)
    part = a.out / "model.safetensors.part"
    shutil.copyfile(student / "model.safetensors", part)
    part.replace(a.out / "model.safetensors")
    say(f"{a.out} is written; eval.py --model {a.out} measures it")


def options() -> argparse.Namespace:
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("--work", type=Path, required=True, help="folder of the run, outside of the tree; some hundred MB")
    args.add_argument("--out", type=Path, required=True, help="folder to write")
    args.add_argument("--start", type=Path, default=HERE / "quire-tiny", help="folder of the model that is improved")
    args.add_argument("--quire", type=Path, default=ROOT / "build/release/bin/quire")
    args.add_argument("--layers", type=int, default=10, help="of the sibling: up to twice the model's")
    args.add_argument("--sibling-steps", type=int, default=700)
    args.add_argument("--steps", type=int, default=1000, help="of the student")
    args.add_argument("--batch", type=int, default=8, help=f"sequences of {SEQ_LENGTH} tokens of a step, a multiple of --ranks")
    args.add_argument("--sibling-rate", type=float, default=6e-4, help="its highest learning rate")
    args.add_argument("--rate", type=float, default=4e-4, help="the student's, which has no new layers")
    args.add_argument("--kd-weight", type=float, default=0.5, help="weight of the KL divergence from the sibling")
    args.add_argument("--ce-weight", type=float, default=0.5, help="weight of the cross-entropy with the labels")
    args.add_argument("--temperature", type=float, default=1.0)
    args.add_argument("--ranks", type=int, default=2, help="processes of one thread each: with other work on the machine faster than threads")
    args.add_argument("--held-out-tokens", type=int, default=60_000, help="on which both are evaluated at the end")
    args.add_argument("--seed", type=int, default=1)
    args.add_argument("--control", action="store_true", help="train by the labels alone; also in the --work of a run with a sibling")
    a = args.parse_args()
    if a.batch % a.ranks:
        args.error(f"--batch {a.batch} is no multiple of --ranks {a.ranks}")
    if not shutil.which(a.quire):
        args.error(f"--quire {a.quire}: no such program; cmake --preset release && cmake --build build/release")
    a.start = a.start.resolve()
    try:
        copies(json.loads((a.start / "config.json").read_text())["num_hidden_layers"], a.layers)
    except ValueError as e:
        args.error(f"--layers: {e}")
    except OSError as e:
        args.error(f"--start: {e}")
    return a


def main() -> None:
    a = options()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    a.work.mkdir(parents=True, exist_ok=True)
    check_run(a)
    write_data(a)
    if not a.control:
        write_sibling_start(a)
        train(a, "sibling", a.sibling_steps)
    write_out(a, train(a, "control" if a.control else "student", a.steps))


if __name__ == "__main__":
    main()
