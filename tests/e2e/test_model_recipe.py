# SPDX-License-Identifier: Apache-2.0
"""deploy/model: what the recipe of the bundled model writes for `quire distill`, and distil.py from start to end."""
import json
import re
import subprocess
import sys

import jinja2
import pytest
from tokenizers import Tokenizer

from servers import BIN, BUNDLED, ROOT

sys.path.append(str(ROOT / "deploy/model"))
import growth  # noqa: E402
import samples  # noqa: E402
from dialogues import Grammar  # noqa: E402
from tokens import IM_END, IM_START, TEMPLATE, render  # noqa: E402

ASSISTANT = f"{IM_START}assistant\n"
SEED = 9_000_001


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.from_file(str(BUNDLED / "tokenizer.json"))


def decode(tokenizer, ids):
    return tokenizer.decode(ids, skip_special_tokens=False)


def counted_runs(ids, labels):
    """(start, end) of the runs of tokens that count."""
    edges = [i for i in range(len(ids) + 1) if (i < len(ids) and labels[i] != -100) != (i > 0 and labels[i - 1] != -100)]
    return list(zip(edges[::2], edges[1::2], strict=True))


def answer_text(message):
    calls = [f'<tool_call>\n{{"name": {json.dumps(c["function"]["name"])}, "arguments": {c["function"]["arguments"]}}}\n</tool_call>'
             for c in message.get("tool_calls") or []]
    return "\n".join([message["content"]] * bool(message["content"]) + calls) + IM_END


def test_labels_are_the_answers_of_the_template(tokenizer):
    """Ids are those of the whole text of template.jinja; what counts is each answer, but calls of earlier requests."""
    env = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    env.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    template, grammar, n_call = env.from_string(TEMPLATE), Grammar(SEED), 0
    for _ in range(150):
        case = grammar.dialogue()
        [(ids, labels)] = samples.encode(tokenizer, [render(case.messages, case.tools)])
        text = template.render(messages=case.messages, tools=case.tools)
        assert ids == tokenizer.encode(text, add_special_tokens=False).ids
        last = max(i for i, m in enumerate(case.messages) if m["role"] == "user")
        answers = [m for i, m in enumerate(case.messages)
                   if m["role"] == "assistant" and not (m.get("tool_calls") and i < last)]
        runs = counted_runs(ids, labels)
        assert [decode(tokenizer, ids[a:b]) for a, b in runs] == [answer_text(m) for m in answers]
        assert all(labels[a:b] == ids[a:b] for a, b in runs)
        n_call += sum(bool(m.get("tool_calls")) for m in answers)
    assert n_call > 50


def test_a_file_of_samples(tokenizer, tmp_path):
    """Relabelled words stay counted words; every run is one answer behind the assistant's mark."""
    path = tmp_path / "samples.jsonl"
    mix = samples.Mixture(warm_up=0.2, drill=0.5)
    assert samples.write_samples(path, samples.stream(tokenizer, SEED, mix), 60_000) >= 60_000
    assert [p.name for p in tmp_path.iterdir()] == ["samples.jsonl"]
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert sum(len(r["input_ids"]) for r in rows) - len(rows[-1]["input_ids"]) < 60_000
    end = tokenizer.token_to_id(IM_END)
    for row in rows:
        ids, labels = row["input_ids"], row["labels"]
        assert row.keys() == {"input_ids", "labels"} and len(ids) == len(labels) <= mix.token_max
        assert all(label in (-100, i) for i, label in zip(ids, labels, strict=True))
        runs = counted_runs(ids, labels)
        assert runs
        for a, b in runs:
            assert decode(tokenizer, ids[:a]).endswith(ASSISTANT)
            assert ids[b - 1] == end and end not in ids[a:b - 1]
    again = tmp_path / "again.jsonl"
    samples.write_samples(again, samples.stream(tokenizer, SEED, mix), 60_000)
    assert again.read_bytes() == path.read_bytes()


def generate(folder, prompt):
    out = subprocess.run([BIN / "quire", "generate", folder, prompt, "--max-tokens", "64"], capture_output=True, text=True, timeout=120)
    assert out.returncode == 0, out.stderr
    return out.stdout


def test_added_layers_say_the_same(tmp_path):
    growth.deepen(BUNDLED, tmp_path / "deep", 9)
    assert json.loads((tmp_path / "deep/config.json").read_text())["num_hidden_layers"] == 9
    old, new = (growth.read_tensors(folder / "model.safetensors") for folder in (BUNDLED, tmp_path / "deep"))
    zero = sorted(name for name, (_, _, data) in new.items() if not any(data))
    assert zero == sorted(f"model.layers.{i}.{name}" for i in (2, 5, 8) for name in growth.OUTPUTS)
    assert len(new) == len(old) + 3 * sum(name.startswith("model.layers.0.") for name in old)
    for prompt in ("What can you do?", "Repeat: the grey lamp of Oslo, 417"):
        assert generate(tmp_path / "deep", prompt) == generate(BUNDLED, prompt) != ""


@pytest.mark.parametrize("n_layer", (5, 13))
def test_impossible_numbers_of_layers(n_layer):
    with pytest.raises(ValueError, match=f"{n_layer} layers cannot be made from 6; expected 6 to 12"):
        growth.copies(6, n_layer)


def distil_command(tmp_path, *more):
    return [sys.executable, ROOT / "deploy/model/distil.py", "--work", tmp_path / "work", "--out", tmp_path / "out",
            "--quire", BIN / "quire", "--layers", "7", "--sibling-steps", "2", "--steps", "3", "--batch", "2",
            "--held-out-tokens", "2000", *more]


def distil(tmp_path, *more):
    return subprocess.run(distil_command(tmp_path, *more), capture_output=True, text=True, timeout=300)


def steps_of(path):
    return [line for line in map(json.loads, path.read_text().splitlines()) if "grad_norm" in line]


def test_distillation_from_start_to_end(tmp_path):
    wrong = distil(tmp_path, "--layers", "13")
    assert wrong.returncode == 2 and "expected 6 to 12" in wrong.stderr and not (tmp_path / "work").exists()
    wrong = distil(tmp_path, "--quire", tmp_path / "none")
    assert wrong.returncode == 2 and "no such program" in wrong.stderr and not (tmp_path / "work").exists()
    first = distil(tmp_path)
    assert first.returncode == 0, first.stdout + first.stderr
    assert [s["step"] for s in steps_of(tmp_path / "work/sibling-metrics.jsonl")] == [1, 2]
    student = steps_of(tmp_path / "work/student-metrics.jsonl")
    assert [s["step"] for s in student] == [1, 2, 3]
    assert all(s["kd_loss"] > 0 and abs(s["loss"] - (s["kd_loss"] + s["ce_loss"]) / 2) < 1e-4 for s in student)
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == sorted(p.name for p in BUNDLED.iterdir() if p.name != "README.md")
    assert (tmp_path / "out/config.json").read_bytes() == (BUNDLED / "config.json").read_bytes()
    old, new = (growth.read_tensors(folder / "model.safetensors") for folder in (BUNDLED, tmp_path / "out"))
    assert {n: t[:2] for n, t in old.items()} == {n: t[:2] for n, t in new.items()} and old != new
    assert generate(tmp_path / "out", "Hello!").strip()
    weights = (tmp_path / "out/model.safetensors").read_bytes()
    other = distil(tmp_path, "--steps", "4")
    assert other.returncode == 1 and "was begun with --steps 3, and is now asked for with 4" in other.stderr
    second = distil(tmp_path)       # nothing is left to do
    assert second.returncode == 0 and "--student" not in second.stdout
    assert (tmp_path / "out/model.safetensors").read_bytes() == weights


def test_a_control_differs_from_the_student_by_the_teacher_alone(tmp_path):
    """In a folder of its own, and beside the run that it is a control of; the same samples, steps and rates, no sibling."""
    control = distil(tmp_path, "--control", "--out", tmp_path / "first")
    assert control.returncode == 0, control.stdout + control.stderr
    assert sorted(p.name for p in (tmp_path / "work").iterdir()) == \
        ["control", "control-metrics.jsonl", "held-out.jsonl", "options.json", "student.jsonl"]
    assert "--teacher" not in control.stdout
    whole = distil(tmp_path)
    assert whole.returncode == 0, whole.stdout + whole.stderr
    again = distil(tmp_path, "--control", "--out", tmp_path / "second")
    assert again.returncode == 0 and "--student" not in again.stdout      # it is done
    weights = {name: (tmp_path / name / "model.safetensors").read_bytes() for name in ("first", "second", "out")}
    assert weights["first"] == weights["second"] != weights["out"]
    student, control = steps_of(tmp_path / "work/student-metrics.jsonl"), steps_of(tmp_path / "work/control-metrics.jsonl")
    assert [(s["step"], s["n_tokens"], s["lr"]) for s in student] == [(s["step"], s["n_tokens"], s["lr"]) for s in control]
    assert all(s["kd_loss"] == 0 and s["loss"] == s["ce_loss"] for s in control)
    assert abs(student[0]["ce_loss"] - control[0]["ce_loss"]) < 1e-4 * control[0]["ce_loss"]


def test_a_stopped_distillation_goes_on(tmp_path):
    command = distil_command(tmp_path, "--sibling-steps", "40", "--batch", "1", "--ranks", "1", "--steps", "1")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        for line in process.stdout:
            if re.search(r"\bstep [1-9]/40", line):      # not every step has a line
                process.terminate()
                break
        rest = process.stdout.read()
    assert process.returncode == 1 and "The same command goes on from the last state" in rest
    assert not (tmp_path / "work/sibling/step-40").exists() and not (tmp_path / "out").exists()
    data = (tmp_path / "work/sibling.jsonl").stat()
    rest = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert rest.returncode == 0, rest.stdout + rest.stderr
    assert (tmp_path / "work/sibling.jsonl").stat() == data
    assert [s["step"] for s in steps_of(tmp_path / "work/sibling-metrics.jsonl")] == list(range(1, 41))
    assert (tmp_path / "out/model.safetensors").exists()
