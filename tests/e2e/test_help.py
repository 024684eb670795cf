# SPDX-License-Identifier: Apache-2.0
"""What people see who ask for help: verbs, options in groups, examples, other programs' words."""
import fcntl
import os
import pty
import re
import struct
import subprocess
import termios

import pytest

from servers import BIN, BUNDLED, ROOT

VERBS = ("serve", "engine", "frontend", "worker", "generate", "run-batch", "chat", "tokenize", "schema", "parse", "render", "keygen",
         "check-model", "replay", "distill", "teach", "download", "cache")
BENCH = ("roofline", "kernels", "latency", "throughput", "serve", "quality")
PROGRAMS = [(verb,) for verb in VERBS] + [("bench", verb) for verb in BENCH]


def quire(*args, columns=None, stdin="", env=None):
    env = {**os.environ, **(env or {})}
    env.pop("COLUMNS", None)
    if columns:
        env["COLUMNS"] = str(columns)
    return subprocess.run([BIN / "quire", *map(str, args)], capture_output=True, text=True, input=stdin, timeout=60, env=env)


@pytest.mark.parametrize("program", PROGRAMS, ids=" ".join)
def test_help_names_what_people_typed_and_fits_the_width(program):
    text = quire(*program, "--help").stdout
    assert text.startswith(f"usage: quire {' '.join(program)} ")
    assert "\nGeneral:\n" in text and "  -h, --help " in text
    assert program == ("worker",) or "\nExamples:\n" in text and f"quire {' '.join(program)}" in text.split("Examples:")[1]
    for columns in (60, 80, 100):
        wrapped = quire(*program, "--help", columns=columns).stdout
        long = [line for line in wrapped.splitlines() if len(line) > columns]
        assert not long, (columns, long[:3])
        assert "".join(wrapped.replace("\\\n", "").split()) == "".join(text.replace("\\\n", "").split())  # the same words
    assert max(map(len, text.splitlines())) <= 80  # no terminal: 80
    wrong = quire(*program, "--no-such-flag")
    assert wrong.returncode == 2 and wrong.stderr.startswith(f"quire {' '.join(program)}: ")


@pytest.mark.parametrize("program", PROGRAMS, ids=" ".join)
def test_h_and_help_verb_are_the_same_as_verb_help(program):
    text = quire(*program, "--help")
    assert text.returncode == 0 and text.stderr == ""
    assert quire(*program, "-h").stdout == text.stdout
    assert quire("help", *program).stdout == text.stdout
    if len(program) > 1:
        assert quire("bench", "help", program[1]).stdout == text.stdout


@pytest.mark.parametrize("args", [(), ("help",), ("--version",), ("help", "vllm"), *[(*p, "--help") for p in PROGRAMS], ("serve", "--version"),
                                  ("generate", BUNDLED, "Hello!", "--max-tokens", "4"),
                                  ("generate", BUNDLED, "Hello!", "--prompt", "Once", "--json", "--max-tokens", "4"),
                                  ("tokenize", BUNDLED)], ids=lambda args: " ".join(map(str, args)))
def test_output_that_is_lost_is_a_failure(args):
    with open("/dev/full", "wb") as full:
        done = subprocess.run([BIN / "quire", *map(str, args)], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, input="Hello!\n")
    if not args:  # the list went to standard error
        assert done.returncode == 2
        return
    assert done.returncode == 1 and "cannot write to standard output" in done.stderr, done


@pytest.mark.parametrize("program, flag, said, not_said", [
    ("chat", "--port", "port of a server", "port to listen on"),
    ("chat", "--api-key", "key to send", "requests must send"),
    ("bench serve", "--api-key", "key to send", "requests must send"),
    ("serve", "--api-key", "requests must send", "key to send"),
    ("chat", "--model", "model name to send in requests", "positional MODEL"),
    ("serve", "--model", "alternative to the positional MODEL", "in requests"),
    ("keygen", "--json", "its files", "summary"),
    ("run-batch", "--json", "the summary", "per line on"),
    ("generate", "--json", "object per line", "summary"),
])
def test_help_is_the_programs_own(program, flag, said, not_said):
    text = " ".join(quire(*program.split(), f"--help={flag[2:]}", columns=500).stdout.split())
    text = text[text.index(flag):]
    assert said in text and not_said not in text, text


def test_numbers_between_none_and_zero_are_refused():
    for flag, text in (("--temperature", "from 0 to 2, or -1"), ("--top-p", "from 0 to 1, or -1"), ("--min-p", "from 0 to 1, or -1")):
        out = quire("generate", BUNDLED, "x", flag, "-0.5")
        assert out.returncode == 2 and f'{flag}: "-0.5" is not a number {text}' in out.stderr, out.stderr


def test_help_of_bench_has_examples_of_each_verb():
    for columns in (60, 80, 120):
        text = quire("help", "bench", columns=columns).stdout
        assert text == quire("bench", "--help", columns=columns).stdout == quire("bench", "-h", columns=columns).stdout
        assert max(map(len, text.splitlines())) <= columns
        commands = text.split("\nExamples:\n")[1]
        for verb in BENCH:
            assert re.search(rf"^    quire bench {verb}\b", commands, re.M), verb


@pytest.mark.parametrize("program", PROGRAMS, ids=" ".join)
def test_help_has_no_short_lines_inside_a_paragraph(program):
    """A line breaks where the next word does not fit, or where a paragraph, a row or a section ends."""
    for columns in (80, 120):
        lines = quire(*program, "--help", columns=columns).stdout.splitlines()
        about = lines[lines.index("") + 1:lines.index("", lines.index("") + 1)]
        for line, following in zip(about, about[1:]):
            if line.startswith(" ") or following.startswith("  ") or line.endswith((".", ":")):
                continue
            assert len(line) + 1 + len(following.split()[0]) > columns, (line, following)


def test_verbs_and_their_descriptions_are_in_two_columns():
    rows = [line for line in quire("help", columns=80).stdout.split("Examples:")[0].splitlines() if line.startswith("  ")]
    rows = [row for row in rows if row[2] != " "]  # without the forms of the usage
    assert len(rows) >= 14 and all(re.fullmatch(r"  [a-z-]+ +", row[:16]) and row[16] != " " for row in rows), rows


def test_help_is_as_wide_as_the_terminal():
    outside, inside = pty.openpty()
    fcntl.ioctl(inside, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 52, 0, 0))
    env = {k: v for k, v in os.environ.items() if k != "COLUMNS"}
    process = subprocess.Popen([BIN / "quire", "keygen", "--help"], stdout=inside, env=env)
    os.close(inside)
    text = b""
    try:
        while piece := os.read(outside, 4096):
            text += piece
    except OSError:  # the other end is closed
        pass
    assert process.wait(20) == 0
    widths = [len(line) for line in text.decode().splitlines()]
    assert 40 < max(widths) <= 52


def test_options_are_listed_once_under_the_groups_they_apply_to():
    for program in PROGRAMS:
        text = quire(*program, "--help").stdout
        flags = re.findall(r"^  (?:-\w, )?(--\S+)", text, re.M)
        assert len(flags) == len(set(flags)), program
    engine, frontend, worker = (quire(verb, "--help").stdout for verb in ("engine", "frontend", "worker"))
    assert "\nHTTP:\n" not in engine and "--port" not in engine and "--served-model-name" not in engine
    assert "--skip-tokenizer-init" not in engine and "\nSampling:\n" not in engine
    assert "\nKV cache:\n" in engine and "--gpu-memory-utilization" not in frontend and "\nHTTP:\n" in frontend
    assert re.findall(r"^  (?:-\w, )?(--\S+)", worker, re.M) == ["--help", "--version"]


def test_help_for_a_word_shows_some():
    some = quire("serve", "--help=cache").stdout
    assert "--swap-space" in some and "--packed-cache" in some and "--port" not in some and "Examples" not in some
    assert "no option" in quire("serve", "--help=giraffe").stdout.lower()
    assert "--max-num-seqs" in quire("serve", "--help=max_num").stdout


def test_verbs_stand_in_groups_the_common_first_and_the_worker_last():
    text = quire("help").stdout
    at = [text.index(f"\n  {verb} ") for verb in ("serve", "bench", "engine", "tokenize", "worker")]
    assert at == sorted(at) and text.index("Common:") < at[0]
    assert quire("--help").stdout == quire("-h").stdout == text == quire("help", "help").stdout
    for columns in (50, 80):
        assert all(len(line) <= 80 for line in quire("help", columns=columns).stdout.splitlines())
    assert quire("help", "srve").returncode == 2
    assert quire("help", "run").returncode == 2 and "quire chat" in quire("help", "run").stderr


def test_other_programs_words_point_to_the_verb_that_is_meant():
    rows = re.findall(r'^WORD\("([\w-]+)", "((?:[^"\\]|\\.)*)"', (ROOT / "common/verbs.def").read_text(encoding="utf-8"), re.M)
    assert {word for word, _ in rows} >= {"run", "pull", "list", "ls", "complete", "completion", "start"}
    for word, command in rows:
        command = command.replace('\\"', '"')
        assert not command.startswith("quire ") or command.split()[1] in VERBS + ("bench",)
        out = quire(word, "some/model")
        assert out.returncode == 2 and out.stdout == "" and f'"{word}"' in out.stderr
        assert f"\n  {command.replace('MODEL', 'some/model')}\n" in out.stderr, word
        assert f"\n  {command}\n" in quire(word).stderr and any(c.startswith("quire ") for w, c in rows if w == word), word
    assert "\n  quire download some/model\n" in quire("pull", "some/model").stderr


def test_errors_begin_with_the_verb(tmp_path):
    for verb in ("engine", "generate", "worker"):
        assert quire(verb).stderr.startswith(f"quire {verb}: ")
    assert quire("generate", tmp_path / "gone", "x").stderr.startswith("quire generate: ")


def test_numbers_have_units():
    for given, said in (("1.5K", "1.5k"), ("70k9", "whole number"), ("99g", "16777216")):
        out = quire("generate", BUNDLED, "x", "--max-model-len", given)
        assert out.returncode == 2 and said in out.stderr


def test_variables_that_are_no_options_do_no_harm():
    out = quire("keygen", "--json", env={"QUIRE_VERSION": "0.1.0", "QUIRE_HELP": "me"})
    assert out.returncode == 2 and "an argument is missing" in out.stderr


def test_examples_of_the_readme_are_of_verbs_and_options_that_are():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    commands = re.findall(r"(?:bin/)?quire ([a-z-]+) ([^\n`#]*)", "\n".join(re.findall(r"^    (.*)", text, re.M)))
    assert len(commands) > 8
    for verb, rest in commands:
        words = rest.split()
        program = (verb, words[0]) if verb == "bench" else (verb,)
        listed = quire(*program, "--help").stdout
        for flag in re.findall(r"(?:^|\s)(--?[a-z][\w-]*)", rest):
            assert re.search(rf"^  .*{re.escape(flag)}\b", listed, re.M), (verb, flag)
