# SPDX-License-Identifier: Apache-2.0
"""Loops of agent frameworks against a server: agent_loops.py URL BEGIN LOOP… writes what came of each as a line of JSON.

test_agents.py runs this with a Python of its own (tests/requirements-agents.txt). BEGIN is the first token of the bundled model's
tool calls: where an answer has a schema the model, which never saw one, would call again and again; a bias against that token is
small enough to let it call when it is asked to, and makes it answer when it has the result."""
import asyncio
import json
import os
import sys
import traceback
from typing import Literal

os.environ.update(OPENAI_API_KEY="none", OPENAI_AGENTS_DISABLE_TRACING="1", LANGSMITH_TRACING="false", LANGCHAIN_TRACING_V2="false",
                  DO_NOT_TRACK="1")
from pydantic import BaseModel, Field  # noqa: E402

URL, BEGIN, LOOPS = sys.argv[1] + "/v1", sys.argv[2], sys.argv[3:]
MODEL = "quire-tiny"
BIAS = {BEGIN: -8}
ASK = "What is the weather in Oslo?"
seen = []


def look_up(city):
    seen.append(city)
    return json.dumps({"city": city, "temperature": 21, "condition": "sunny"})


class Report(BaseModel):
    """The weather as the tool reported it."""
    temperature: Literal[21, 7]
    condition: Literal["sunny", "cloudy"]


class Place(BaseModel):
    """The place that is asked for"""
    city: str = Field(description="Name of the city")


class Hour(BaseModel):
    """The hour that is asked for"""
    hour: Literal[7, 12]


class City(BaseModel): # a mode without a schema in the request can promise no more of this model than an object
    city: str | None = None


# Both calls in one answer: which tokens the model may write is its choice no more.
TWO = {"structural_tag": {"type": "structural_tag", "format": {"type": "const_string", "value": "\n".join(
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "%s"}}\n</tool_call>' % city for city in ("Oslo", "Rome"))}}}


# ---- openai-agents ----


def openai_agent(settings=None, fails=False, responses=False, **more):
    import agents
    from openai import AsyncOpenAI
    agents.set_tracing_disabled(True)

    @agents.function_tool
    def get_weather(city: str) -> str:
        """The weather of a city

        Args:
            city: Name of the city
        """
        result = look_up(city)
        if fails:
            raise ValueError("the sensor is broken")
        return result
    client = AsyncOpenAI(base_url=URL, api_key="none", max_retries=0, timeout=60)
    settings = {"temperature": 0, "max_tokens": 200, "extra_body" if responses else "extra_args": {"logit_bias": BIAS} if "output_type" in more else None,
                **(settings or {})}
    model = agents.OpenAIResponsesModel if responses else agents.OpenAIChatCompletionsModel
    return agents, agents.Agent(**{"name": "weather", "model": model(MODEL, client), "tools": [get_weather],
                                   "model_settings": agents.ModelSettings(**settings), **more})


def openai_agents():
    agents, agent = openai_agent()
    return asyncio.run(agents.Runner.run(agent, ASK, max_turns=4)).final_output


def openai_agents_responses():
    agents, agent = openai_agent(responses=True)
    return asyncio.run(agents.Runner.run(agent, ASK, max_turns=4)).final_output


def openai_agents_responses_stream():
    return openai_agents_stream(responses=True)


def openai_agents_responses_typed():
    agents, agent = openai_agent(responses=True, output_type=Report)
    return asyncio.run(agents.Runner.run(agent, ASK, max_turns=4)).final_output


def openai_agents_stream(**more):
    agents, agent = openai_agent(**more)

    async def run():
        result = agents.Runner.run_streamed(agent, ASK, max_turns=4)
        pieces = [e.data.delta async for e in result.stream_events()
                  if e.type == "raw_response_event" and e.data.type == "response.output_text.delta"]
        assert "".join(pieces) == result.final_output and len(pieces) > 1, pieces
        return result.final_output
    return asyncio.run(run())


def openai_agents_typed():
    agents, agent = openai_agent(output_type=Report)
    return asyncio.run(agents.Runner.run(agent, ASK, max_turns=4)).final_output


def openai_agents_typed_stream():
    agents, agent = openai_agent(output_type=Report)

    async def run():
        result = agents.Runner.run_streamed(agent, ASK, max_turns=4)
        async for _ in result.stream_events():
            pass
        return result.final_output
    return asyncio.run(run())


def openai_agents_handoff():
    """The first agent has nothing but the handoff, a tool without parameters; the second has the tool, and must call it."""
    agents, weather = openai_agent({"tool_choice": "required", "parallel_tool_calls": False})
    _, desk = openai_agent({"tool_choice": "required", "parallel_tool_calls": False}, name="desk", tools=[], handoffs=[weather])
    result = asyncio.run(agents.Runner.run(desk, ASK, max_turns=6))
    assert result.last_agent.name == "weather", result.last_agent.name
    return result.final_output


def openai_agents_handoff_stream():
    agents, weather = openai_agent({"tool_choice": "required", "parallel_tool_calls": False})
    _, desk = openai_agent({"tool_choice": "transfer_to_weather"}, name="desk", tools=[], handoffs=[weather])

    async def run():
        result = agents.Runner.run_streamed(desk, ASK, max_turns=6)
        names = [e.name async for e in result.stream_events() if e.type == "run_item_stream_event"]
        assert names == ["handoff_requested", "handoff_occured", "tool_called", "tool_output", "message_output_created"], names
        return result.final_output
    return asyncio.run(run())


def openai_agents_stop():
    """The tool's result is the output; the model is not asked again."""
    agents, agent = openai_agent({"tool_choice": "get_weather"}, tool_use_behavior="stop_on_first_tool")
    result = asyncio.run(agents.Runner.run(agent, ASK, max_turns=2))
    assert len(result.raw_responses) == 1
    return json.loads(result.final_output)


def openai_agents_parallel():
    agents, agent = openai_agent({"extra_body": TWO}, tool_use_behavior="stop_on_first_tool")
    result = asyncio.run(agents.Runner.run(agent, ASK, max_turns=2))
    calls = [item.raw_item for item in result.new_items if item.type == "tool_call_item"]
    assert len({call.call_id for call in calls}) == 2, calls
    return [json.loads(call.arguments)["city"] for call in calls]


def openai_agents_failure():
    """The tool raises: the model gets the framework's words about it as the result."""
    agents, agent = openai_agent(fails=True)
    result = asyncio.run(agents.Runner.run(agent, ASK, max_turns=4))
    assert [type(item).__name__ for item in result.new_items] == ["ToolCallItem", "ToolCallOutputItem", "MessageOutputItem"]
    assert result.new_items[1].output != look_up("Oslo") and seen.pop(), result.new_items[1].output
    return result.final_output


# ---- pydantic-ai ----


def pydantic_agent(settings=None, fails=False, once=False, **more):
    import pydantic_ai
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider
    settings = {"temperature": 0, "max_tokens": 200, **({"logit_bias": BIAS} if more else {}), **(settings or {})}
    agent = pydantic_ai.Agent(OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=URL, api_key="none")), model_settings=settings,
                              **more)

    async def offer(_, tool): # with once: until it was called
        return None if once and seen else tool

    @agent.tool_plain(prepare=offer)
    def get_weather(city: str) -> str:
        """The weather of a city

        Args:
            city: Name of the city
        """
        result = look_up(city)
        if fails and len(seen) == 1:
            raise pydantic_ai.ModelRetry("the sensor is broken")
        return result
    return agent


def pydantic_ai():
    return pydantic_agent().run_sync(ASK).output


def pydantic_ai_stream():
    async def run():
        async with pydantic_agent().run_stream(ASK) as result:
            return "".join([piece async for piece in result.stream_text(delta=True)])
    return asyncio.run(run())


def pydantic_ai_native():
    from pydantic_ai import NativeOutput
    return pydantic_agent(output_type=NativeOutput(Report)).run_sync(ASK).output


def pydantic_ai_output():
    """The output's type is a tool beside the other one; a call is required each time."""
    result = pydantic_agent(output_type=Place, once=True).run_sync(ASK)
    kinds = [part.part_kind for message in result.all_messages() for part in message.parts]
    assert kinds == ["user-prompt", "tool-call", "tool-return", "tool-call", "tool-return"], kinds
    return result.output


def pydantic_ai_outputs():
    """Two types, a tool each, in a model that has never seen the names: it must take one."""
    output = pydantic_agent(output_type=[Place, Hour], once=True).run_sync(ASK).output
    assert isinstance(output, (Place, Hour)), output
    return True


def pydantic_ai_output_or_text():
    """Two tools under "auto": the text that comes at last is the output."""
    return pydantic_agent({"logit_bias": {}}, output_type=[Hour, str]).run_sync(ASK).output


def pydantic_ai_output_stream():
    async def run():
        async with pydantic_agent(output_type=Place, once=True).run_stream(ASK) as result:
            outputs = [output async for output in result.stream_output(debounce_by=None)]
        return outputs[-1]
    return asyncio.run(run())


def pydantic_ai_prompted():
    from pydantic_ai import PromptedOutput
    return pydantic_agent(output_type=PromptedOutput(City)).run_sync(ASK).output


def pydantic_ai_parallel():
    async def run():
        async with pydantic_agent({"extra_body": TWO}).iter(ASK) as steps:
            async for step in steps:
                if seen: # the next request has the results
                    break
            calls = [part for part in steps.ctx.state.message_history[1].parts if part.part_kind == "tool-call"]
            results = [part for part in step.request.parts if part.part_kind == "tool-return"]
            assert [c.tool_call_id for c in calls] == [r.tool_call_id for r in results] and len({c.tool_call_id for c in calls}) == 2
            return [c.args_as_dict()["city"] for c in calls]
    return asyncio.run(run())


def pydantic_ai_retry():
    """The tool asks to be called again."""
    return pydantic_agent(fails=True).run_sync(ASK).output


# ---- langchain, langgraph ----


def langchain_model(**more):
    from langchain_openai import ChatOpenAI
    return ChatOpenAI(model=MODEL, base_url=URL, api_key="none", temperature=0, max_tokens=200, max_retries=0, **more)


def langchain_tool(fails=False):
    from langchain.tools import tool

    @tool(parse_docstring=True)
    def get_weather(city: str) -> str:
        """The weather of a city

        Args:
            city: Name of the city
        """
        result = look_up(city)
        if fails:
            raise ValueError("the sensor is broken")
        return result
    return get_weather


def langchain_agent(fails=False, **more):
    from langchain.agents import create_agent
    return create_agent(langchain_model(**({"logit_bias": BIAS} if "response_format" in more else {})), [langchain_tool(fails)], **more)


MESSAGES = {"messages": [{"role": "user", "content": ASK}]}
LIMIT = {"recursion_limit": 8}


def langchain():
    return langchain_agent().invoke(MESSAGES, LIMIT)["messages"][-1].content


def langchain_stream():
    pieces = [m.content for m, _ in langchain_agent().stream(MESSAGES, LIMIT, stream_mode="messages") if type(m).__name__ == "AIMessageChunk"]
    assert len(pieces) > 3, pieces
    return "".join(pieces)


def langchain_typed():
    from langchain.agents.structured_output import ProviderStrategy
    return langchain_agent(response_format=ProviderStrategy(Report)).invoke(MESSAGES, LIMIT)["structured_response"]


def langchain_async():
    async def run():
        pieces = [m.content async for m, _ in langchain_agent().astream(MESSAGES, LIMIT, stream_mode="messages")
                  if type(m).__name__ == "AIMessageChunk"]
        return "".join(pieces)
    return asyncio.run(run())


def langchain_tool_strategy():
    """The type is a tool, and a call required; the other tool is on offer until it was called."""
    from langchain.agents.middleware import wrap_model_call
    from langchain.agents.structured_output import ToolStrategy

    @wrap_model_call
    def once(request, handler):
        return handler(request.override(tools=[] if seen else request.tools))
    return langchain_agent(response_format=ToolStrategy(Place), middleware=[once]).invoke(MESSAGES, LIMIT)["structured_response"]


def langchain_parallel():
    """Two calls in the first answer; the second has both results, and no tools."""
    from langchain.agents.middleware import wrap_model_call

    @wrap_model_call
    def first(request, handler):
        return handler(request.override(tools=[]) if seen else request.override(model_settings={"extra_body": TWO}))
    messages = langchain_agent(middleware=[first]).invoke(MESSAGES, LIMIT)["messages"]
    assert [type(m).__name__ for m in messages] == ["HumanMessage", "AIMessage", "ToolMessage", "ToolMessage", "AIMessage"], messages
    assert [c["id"] for c in messages[1].tool_calls] == [m.tool_call_id for m in messages[2:4]]
    assert messages[-1].content and not messages[-1].tool_calls
    return [c["args"]["city"] for c in messages[1].tool_calls]


def langchain_failure():
    """The tool raises: the model gets the error as the result."""
    from langchain.agents.middleware import wrap_tool_call
    from langchain_core.messages import ToolMessage

    @wrap_tool_call
    def tell(request, handler):
        try:
            return handler(request)
        except ValueError as e:
            return ToolMessage(f"Error: {e}", tool_call_id=request.tool_call["id"], status="error")
    messages = langchain_agent(fails=True, middleware=[tell]).invoke(MESSAGES, LIMIT)["messages"]
    assert messages[2].content == "Error: the sensor is broken", messages
    return messages[-1].content


def langchain_structured(method, schema, **more):
    answer = langchain_model().with_structured_output(schema, method=method, include_raw=True, **more).invoke(ASK)
    assert not answer["parsing_error"], answer
    return answer["parsed"]


LANGCHAIN = {  # the loop's name without langchain_
    "function_calling": lambda: langchain_structured("function_calling", Place),
    "function_calling_strict": lambda: langchain_structured("function_calling", Place, strict=True),
    "json_schema": lambda: langchain_structured("json_schema", Place),
    "json_mode": lambda: langchain_structured("json_mode", City),
}


def langchain_structured_stream():
    parts = list(langchain_model().with_structured_output(Place.model_json_schema() | {"title": "Place"}, method="function_calling").stream(ASK))
    assert len(parts) > 1, parts
    return parts[-1]


def langchain_bind_stream():
    """The pieces of a call add up to it."""
    for choice in ("auto", "any", "get_weather"):
        whole, pieces = None, 0
        for chunk in langchain_model(stream_usage=True).bind_tools([langchain_tool(), Hour], tool_choice=choice).stream(ASK):
            whole = chunk if whole is None else whole + chunk
            pieces += len(chunk.tool_call_chunks)
        assert pieces > 2 and not whole.invalid_tool_calls and whole.usage_metadata["output_tokens"] > 2, whole
        assert whole.tool_calls[0]["name"] == "get_weather" and whole.tool_calls[0]["id"], whole
        assert whole.response_metadata["finish_reason"] == "tool_calls", whole
    return whole.tool_calls[0]["args"]


# ---- instructor ----


def instruct(mode, model, partial=False):
    import instructor
    import openai
    client = instructor.from_openai(openai.OpenAI(base_url=URL, api_key="none", max_retries=0, timeout=60),
                                    mode=getattr(instructor.Mode, mode))
    asked = {"model": MODEL, "response_model": model, "messages": [{"role": "user", "content": ASK}], "temperature": 0,
             "max_tokens": 200, "max_retries": 0}
    if not partial:
        return client.chat.completions.create(**asked)
    parts = list(client.chat.completions.create_partial(**asked))
    assert len(parts) > 1
    return parts[-1]


INSTRUCTOR = {  # the loop's name without instructor_
    "tools": lambda: instruct("TOOLS", Place),
    "tools_stream": lambda: instruct("TOOLS", Place, partial=True),
    "tools_strict": lambda: instruct("TOOLS_STRICT", Place),
    "json": lambda: instruct("JSON", City),
    "json_schema": lambda: instruct("JSON_SCHEMA", Place),
    "json_schema_stream": lambda: instruct("JSON_SCHEMA", Place, partial=True),
}


def loop_of(name):
    family, _, rest = name.partition("_")
    return {"langchain": LANGCHAIN, "instructor": INSTRUCTOR}.get(family, {}).get(rest) or globals()[name]


def main():
    for name in LOOPS:
        seen.clear()
        try:
            output = loop_of(name)()
            result = {"seen": list(seen), "output": output.model_dump() if isinstance(output, BaseModel) else output}
        except Exception:  # of any framework: the next loop is run all the same
            result = {"error": traceback.format_exc()[-2000:]}
        print(json.dumps({"loop": name, **result}), flush=True)


if __name__ == "__main__":
    main()
