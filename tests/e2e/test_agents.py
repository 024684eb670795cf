# SPDX-License-Identifier: Apache-2.0
"""Agent frameworks run their loops against the bundled model: the tool is called with its arguments, the result given back, the
last answer text or an object of the type that was asked for. The frameworks have a Python environment of their own
(tests/requirements-agents.txt); agent_loops.py has the loops."""
import json
import os
import pathlib
import subprocess

import pytest

from servers import ROOT

PYTHON = pathlib.Path(os.environ.get("QUIRE_AGENTS_PYTHON", ROOT / "tests/.venv-agents/bin/python"))
SENTENCE = "The city is Oslo, the temperature is 21 and the condition is sunny."
REPORT = {"temperature": 21, "condition": "sunny"}
PLACE = {"city": "Oslo"}

pytestmark = pytest.mark.skipif(not PYTHON.exists(), reason=f"the agent frameworks are not there: {PYTHON} "
                                "(tests/run.sh e2e installs tests/requirements-agents.txt)")


def same(wanted):
    return lambda output: output == wanted


LOOPS = {
    "openai_agents": {"openai_agents": same(SENTENCE), "openai_agents_stream": same(SENTENCE), "openai_agents_typed": same(REPORT),
                      "openai_agents_typed_stream": same(REPORT)},
    "pydantic_ai": {"pydantic_ai": same(SENTENCE), "pydantic_ai_stream": same(SENTENCE), "pydantic_ai_native": same(REPORT)},
    "langchain": {"langchain": same(SENTENCE), "langchain_stream": same(SENTENCE), "langchain_typed": same(REPORT)},
    "instructor": {"instructor_tools": same(PLACE), "instructor_tools_stream": same(PLACE), "instructor_tools_strict": same(PLACE),
                   "instructor_json_schema": same(PLACE), "instructor_json_schema_stream": same(PLACE),
                   "instructor_json": lambda output: isinstance(output, dict)}}


@pytest.mark.parametrize("framework", LOOPS)
def test_loops(bundled, framework):
    loops = LOOPS[framework]
    begin = bundled.post("/tokenize", {"prompt": "<tool_call>", "add_special_tokens": False})[1]["tokens"][0]
    done = subprocess.run([PYTHON, ROOT / "tests/e2e/agent_loops.py", bundled.url, str(begin), *loops], capture_output=True,
                          text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    results = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"loop"')]
    assert [r["loop"] for r in results] == list(loops)
    for result in results:
        assert "error" not in result, result["error"]
        assert result["seen"] == ([] if framework == "instructor" else ["Oslo"]), result
        assert loops[result["loop"]](result["output"]), result
