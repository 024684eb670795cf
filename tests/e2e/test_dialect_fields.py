# SPDX-License-Identifier: Apache-2.0
"""Every field that the openai and anthropic packages can send to /v1/responses and /v1/messages has a class: honoured, without effect, or
refused by name. A version of a package with another field fails here until the field has one."""
import json

import pytest
from anthropic.types import (MetadataParam, OutputConfigParam, ThinkingConfigEnabledParam, ToolChoiceToolParam, ToolParam, ToolResultBlockParam,
                             beta, message_count_tokens_params, message_create_params)
from openai.types.responses import (FunctionToolParam, ResponseFormatTextJSONSchemaConfigParam, ResponseTextConfigParam,
                                    input_token_count_params, response_create_params)
from openai.types.shared_params import Reasoning

from test_messages import TOOL as MESSAGES_TOOL
from test_responses import TOOL, WHO

HONOURED, NO_EFFECT, REFUSED, HEADER = "honoured", "no effect", "refused", "sent as a header"
FORMAT = {"type": "json_schema", "schema": {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"], "additionalProperties": False}}
CALL = {"structural_tag": {"type": "structural_tag", "format": {"type": "const_string", "value": '<tool_call>\n{"name": "get_weather", '
                                                                '"arguments": {"city": "Oslo"}}\n</tool_call>'}}}


def text(answer):
    return "".join(part["text"] for item in answer.get("output", []) for part in item.get("content", [])) + "".join(
        block.get("text", "") for block in answer.get("content", []))


def n_input(answer):
    usage = answer["usage"]
    return usage["input_tokens"] + usage.get("cache_read_input_tokens", 0)


# Of a field: its class, a value (or an object that has it and the fields that it needs), and for one that is honoured what the answer must
# have (`plain` is the answer without the field), or a part of the error that a wrong value gets.
RESPONSES = {
    "access_programs": (NO_EFFECT, {"cyber": "standard"}),
    "background": (REFUSED, True),
    "context_management": (REFUSED, [{"type": "compaction"}]),
    "conversation": (REFUSED, "conv_1"),
    "image": (NO_EFFECT, {"context_compression": "auto"}),
    "include": (HONOURED, ["message.output_text.logprobs"], lambda a, plain: a["output"][0]["content"][0]["logprobs"]),
    "input": (HONOURED, "Hello", lambda a, plain: n_input(a) != n_input(plain)),
    "instructions": (HONOURED, "Be brief.", lambda a, plain: n_input(a) > n_input(plain)),
    "max_output_tokens": (HONOURED, 3, lambda a, plain: a["usage"]["output_tokens"] == 3),
    "max_tool_calls": (NO_EFFECT, 2),
    "metadata": (HONOURED, {"a": "b"}, lambda a, plain: a["metadata"] == {"a": "b"}),
    "model": (HONOURED, "quire-tiny", lambda a, plain: a["model"] == "quire-tiny"),
    "moderation": (REFUSED, {"model": "omni"}),
    "parallel_tool_calls": (HONOURED, False, lambda a, plain: a["parallel_tool_calls"] is False),
    "personality": (REFUSED, "friendly"),
    "previous_response_id": (REFUSED, "resp_1"),
    "prompt": (REFUSED, {"id": "pmpt_1"}),
    "prompt_cache_key": (NO_EFFECT, "k"),
    "prompt_cache_options": (NO_EFFECT, {"mode": "explicit", "ttl": "30m", "prewarm": False}),
    "prompt_cache_retention": (NO_EFFECT, "24h"),
    "reasoning": (HONOURED, {"effort": "low"}, lambda a, plain: a["reasoning"]["effort"] == "low"),
    "safety_identifier": (NO_EFFECT, "s"),
    "service_tier": (NO_EFFECT, "flex"),
    "store": (NO_EFFECT, True),
    "stream": (HONOURED, True, lambda a, plain: a is None),  # not JSON, but events
    "stream_options": (HONOURED, {"stream": True, "stream_options": {"include_obfuscation": False}}, lambda a, plain: a is None),
    "temperature": (HONOURED, 0.5, lambda a, plain: a["temperature"] == 0.5),
    "text": (HONOURED, {"format": {"name": "a", **FORMAT}}, lambda a, plain: json.loads(text(a)) == {"a": 1}),
    "tool_choice": (HONOURED, {"tools": [TOOL], "tool_choice": "required"}, lambda a, plain: a["output"][0]["type"] == "function_call"),
    "tools": (HONOURED, [TOOL], lambda a, plain: n_input(a) > n_input(plain)),
    "top_logprobs": (HONOURED, {"top_logprobs": 2, "include": ["message.output_text.logprobs"]},
                     lambda a, plain: len(a["output"][0]["content"][0]["logprobs"][0]["top_logprobs"]) == 2),
    "top_p": (HONOURED, 0.5, lambda a, plain: a["top_p"] == 0.5),
    "truncation": (REFUSED, "auto"),
    "user": (HONOURED, "u", lambda a, plain: a["user"] == "u"),
}
MESSAGES = {
    "betas": (HEADER,),
    "billing_policy": (NO_EFFECT, {"type": "billing_policy", "bill_to": "self"}),
    "cache_control": (NO_EFFECT, {"type": "ephemeral"}),
    "compaction": (REFUSED, {"type": "enabled"}),
    "container": (REFUSED, "c"),
    "context_management": (REFUSED, {"edits": []}),
    "diagnostics": (NO_EFFECT, {"previous_message_id": "msg_1"}),
    "fallback_credit_token": (NO_EFFECT, "t"),
    "fallbacks": (NO_EFFECT, "default"),
    "inference_geo": (NO_EFFECT, "us"),
    "max_tokens": (HONOURED, 3, lambda a, plain: a["usage"]["output_tokens"] == 3),
    "mcp_servers": (REFUSED, [{"type": "url", "url": "http://x", "name": "x"}]),
    "messages": (HONOURED, [{"role": "user", "content": "Hello"}], lambda a, plain: n_input(a) != n_input(plain)),
    "metadata": (NO_EFFECT, {"user_id": "u"}),
    "model": (HONOURED, "quire-tiny", lambda a, plain: a["model"] == "quire-tiny"),
    "output_config": (HONOURED, {"format": FORMAT}, lambda a, plain: json.loads(text(a)) == {"a": 1}),
    "output_format": (HONOURED, FORMAT, lambda a, plain: json.loads(text(a)) == {"a": 1}),
    "service_tier": (NO_EFFECT, "standard_only"),
    "speed": (NO_EFFECT, "fast"),
    "stop_sequences": (HONOURED, ["small"], lambda a, plain: a["stop_sequence"] == "small"),
    "stream": (HONOURED, True, lambda a, plain: a is None),
    "system": (HONOURED, "Be brief.", lambda a, plain: n_input(a) > n_input(plain)),
    "temperature": (HONOURED, 9, "out of range"),
    "thinking": (HONOURED, {"type": "perhaps"}, "expected"),
    "thread": (REFUSED, {"type": "create"}),
    "tool_choice": (HONOURED, {"tools": [MESSAGES_TOOL], "tool_choice": {"type": "any"}}, lambda a, plain: a["stop_reason"] == "tool_use"),
    "tools": (HONOURED, [MESSAGES_TOOL], lambda a, plain: n_input(a) > n_input(plain)),
    "top_k": (HONOURED, "a", "expected"),
    "top_p": (HONOURED, 9, "out of range"),
    "user_profile_id": (HEADER,),
    "workspace_id": (HEADER,),
}
OLD = {"temperature", "top_k", "top_p"}  # earlier versions of the anthropic package have them
ASKED = {"/v1/responses": {"input": WHO, "max_output_tokens": 40}, "/v1/messages": {"messages": [{"role": "user", "content": WHO}], "max_tokens": 40}}
ROWS = [(path, name) for path, fields in (("/v1/responses", RESPONSES), ("/v1/messages", MESSAGES)) for name in fields]


def names(*types):
    return {name for kind in types for name in kind.__annotations__}


def test_every_field_has_a_class():
    assert names(response_create_params.ResponseCreateParamsNonStreaming, response_create_params.ResponseCreateParamsStreaming,
                 input_token_count_params.InputTokenCountParams) == set(RESPONSES)
    sent = names(message_create_params.MessageCreateParamsNonStreaming, message_create_params.MessageCreateParamsStreaming,
                 message_count_tokens_params.MessageCountTokensParams, beta.message_create_params.MessageCreateParamsNonStreaming,
                 beta.message_count_tokens_params.MessageCountTokensParams)
    assert sent | OLD | {"output_format"} == set(MESSAGES)  # output_format: of versions before output_config


def ask(server, path, more):
    """The status, the answer (None: events), and the fields that the server did not know."""
    connection, answer = server.raw("POST", path, {"temperature": 0, "seed": 1, **ASKED[path], **more})
    body = answer.read()
    connection.close()
    is_json = answer.headers["content-type"].startswith("application/json")
    return answer.status, json.loads(body) if is_json else None, answer.headers.get("X-Quire-Warning", "")


@pytest.mark.parametrize("path, name", ROWS)
def test_a_field(bundled, path, name):
    kind, *rest = (RESPONSES if path == "/v1/responses" else MESSAGES)[name]
    if kind == HEADER:
        return
    value, *check = rest
    more = value if isinstance(value, dict) and name in value else {name: value}
    status, answer, unknown = ask(bundled, path, more)
    if kind == REFUSED or isinstance(check[0] if check else None, str):
        said = answer["error"]["message"]
        assert status == 400 and said.startswith(f"{name}: "), answer
        assert path == "/v1/messages" or answer["error"]["param"] == name
        assert kind == HONOURED or ask(bundled, path, {name: None})[0] == 200
        assert kind == REFUSED or check[0] in said
        return
    assert status == 200 and not unknown, (answer, unknown)
    plain = ask(bundled, path, {})[1]
    if kind == NO_EFFECT:
        assert text(answer) == text(plain) and n_input(answer) == n_input(plain)
    else:
        assert check[0](answer, plain), answer


# Members of fields: the package's type, where it stands, a value of each member, and those that are refused, with their value.
MEMBERS = {
    "reasoning": ("/v1/responses", Reasoning, lambda m: {"reasoning": m},
                  {"effort": "low", "summary": "auto", "generate_summary": "auto", "context": "auto", "mode": "standard"},
                  {"effort": "wild", "context": "all_turns", "mode": "pro"}),
    "text": ("/v1/responses", ResponseTextConfigParam, lambda m: {"text": m}, {"format": {"type": "text"}, "verbosity": "medium"},
             {"format": {"type": "xml"}, "verbosity": "wild"}),
    "text.format": ("/v1/responses", ResponseFormatTextJSONSchemaConfigParam, lambda m: {"text": {"format": m}},
                    {"type": "json_schema", "name": "a", "description": "b", "schema": FORMAT["schema"], "strict": True}, {"type": "xml"}),
    "tools": ("/v1/responses", FunctionToolParam, lambda m: {"tools": [m]},
              {**TOOL, "strict": False, "defer_loading": True, "async": False, "allowed_callers": ["direct"], "output_schema": {}},
              {"type": "web_search", "name": 1}),
    "prompt_cache_options": ("/v1/responses", response_create_params.PromptCacheOptions, lambda m: {"prompt_cache_options": m},
                             {"mode": "implicit", "ttl": "30m", "prewarm": False, "comparison_response_id": "resp_1"}, {"prewarm": True}),
    "stream_options": ("/v1/responses", response_create_params.StreamOptions, lambda m: {"stream": True, "stream_options": m},
                       {"include_obfuscation": False}, {"include_obfuscation": True}),
    "output_config": ("/v1/messages", OutputConfigParam, lambda m: {"output_config": m}, {"effort": "low", "format": FORMAT},
                      {"effort": "wild", "format": {"type": "xml"}}),
    "metadata": ("/v1/messages", MetadataParam, lambda m: {"metadata": m}, {"user_id": "u"}, {}),
    "thinking": ("/v1/messages", ThinkingConfigEnabledParam, lambda m: {"thinking": m},
                 {"type": "enabled", "budget_tokens": 1024, "display": "summarized"},
                 {"type": "between_tools", "display": "wild", "budget_tokens": -1}),
    "messages tools": ("/v1/messages", ToolParam, lambda m: {"tools": [m]},
                       {**MESSAGES_TOOL, "type": "custom", "strict": False, "cache_control": {"type": "ephemeral"}, "defer_loading": True,
                        "allowed_callers": ["direct"], "input_examples": [{"city": "Oslo"}], "eager_input_streaming": True},
                       {"type": "bash_20250124", "name": 1}),
    "messages tool_choice": ("/v1/messages", ToolChoiceToolParam, lambda m: {"tools": [MESSAGES_TOOL], "tool_choice": m},
                             {"type": "tool", "name": "get_weather", "disable_parallel_tool_use": True}, {"type": "some", "name": "other"}),
    "tool_result": ("/v1/messages", ToolResultBlockParam, lambda m: {"messages": [{"role": "user", "content": [m]}]},
                    {"type": "tool_result", "tool_use_id": "a", "content": "b", "is_error": True, "cache_control": {"type": "ephemeral"},
                     "toolset_name": "c"}, {"tool_use_id": 1, "content": 1, "is_error": "yes"}),
}


@pytest.mark.parametrize("where", MEMBERS)
def test_members(bundled, where):
    path, kind, request, members, refused = MEMBERS[where]
    assert names(kind) == set(members)
    status, answer, unknown = ask(bundled, path, request(members))
    assert status == 200 and not unknown, (answer, unknown)
    for name, value in refused.items():
        status, answer, _ = ask(bundled, path, request({**members, name: value}))
        said = (answer.get("error") or {}).get("message", "")
        assert status == 400 and said.startswith(list(request({}))[-1].split("_")[0]) and (name in said or str(value) in said), (name, answer)


def test_thinking_that_is_not_shown(start):
    """display: omitted: the answer has no block of it, streams have none either."""
    from servers import BUNDLED
    server = start(BUNDLED, "--served-model-name", "quire-tiny", "--num-gpu-blocks-override", "256", "--reasoning-parser", "qwen3")
    value = "<think>\nThey greet.\n</think>\n\nHello."
    more = {"structural_tag": {"type": "structural_tag", "format": {"type": "const_string", "value": value}}}
    for display, kinds in (("summarized", ["thinking", "text"]), (None, ["thinking", "text"]), ("omitted", ["text"])):
        answer = ask(server, "/v1/messages", {**more, "thinking": {"type": "adaptive", "display": display}})[1]
        assert [block["type"] for block in answer["content"]] == kinds, answer
        assert answer["usage"]["output_tokens"] > 15
