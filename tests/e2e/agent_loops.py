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


class City(BaseModel): # a mode without a schema in the request can promise no more of this model than an object
    city: str | None = None


# --- openai-agents


def openai_agent(**more):
    import agents
    from openai import AsyncOpenAI
    agents.set_tracing_disabled(True)

    @agents.function_tool
    def get_weather(city: str) -> str:
        """The weather of a city

        Args:
            city: Name of the city
        """
        return look_up(city)
    client = AsyncOpenAI(base_url=URL, api_key="none", max_retries=0, timeout=60)
    settings = agents.ModelSettings(temperature=0, max_tokens=200, extra_args={"logit_bias": BIAS} if "output_type" in more else None)
    return agents, agents.Agent(name="weather", model=agents.OpenAIChatCompletionsModel(MODEL, client), tools=[get_weather],
                                model_settings=settings, **more)


def openai_agents():
    agents, agent = openai_agent()
    return asyncio.run(agents.Runner.run(agent, ASK, max_turns=4)).final_output


def openai_agents_stream():
    agents, agent = openai_agent()

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


# --- pydantic-ai


def pydantic_agent(**more):
    import pydantic_ai
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider
    settings = {"temperature": 0, "max_tokens": 200, **({"logit_bias": BIAS} if more else {})}
    agent = pydantic_ai.Agent(OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=URL, api_key="none")), model_settings=settings,
                              **more)

    @agent.tool_plain
    def get_weather(city: str) -> str:
        """The weather of a city

        Args:
            city: Name of the city
        """
        return look_up(city)
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


# --- langchain, langgraph


def langchain_agent(**more):
    from langchain.agents import create_agent
    from langchain.tools import tool
    from langchain_openai import ChatOpenAI

    @tool(parse_docstring=True)
    def get_weather(city: str) -> str:
        """The weather of a city

        Args:
            city: Name of the city
        """
        return look_up(city)
    model = ChatOpenAI(model=MODEL, base_url=URL, api_key="none", temperature=0, max_tokens=200, max_retries=0,
                       **({"logit_bias": BIAS} if more else {}))
    return create_agent(model, [get_weather], **more)


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


# --- instructor


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


def instructor_tools():
    return instruct("TOOLS", Place)


def instructor_tools_stream():
    return instruct("TOOLS", Place, partial=True)


def instructor_tools_strict():
    return instruct("TOOLS_STRICT", Place)


def instructor_json():
    return instruct("JSON", City)


def instructor_json_schema():
    return instruct("JSON_SCHEMA", Place)


def instructor_json_schema_stream():
    return instruct("JSON_SCHEMA", Place, partial=True)


def main():
    for name in LOOPS:
        seen.clear()
        try:
            output = globals()[name]()
            result = {"seen": list(seen), "output": output.model_dump() if isinstance(output, BaseModel) else output}
        except Exception:  # of any framework: the next loop is run all the same
            result = {"error": traceback.format_exc()[-2000:]}
        print(json.dumps({"loop": name, **result}), flush=True)


if __name__ == "__main__":
    main()
