# SPDX-License-Identifier: Apache-2.0
"""tests/lint.py on headers that need what a machine may lack."""
import importlib.util

import pytest

from servers import ROOT


@pytest.fixture
def lint(tmp_path, monkeypatch):
    """The program as a module, with lists of its own, in a folder of its own."""
    spec = importlib.util.spec_from_file_location("lint", ROOT / "tests/lint.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.CUDA_FOLDERS = ()
    monkeypatch.chdir(tmp_path)
    return module


def test_a_header_that_needs_cuda_is_skipped_and_counted(lint, tmp_path):
    (tmp_path / "card.h").write_text("#include <cuda_of_no_machine.h>\nstruct card { cudaStream_t stream; };\n")
    (tmp_path / "through.h").write_text('#include "card.h"\n')
    lint.check_headers_compile(["card.h", "through.h"])
    assert lint.findings == []
    assert lint.skipped == [("card.h", "cuda_of_no_machine.h"), ("through.h", "cuda_of_no_machine.h")]


def test_it_is_compiled_where_the_wheels_are(lint, tmp_path):
    folder = tmp_path / "build/nvcc/lib/python3.11/site-packages/nvidia/cu13/include"
    folder.mkdir(parents=True)
    (folder / "cuda_runtime_api.h").write_text("typedef struct CUstream_st *cudaStream_t;\n")
    (folder / "cuda_of_no_machine.h").write_text("#include <cuda_runtime_api.h>\n")
    lint.CUDA_FOLDERS = (str(tmp_path / "nothing"), "build/nvcc/lib/python3*/site-packages/nvidia/cu13/include")
    (tmp_path / "card.h").write_text("#include <cuda_of_no_machine.h>\nstruct card { cudaStream_t stream; };\n")
    (tmp_path / "wrong.h").write_text("#include <cuda_of_no_machine.h>\nstruct card { cudaEvent_t event; };\n")
    lint.check_headers_compile(["card.h", "wrong.h"])
    assert lint.skipped == [] and len(lint.findings) == 1 and lint.findings[0].startswith("wrong.h:1: does not compile alone")


def test_any_other_missing_header_is_a_finding(lint, tmp_path):
    (tmp_path / "a.h").write_text("#include <of_no_machine.h>\n")
    (tmp_path / "b.h").write_text("int f(struct unknown s);\n")
    lint.check_headers_compile(["a.h", "b.h"])
    assert [f.split(":")[0] for f in lint.findings] == ["a.h", "b.h"] and lint.skipped == []
