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


def words(output):
    return isinstance(output, str) and output.strip()


def is_dict(output): # without a schema the model can promise no more
    return isinstance(output, dict)


OSLO, TWO, NONE = ["Oslo"], ["Oslo", "Rome"], []
# loop: (cities that the tool was called with, what the output must be)
LOOPS = {
    "openai_agents": {
        "openai_agents": (OSLO, same(SENTENCE)), "openai_agents_stream": (OSLO, same(SENTENCE)),
        "openai_agents_responses": (OSLO, same(SENTENCE)), "openai_agents_responses_stream": (OSLO, same(SENTENCE)),
        "openai_agents_responses_typed": (OSLO, same(REPORT)),
        "openai_agents_typed": (OSLO, same(REPORT)), "openai_agents_typed_stream": (OSLO, same(REPORT)),
        "openai_agents_handoff": (OSLO, same(SENTENCE)), "openai_agents_handoff_stream": (OSLO, same(SENTENCE)),
        "openai_agents_stop": (OSLO, same({"city": "Oslo", **REPORT})), "openai_agents_parallel": (TWO, same(TWO)),
        "openai_agents_failure": (OSLO, words)},
    "pydantic_ai": {
        "pydantic_ai": (OSLO, same(SENTENCE)), "pydantic_ai_stream": (OSLO, same(SENTENCE)), "pydantic_ai_native": (OSLO, same(REPORT)),
        "pydantic_ai_output": (OSLO, same(PLACE)), "pydantic_ai_outputs": (OSLO, same(True)),
        "pydantic_ai_output_or_text": (OSLO, same(SENTENCE)), "pydantic_ai_output_stream": (OSLO, same(PLACE)),
        "pydantic_ai_prompted": (None, is_dict), "pydantic_ai_parallel": (TWO, same(TWO)), "pydantic_ai_retry": (None, words)},
    "langchain": {
        "langchain": (OSLO, same(SENTENCE)), "langchain_stream": (OSLO, same(SENTENCE)), "langchain_async": (OSLO, same(SENTENCE)),
        "langchain_typed": (OSLO, same(REPORT)), "langchain_tool_strategy": (OSLO, same(PLACE)), "langchain_parallel": (TWO, same(TWO)),
        "langchain_failure": (OSLO, words), "langchain_function_calling": (NONE, same(PLACE)),
        "langchain_function_calling_strict": (NONE, same(PLACE)), "langchain_json_schema": (NONE, same(PLACE)),
        "langchain_json_mode": (NONE, is_dict), "langchain_structured_stream": (NONE, same(PLACE)),
        "langchain_bind_stream": (NONE, same(PLACE))},
    "instructor": {
        "instructor_tools": (NONE, same(PLACE)), "instructor_tools_stream": (NONE, same(PLACE)),
        "instructor_tools_strict": (NONE, same(PLACE)), "instructor_json_schema": (NONE, same(PLACE)),
        "instructor_json_schema_stream": (NONE, same(PLACE)), "instructor_json": (NONE, is_dict)}}


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
        calls, good = loops[result["loop"]]
        assert calls is None or sorted(result["seen"]) == calls, result # None: as often as the model likes
        assert good(result["output"]), result
