# SPDX-License-Identifier: Apache-2.0
"""Which plugin serves a model when there are several: broken ones beside it, two for one architecture, --plugin and QUIRE_PLUGIN_PATH,
a built-in architecture. Whatever lies in the folder, a person sees one line for each file that was left out, and the model runs."""
import json
import os
import re
import shutil
import subprocess

import pytest

from servers import BIN, MODELS, ROOT, Server

CC = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
IDS = ("--skip-tokenizer-init",)
SOURCES = {
    "no_symbol": "extern int nowhere(void); const void *quire_plugin_1(void) { return nowhere() ? 0 : \"\"; }",
    "crash": "#include <stdlib.h>\n__attribute__((constructor)) static void begin(void) { abort(); }",
    "leave": "#include <stdlib.h>\nconst void *quire_plugin_1(void) { exit(0); }",
    "hang": "#include <unistd.h>\nconst void *quire_plugin_1(void) { for (;;) sleep(1); }",
    "other_abi": "const void *quire_plugin_1(void) { static const struct { unsigned long n; unsigned abi; } p = {16, 7}; return &p; }",
}

pytestmark = pytest.mark.skipif(CC is None, reason="no C compiler")


def compile_plugin(out, source, *options):
    subprocess.run([CC, "-std=c11", "-D_GNU_SOURCE", "-fPIC", "-shared", "-I", ROOT, *options, "-o", out, source, "-lm", "-ldl"], check=True)


@pytest.fixture(scope="module")
def plugins(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plugins")
    for name in ("operation", "empty", "faulty"):
        compile_plugin(folder / f"{name}.so", ROOT / "tests/plugins" / f"{name}.c")
    for name, text in SOURCES.items():
        (folder / f"{name}.c").write_text(text)
        compile_plugin(folder / f"{name}.so", folder / f"{name}.c")
    # the same plugin under another version, to tell from the log which one serves
    text = (ROOT / "tests/plugins/operation.c").read_text()
    assert text.count('"operation"') == 1
    (folder / "second.c").write_text(text.replace('"operation"', '"second"'))
    compile_plugin(folder / "second.so", folder / "second.c")
    return folder


@pytest.fixture
def model(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    config = json.loads((MODELS / "llama/config.json").read_text()) | {"architectures": ["OperationForCausalLM"]}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").symlink_to((MODELS / "llama/model.safetensors").resolve())
    return folder


def generate(model, *options, env=None):
    clean = {k: v for k, v in os.environ.items() if not k.startswith("QUIRE_PLUGIN")}
    out = subprocess.run([str(word) for word in (BIN / "quire", "generate", model, *IDS, "--prompt-ids", "5,6,7,8", "--max-tokens", "4",
                                                 "--temperature", "0", "--log-level", "info", *options)],
                         stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", env=clean | (env or {}), timeout=120)
    return out.returncode, out.stdout, out.stderr


def serving(err):
    """(name, file) of each plugin that serves an architecture."""
    return re.findall(r"plugin (\S+) \S+ \((\S+)\) serves (?:\S+), as a variation", err)


def fill(folder, plugins):
    """One of each kind of broken file, in front of one that is right in the order of names: {file: what the line says}"""
    folder.mkdir()
    (folder / "a_text.so").write_text("no shared object")
    (folder / "b_folder.so").mkdir()
    (folder / "c_dangling.so").symlink_to(folder / "nothing")
    os.mkfifo(folder / "d_pipe.so")
    (folder / "e_cut.so").write_bytes((plugins / "operation.so").read_bytes()[:700])
    for name in ("empty", *SOURCES):
        shutil.copy(plugins / f"{name}.so", folder / f"f_{name}.so")
    shutil.copy(plugins / "operation.so", folder / "z.so")
    return {"a_text.so": "not a shared object", "b_folder.so": "not a regular file", "c_dangling.so": "no such file, or a link to none",
            "d_pipe.so": "not a regular file", "e_cut.so": "while it was loaded: signal 7", "f_empty.so": "does not export quire_plugin_1",
            "f_no_symbol.so": "undefined symbol: nowhere", "f_crash.so": "crashed while it was loaded: signal 6",
            "f_leave.so": "ended the process while it was loaded, with status 0", "f_hang.so": "took more than 30 s",
            "f_other_abi.so": "its ABI is version 7, this engine's is version 2"}


def test_broken_ones_are_left_out(plugins, model, tmp_path):
    """By the engine, once; its worker opens the plugin that was found and tries none of the others again, nor after a crash."""
    says = fill(tmp_path / "search", plugins)
    want = generate(MODELS / "llama")[1]
    server = Server(model, "--plugin-path", tmp_path / "search", *IDS, "--max-model-len", "128")
    answer = server.complete([5, 6, 7, 8], max_tokens=4, temperature=0, ignore_eos=True)
    assert [str(i) for i in answer["choices"][0]["token_ids"]] == re.findall(r"\d+", want)[:4]
    log = server.process.log()
    for file, part in says.items():
        lines = [line for line in log.splitlines() if file in line]
        assert len(lines) == 1 and part in lines[0] and "left out" in lines[0], (file, lines)
    assert {name for name, _ in serving(log)} == {"operation"}
    assert server.stop() == 0


def test_the_first_one_found_serves(plugins, model, tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
    shutil.copy(plugins / "second.so", first / "a.so")
    shutil.copy(plugins / "operation.so", first / "b.so")
    shutil.copy(plugins / "operation.so", second / "a.so")
    search = f"{first}:{second}"

    def found(*options):
        code, _, err = generate(model, "--plugin-path", search, *options)
        assert code == 0, err
        files = set(serving(err))
        assert len(files) == 1, err
        return files.pop()

    assert found() == ("second", str(first / "a.so"))
    assert found("--plugin", plugins / "operation.so") == ("operation", str(plugins / "operation.so"))
    shutil.copy(plugins / "operation.so", first / "OperationForCausalLM.so")
    assert found() == ("operation", str(first / "OperationForCausalLM.so"))
    search = f"{second}:{first}"
    assert found() == ("operation", str(second / "a.so"))


def test_two_of_the_command_line(plugins, model):
    code, _, err = generate(model, "--plugin", plugins / "operation.so", "--plugin", plugins / "second.so")
    assert code != 0 and f"plugin {plugins}/second.so: architecture OperationForCausalLM: plugin operation" in err and str(
        plugins / "operation.so") in err and "leave one of both out" in err, err
    link = model.parent / "link.so"
    link.symlink_to(plugins / "operation.so")
    code, _, err = generate(model, "--plugin", plugins / "operation.so", "--plugin", plugins / "operation.so", "--plugin", link)
    assert code == 0 and {name for name, _ in serving(err)} == {"operation"}, err


def test_one_that_is_served_does_not_hide_the_others(plugins, model, tmp_path):
    """A plugin of two architectures, found beside another that serves one of them: it serves the other one."""
    folder = tmp_path / "search"
    folder.mkdir()
    shutil.copy(plugins / "faulty.so", folder / "a.so")
    env = {"QUIRE_TEST_FAULT": "two", "QUIRE_PLUGIN_PATH": str(folder)}
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"architectures": ["SecondForCausalLM"]}))

    def check(*options):
        out = subprocess.run([BIN / "quire", "check-model", model, *options], capture_output=True, text=True,
                             env=os.environ | env, timeout=60)
        return out.stderr
    assert "serves SecondForCausalLM" in check() and "serves OperationForCausalLM" in check()
    err = check("--plugin", plugins / "operation.so")
    assert "serves SecondForCausalLM" in err and "OperationForCausalLM is served by plugin operation" in err, err
    err = check("--plugin", plugins / "operation.so", "--plugin", folder / "a.so")  # a person named both
    assert "architecture OperationForCausalLM: plugin operation" in err and "serves SecondForCausalLM" not in err, err


def test_a_built_in_architecture(plugins, tmp_path):
    """--plugin wins over the family, and the log says it; the search path is not looked at."""
    shutil.copy(plugins / "faulty.so", tmp_path / "LlamaForCausalLM.so")
    env = {"QUIRE_TEST_FAULT": "built in"}
    out = {}
    for way in (("--plugin", tmp_path / "LlamaForCausalLM.so"), ("--plugin-path", tmp_path)):
        out[way[0]] = subprocess.run([BIN / "quire", "check-model", MODELS / "llama", *way], capture_output=True,
                                     text=True, env=os.environ | env, timeout=60).stderr
    assert "serves LlamaForCausalLM, as a variation of LlamaForCausalLM, in place of the built-in family" in out["--plugin"]
    assert "serves" not in out["--plugin-path"], out


def test_what_is_no_file(plugins, model, tmp_path):
    os.mkfifo(tmp_path / "pipe.so")
    (tmp_path / "link.so").symlink_to(tmp_path / "nothing")
    for file, says in ((tmp_path / "pipe.so", "not a regular file"), ("/dev/zero", "not a regular file"), (tmp_path, "is no file"),
                       (tmp_path / "link.so", "no such file")):
        code, _, err = generate(model, "--plugin", file)
        assert code in (2, 3) and says in err and len(err.splitlines()) == 1, err
