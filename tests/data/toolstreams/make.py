#!/usr/bin/env python3
"""Writes formats.json: what models write in every tool-call format, and what a parser must make of it; and forced.json:
calls of strict functions, which the format's grammar has to let through.

The texts are made from the calls by the writers below, one a format, which follow the formats' descriptions (the models'
own chat templates) and know nothing of the parser. Run it in this folder after adding a format; the test then reads every
row whole, cut in two everywhere, byte by byte and in random groupings.
"""
import json

TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": properties}}}
    for name, properties in {
        "get_weather": {"city": {"type": "string"}, "days": {"type": "integer"}, "exact": {"type": "boolean"}},
        "send.mail": {"to": {"type": "array", "items": {"type": "string"}}, "body": {"type": "string"},
                      "options": {"$ref": "#/$defs/o"}, "note": {"anyOf": [{"type": "string"}, {"type": "null"}]}},
        "now": {},
    }.items()
]
TOOLS[1]["function"]["parameters"]["$defs"] = {"o": {"type": "object"}}

WEATHER = ("get_weather", {"city": "Zürich, CH", "days": 3, "exact": True})
BODY = 'Line 1\n"2" \\ {x}, [y] </tool_call> </parameter> <tool_call> \'q\' <b>é😀</b> %s 5 > 3'
NOW = ("now", {})


def mail(close):
    """Its body holds the closing tags of the format, which are text there."""
    return ("send.mail", {"to": ["a@example.com", "b,(c)@example.org"], "body": BODY % close,
                          "options": {"cc": None, "deep": {"a": [1, -2.5, {}], "b": []}}, "note": None})


def js(v):
    return json.dumps(v, ensure_ascii=False)


def obj(name, args, key="arguments"):
    return js({"name": name, key: args})


def each(before, after, between="\n", one=obj):
    return lambda calls: between.join(before + one(*c) + after for c in calls)


def array(before, after, one=obj):
    return lambda calls: before + "[" + ", ".join(one(*c) for c in calls) + "]" + after


def text_value(v):
    return v if isinstance(v, str) else js(v)


def xml(call, end, key, value_end, section=("", "")):
    def one(name, args):
        return call % name + "".join(key % k + text_value(v) + value_end for k, v in args.items()) + end
    return lambda calls: section[0] + "\n".join(one(*c) for c in calls) + section[1]


def qwen(open_, close):
    def one(name, args):
        values = "".join("<parameter=%s>\n%s\n</parameter>\n" % (k, text_value(v)) for k, v in args.items())
        return "%s\n<function=%s>\n%s</function>\n%s" % (open_, name, values, close)
    return lambda calls: "\n".join(one(*c) for c in calls)


def dsml(section, m="｜DSML｜"):
    def one(name, args):
        values = "".join('<%sparameter name="%s" string="%s">%s</%sparameter>\n'
                         % (m, k, "true" if isinstance(v, str) else "false", text_value(v), m) for k, v in args.items())
        return '<%sinvoke name="%s">\n%s</%sinvoke>\n' % (m, name, values, m)
    return lambda calls: "<%s%s>\n%s</%s%s>" % (m, section, "".join(one(*c) for c in calls), m, section)


def glm(newline, tag="tool_call"):
    def one(name, args):
        return "<%s>" % tag + name + newline + newline.join(
            "<arg_key>%s</arg_key>%s<arg_value>%s</arg_value>" % (k, newline, text_value(v)) for k, v in args.items()
        ) + newline + "</%s>" % tag
    return lambda calls: "\n".join(one(*c) for c in calls)


def hunyuan(suffix, sep, newline):
    """Tags with a checkpoint's suffix."""
    def tag(name):
        return "<%s%s>" % (name, suffix)
    def one(name, args):
        return tag("tool_call") + name + sep + newline + "".join(
            tag("arg_key") + k + tag("/arg_key") + newline + tag("arg_value") + text_value(v) + tag("/arg_value") + newline
            for k, v in args.items()) + tag("/tool_call")
    return lambda calls: tag("tool_calls") + newline + newline.join(one(*c) for c in calls) + newline + tag("/tool_calls")


def ifm(typed):
    def kind(v):
        names = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array[string]", dict: "object"}
        return "<ifm|arg_type>%s</ifm|arg_type>" % names.get(type(v), "null") if typed else ""
    return section("<ifm|tool_calls>", each("<ifm|tool_call>", "</ifm|tool_call>", "", one=lambda n, a: n + "".join(
        "<ifm|arg_key>%s</ifm|arg_key>%s<ifm|arg_value>%s</ifm|arg_value>" % (k, kind(v), text_value(v)) for k, v in a.items())),
        "</ifm|tool_calls>")


def atem(calls):
    return "<atem:function_calls>\n" + "\n".join('<atem:invoke name="%s">\n%s</atem:invoke>' % (n, "".join(
        '<atem:parameter name="%s">%s</atem:parameter>\n' % (k, text_value(v)) for k, v in a.items())) for n, a in calls) + "\n</atem:function_calls>"


def muse(calls):
    return "".join("<|start|>assistant to=%s<|message|>%s<|eom|>" % (n, atem([(n, a)])) for n, a in calls)


def python_call(name, args):
    return "%s(%s)" % (name, ", ".join("%s=%r" % kv for kv in args.items()))


def gemma(quote, before, after):
    def value(v):
        if isinstance(v, str):
            return quote + v + quote
        if isinstance(v, dict):
            return "{" + ",".join("%s:%s" % (k, value(x)) for k, x in v.items()) + "}"
        if isinstance(v, list):
            return "[" + ",".join(map(value, v)) + "]"
        return js(v)
    return lambda calls: "".join(before + "call:" + n + value(a) + after for n, a in calls)


def kimi_k3(calls):
    def kind(v):
        return {str: "string", bool: "boolean", int: "number", float: "number", list: "array", dict: "object"}.get(type(v), "null")
    def one(i, name, args):
        return '<|open|>call tool="%s" index="%d"<|sep|>' % (name, i + 1) + "".join(
            '<|open|>argument key="%s" type="%s"<|sep|>%s<|close|>argument<|sep|>' % (k, kind(v), text_value(v))
            for k, v in args.items()) + "<|close|>call<|sep|>"
    return "<|open|>tools<|sep|>" + "".join(one(i, *c) for i, c in enumerate(calls)) + "<|close|>tools<|sep|>"


def nested(calls):
    """MiniMax M3: every tag behind a mark, objects and arrays as tags within tags."""
    mark = "]<]minimax[>["
    def value(v):
        if v in ({}, []): # an empty one has no tags that would tell which it is
            return js(v)
        if isinstance(v, dict):
            return "".join("%s<%s>%s%s</%s>" % (mark, k, value(x), mark, k) for k, x in v.items())
        if isinstance(v, list):
            return "".join("%s<item>%s%s</item>" % (mark, value(x), mark) for x in v)
        return text_value(v)
    return mark + "<tool_call>\n" + "\n".join(
        '%s<invoke name="%s">%s%s</invoke>' % (mark, n, value(a) if a else "", mark) for n, a in calls) + "\n" + mark + "</tool_call>"


def plamo(calls):
    m = lambda name: "<|plamo:%s:plamo|>" % name
    return m("begin_tool_requests") + "".join(
        m("begin_tool_request") + m("begin_tool_name") + n + m("end_tool_name") + m("begin_tool_arguments")
        + "<|plamo:constrain|>json<|plamo:msg|>" + js(a) + m("end_tool_arguments") + m("end_tool_request") for n, a in calls) + m("end_tool_requests")


def solar(calls):
    return "<|tool_calls|>" + "".join("<|tool_call:begin|>a1b2c3d4%d<|tool_call:name|>%s<|tool_call:args|>%s<|tool_call:end|>" % (i, n, js(a))
                                      for i, (n, a) in enumerate(calls)) + "<|calls|>"


def harmony(calls):
    return "<|start|>assistant".join(
        "<|channel|>commentary to=functions.%s <|constrain|>json<|message|>%s<|call|>" % (n, js(a)) for n, a in calls)


HERMES = each("<tool_call>\n", "\n</tool_call>")
DEEP3 = each("<｜tool▁call▁begin｜>function<｜tool▁sep｜>", "\n```<｜tool▁call▁end｜>",
             one=lambda n, a: n + "\n```json\n" + js(a))
DEEP31 = each("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "", one=lambda n, a: n + "<｜tool▁sep｜>" + js(a))


def section(before, writer, after):
    return lambda calls: before + writer(calls) + after


def kimi(calls):
    return "<|tool_calls_section_begin|>" + "".join(
        "<|tool_call_begin|>functions.%s:%d<|tool_call_argument_begin|>%s<|tool_call_end|>" % (n, i, js(a))
        for i, (n, a) in enumerate(calls)) + "<|tool_calls_section_end|>"


TAGS = ("<tool_calls>", "</tool_calls>")
# format: (writers, a closing tag of its own to put into a string)
FORMATS = {
    "hermes": ([HERMES], "</tool_call>"),
    "granite4": ([HERMES], "</tool_call>"),
    "ernie45": ([HERMES], "</tool_call>"),
    "trinity": ([HERMES], "</tool_call>"),
    "longcat": ([each("<longcat_tool_call>", "</longcat_tool_call>"), each("<longcat_tool_call>\n", "\n</longcat_tool_call>")], "</longcat_tool_call>"),
    "granite": ([array("<|tool_call|>", ""), array("<tool_call>", "")], "<|tool_call|>"),
    "granite-20b-fc": ([each("<function_call> ", "")], "<function_call>"),
    "jamba": ([array(*TAGS)], TAGS[1]),
    "hunyuan_a13b": ([array(*TAGS)], TAGS[1]),
    "minimax": ([section("<tool_calls>\n", each("", ""), "\n</tool_calls>")], TAGS[1]),
    "internlm": ([each("<|action_start|><|plugin|>\n", "<|action_end|>", "",
                       one=lambda n, a: obj(n, a, "parameters"))], "<|action_end|>"),
    "nemotron_json": ([array("<TOOLCALL>", "</TOOLCALL>")], "</TOOLCALL>"),
    "qwen25_coder": ([section("<tools>\n", array("", ""), "\n</tools>"), each("<tools>", "</tools>")], "</tools>"),
    "pangu": ([array("<|tool_call_start|>", "<|tool_call_end|>"), array("[unused11]", "[unused12]")], "[unused12]"),
    "apertus": ([array("<|tools_prefix|>", "<|tools_suffix|>", one=lambda n, a: js({n: a}))], "<|tools_suffix|>"),
    "cohere_command3": ([array("<|START_ACTION|>", "<|END_ACTION|>", one=lambda n, a: js(
        {"tool_call_id": "0", "tool_name": n, "parameters": a}))], "<|END_ACTION|>"),
    "inkling": ([each("<|content_invoke_tool_json|>", "<|end_message|>", "<|message_model|>", one=lambda n, a: obj(n, a, "args"))],
                "<|end_message|>"),
    "gigachat3": ([each("<|function_call|>", "<|message_sep|>"),
                   each("<|message_sep|>\n\nfunction call<|role_sep|>\n", "")], "<|message_sep|>"),
    "llama3_json": ([each("", "", "; ", one=lambda n, a: obj(n, a, "parameters")), section("<|python_tag|>", each("", "", "; "), "")],
                    "<|python_tag|>"),
    "llama4_json": ([each("", "", "\n", one=lambda n, a: obj(n, a, "parameters"))], "<|python_start|>"),
    "phi4_mini_json": ([array("functools", ""), each("", "", ",")], "functools"),
    "hcx": ([array(" -> tool/function_call\n", "<|im_end|>"), array("-> tool/function_call\n", "")], "<|im_end|>"),
    "xlam": ([array("", ""), array("```json\n", "\n```"), array("<tool_call>", "</tool_call>")], "```"),
    "mistral": ([array("[TOOL_CALLS] ", "", one=lambda n, a: js({"name": n, "arguments": a, "id": "abcdefghi"})),
                 each("[TOOL_CALLS]", "", "", one=lambda n, a: n + js(a)),
                 each("[TOOL_CALLS]", "", "", one=lambda n, a: n + "[ARGS]" + js(a)),
                 each("[TOOL_CALLS]", "", "", one=lambda n, a: n + "[CALL_ID]abcdefghi[ARGS]" + js(a))], "[TOOL_CALLS]"),
    "deepseek_v3": ([section("<｜tool▁calls▁begin｜>", DEEP3, "<｜tool▁calls▁end｜>")], "<｜tool▁call▁end｜>"),
    "deepseek_v31": ([section("<｜tool▁calls▁begin｜>", DEEP31, "<｜tool▁calls▁end｜>")], "<｜tool▁call▁end｜>"),
    "kimi_k2": ([kimi], "<|tool_call_end|>"),
    "plamo3": ([plamo], "<|plamo:end_tool_arguments:plamo|>"),
    "solar_open": ([solar], "<|tool_call:end|>"),
    "step_audio_2": ([each("<tool_call>function\n", "</tool_call>", "", one=lambda n, a: n + "\n" + js(a)),
                      each("<tool_call>", "\n</tool_call>", one=lambda n, a: n + "\n" + js(a))], "</tool_call>"),
    "functionary": ([each("<function=", "</function>", "", one=lambda n, a: n + ">" + js(a))], "</function>"),
    "qwen3_coder": ([qwen("<tool_call>", "</tool_call>")], "</parameter>"),
    "mimo": ([xml("<tool_call>\n<function=%s>\n", "</function>\n</tool_call>", "<parameter=%s>", "</parameter>\n")], "</function>"),
    "step5": ([qwen("<tool_call>", "</tool_call>")], "</function>"),
    "step3p5": ([qwen("<tool_call>", "</tool_call>")], "</function>"),
    "seed_oss": ([qwen("<seed:tool_call>", "</seed:tool_call>")], "</seed:tool_call>"),
    "minimax_m2": ([xml('<invoke name="%s">\n', "</invoke>", '<parameter name="%s">', "</parameter>\n",
                        ("<minimax:tool_call>\n", "\n</minimax:tool_call>"))], "</parameter>"),
    "step3": ([section("<｜tool_calls_begin｜>", lambda calls: "".join(
        "<｜tool_call_begin｜>function<｜tool_sep｜>" + xml(
            '<steptml:invoke name="%s">', "</steptml:invoke>", '<steptml:parameter name="%s">', "</steptml:parameter>")([c])
        + "<｜tool_call_end｜>" for c in calls), "<｜tool_calls_end｜>")], "</steptml:parameter>"),
    "deepseek_v32": ([dsml("function_calls")], "</｜DSML｜invoke>"),
    "deepseek_v4": ([dsml("tool_calls")], "</｜DSML｜parameter>"),
    "deepseek_v41": ([dsml("calls", "｜DSML｜ ")], "</｜DSML｜ invoke>"),
    "gigachat35": ([dsml("tool_calls", "｜GCML｜")], "</｜GCML｜invoke>"),
    "dots": ([xml('<invoke name="%s">\n', "</invoke>", '<parameter name="%s">', "</parameter>\n",
                  ("<dots_function_call>\n", "\n</dots_function_call>"))], "</parameter>"),
    "minicpm5": ([xml('<function name="%s">', "</function>", '<param name="%s">', "</param>"),
                  xml('<function name="%s">', "</function>", '<param name="%s"><![CDATA[', "]]></param>")], "</function>"),
    "kimi_k3": ([kimi_k3], "<|close|>call<|sep|>"),
    "minimax_m3": ([nested], "]<]minimax[>[</other>"),
    "solar_open2": ([each("", "<|tool_call:end|>", one=lambda n, a: "<|tool_call:start|>" + n + "\n" + "".join(
        "<|tool_arg:start|>%s<|tool_arg:value|>%s<|tool_arg:end|>\n" % (k, text_value(v)) for k, v in a.items()))],
        "<|tool_arg:end|>"),
    "poolside_v1": ([glm("\n")], "</arg_value>"),
    "spark25": ([each("<tool_call>", "</tool_call>", one=lambda n, a: n + "\n" + "".join(
        "<arg_key>%s</arg_key><arg_value>%s</arg_value>\n" % (k, text_value(v)) for k, v in a.items()))], "</arg_value>"),
    "hy_v4": ([hunyuan("", "", ""), hunyuan(":6124c78e", "", "")], "</arg_value>"),
    "k2_horizon": ([ifm(False), ifm(True), section("<ifm|tool_calls>\n", each("<ifm|tool_call>", "</ifm|tool_call>"), "\n</ifm|tool_calls>")],
                   "</ifm|arg_value>"),
    "muse_glimmer": ([muse, atem], "</atem:parameter>"),
    "muse": ([muse, atem], "</atem:parameter>"),
    "ling3": ([glm("\n"), glm("")], "</arg_value>"),
    "iquest_q1": ([glm("\n", "iquest_tool_call")], "</arg_value>"),
    "iquest_coder_v2": ([glm("\n", "iquestcoder_tool_call")], "</arg_value>"),
    "glm45": ([glm("\n")], "</arg_value>"),
    "glm47": ([glm("")], "</arg_value>"),
    "hy_v3": ([hunyuan("", "<tool_sep>", "\n"), hunyuan(":opensource", "<tool_sep:opensource>", "\n")], "</arg_value>"),
    "pythonic": ([array("", "", python_call)], "]"),
    "llama4_pythonic": ([array("", "", python_call), array("<|python_start|>", "<|python_end|>", python_call)],
                        "<|python_end|>"),
    "olmo3": ([section("<function_calls>", each("", "", "\n", python_call), "</function_calls>")], "</function_calls>"),
    "lfm2": ([array("<|tool_call_start|>", "<|tool_call_end|>", python_call)], "<|tool_call_end|>"),
    "functiongemma": ([gemma("<escape>", "<start_function_call>", "<end_function_call>")], "<end_function_call>"),
    "gemma4": ([gemma('<|"|>', "<|tool_call>", "<tool_call|>")], "<tool_call|>"),
    "openai": ([harmony], "<|call|"),
}
# What is no call, or none that is complete: it comes out as it went in.
MALFORMED = {
    "hermes": ["<tool_call>\n{\"name\": \"now\"", "<tool_call>[1, 2]</tool_call>", "<tool_call>{\"name\": \"now\", \"arguments\": {]"],
    "llama3_json": ["{\"name\": \"Bob\", \"age\": 3}", "{\"name\": \"nowhere\"}", "{\n  \"user\": {\"name\": \"now\"}\n}", "{\"type\": 1"],
    "xlam": ["[1, 2, 3]", "```json\n{\"a\": 1}\n```", "[{\"name\": \"now\"}]"],
    "hcx": ["-> tool/now\n{\"zone\": 1}", " -> tool/function_call\n[1]", "-> tool/function_call\nnow", "[{\"name\": \"nowhere\", \"arguments\": {}}]"],
    "phi4_mini_json": ["functools are nice", "functools[1]"],
    "mistral": ["x [TOOL_CALLS]", "x[TOOL_CALLS]a b{\"x\": 1}", "x [TOOL_CALLS] [1]", "x[TOOL_CALLS]now[ARGS]x"],
    "deepseek_v3": ["<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\nno fence", "<｜tool▁calls▁begin｜>"],
    "deepseek_v31": ["<｜tool▁call▁begin｜>now{}<｜tool▁call▁end｜>", "<｜tool▁call▁begin｜>now"],
    "kimi_k2": ["<|tool_call_begin|>functions.now:0{}<|tool_call_end|>", "<|tool_calls_section_begin|> text"],
    "functionary": ["<function=now>text</function>", "<function=>{}</function>"],
    "qwen3_coder": ["<tool_call>\n<function=now>text</function>\n</tool_call>", "<tool_call>", "<function=a b></function>",
                    "<tool_call>\n<function=now>\n<parameter"],
    "minimax_m2": ["<invoke name=\"now\">text</invoke>", "<minimax:tool_call> text"],
    "minicpm5": ["<function name=\"now\">text</function>", "<function name=now", "a <function names> b"],
    "kimi_k3": ["<|open|>call tool=\"now\"<|sep|>text", "<|open|>tools<|sep|> text", "<|open|>call tool=\"\"<|sep|><|close|>call<|sep|>"],
    "minimax_m3": ["]<]minimax[>[<invoke name=\"now\">text", "]<]minimax[>[<invoke name=\"now\">]<]minimax[>[</other>",
                   "]<]minimax[>[<tool_call> text", "]<]minimax[>[<invoke name=now x>"],
    "solar_open2": ["<|tool_call:start|>not a name<|tool_call:end|>", "<|tool_call:start|>now\n<|tool_arg"],
    "inkling": ["<|content_invoke_tool_json|>[1]<|end_message|>", "<|content_invoke_tool_json|>{\"args\": {}}<|end_message|>"],
    "gigachat35": ["<｜GCML｜invoke name=\"now\"><b>"],
    "deepseek_v41": ["<｜DSML｜ invoke name=\"now\"><b>"],
    "dots": ["<dots_function_call> text", "<invoke name=\"now\">text</invoke>"],
    "deepseek_v32": ["<｜DSML｜invoke name=\"now\"><b>", "<｜DSML｜function_calls>\n"],
    "hy_v3": ["<tool_call:a b>now</tool_call>", "<tool_call:opensource>not a name</tool_call:opensource>", "<tool_calls:opensource> text",
              "<tool_call:" + 40 * "x" + ">now</tool_call>"],
    "hy_v4": ["<tool_calls:6124c78e><tool_call:6124c78e>", "<tool_call:6124c78e>{\"name\": \"now\"}</tool_call:6124c78e>"],
    "muse_glimmer": ["<atem:invoke name=\"now\">text</atem:invoke>", "<atem:function_calls> text", " to=now and then", "to=", "to=a?b<|message",
                     " <|mess", "<|start|>user<|message|>Hi"],
    "k2_horizon": ["<ifm|tool_call>{\"name\": \"now\"", "<ifm|tool_call>[1]</ifm|tool_call>", "<ifm|tool_calls><ifm|tool_call>not a name</ifm|tool_call>", "<ifm|tool_call>now<ifm|arg_key", "<ifm|tool_calls> text"],
    "trinity": ["<think>1 < 2</think> so", "<tool_call>[1, 2]</tool_call>"],
    "glm45": ["<tool_call>not a name</tool_call>", "<tool_call>now\n<arg_key", "<tool_call>{\"name\": \"now\"}</tool_call>"],
    "pythonic": ["[1, 2]", "[now]", "[now(1)]", "[link](now)", "[unknown(a=1)]", "[now(a=oops)]", "x = [now", "[now(a b)]"],
    "olmo3": ["<function_calls>1</function_calls>", "<function_calls>now(1)</function_calls>"],
    "lfm2": ["<|tool_call_start|>now()<|tool_call_end|>", "<|tool_call_start|>"],
    "gemma4": ["<|tool_call>now{}<tool_call|>", "<|tool_call>call:now[a]", "<|tool_call>call:now a{}"],
    "plamo3": ["<|plamo:begin_tool_name:plamo|>now<|plamo:end_tool_name:plamo|>[1]", "<|plamo:begin_tool_requests:plamo|> text"],
    "solar_open": ["<|tool_call:begin|>x<|tool_call:name|>now<|tool_call:args|>1", "<|tool_calls|> text", "<|tool_call:begin|>x{}<|tool_call:end|>"],
    "iquest_q1": ["<iquest_tool_call>not a name</iquest_tool_call>", "<tool_call>now</tool_call>"],
    "muse": ["<atem:invoke name=\"now\">text</atem:invoke>", "<atem:function_calls> text", " to=now and then"],
    "apertus": ["<|tools_prefix|>[1]<|tools_suffix|>", "<|tools_prefix|>[{}]"],
    "internlm": ["<|action_start|><|plugin|>\n{}<|action_end|>", "<|action_start|>text"],
}
# Slips that models make and that are seen through: text, content, calls.
LENIENT = {
    "hermes": [("<tool_call>{'name': 'now', 'arguments': {'a': True, 'b': None, 'c': (1, .5), 'd': \"it's\",}}</tool_call>", "",
                [("now", {"a": True, "b": None, "c": [1, 0.5], "d": "it's"})]),
               ("<tool_call>[{\"name\": \"now\", \"arguments\": {\"re\": \"\\d+\\.\"}}]</tool_call>", "", [("now", {"re": "\\d+\\."})])],
    "llama3_json": [("Let me see. {\"type\": \"function\", \"function\": \"now\", \"parameters\": {\"a\": 1}}\nGood.", "Let me see. \nGood.",
                     [("now", {"a": 1})])],
    "phi4_mini_json": [("{\"name\": \"now\", \"arguments\": {'a': 'it\\'s', \"b\": False}}", "", [("now", {"a": "it's", "b": False})])],
    "mistral": [("[TOOL_CALLS]", "", []), ("[TOOL_CALLS]a b{\"x\": 1}", "a b{\"x\": 1}", []), ("[TOOL_CALLS] [1]", "[1]", []),
                ("[TOOL_CALLS]now[ARGS]x", "now[ARGS]x", []),
                ("[TOOL_CALLS][{&#34;name&#34;: &#34;now&#34;, &#34;arguments&#34;: {\"a\": \"b\"}}]", "", [("now", {"a": "b"})])],
    "qwen3_coder": [("<function=now>\n<parameter=x>\n1\n</parameter>\n</function>", "", [("now", {"x": 1})]),
                    ("<tool_call>\n<function=now>\n<parameter=x>\nyes 1\n</parameter>\n</tool_call> ok", " ok", [("now", {"x": "yes 1"})]),
                    ("<tool_call>\n<function=get_weather>\n<parameter=city>\n7\n</parameter>\n<parameter=days>\nmany\n</parameter>\n</function>\n</tool_call>",
                     "", [("get_weather", {"city": "7", "days": "many"})]),
                    ("<tool_call>\n<function=send.mail>\n<parameter=to>\n['a', \"b\"]\n</parameter>\n<parameter=note>\nnull\n</parameter>\n</function>\n</tool_call>",
                     "", [("send.mail", {"to": ["a", "b"], "note": None})])],
    "kimi_k2": [("<|tool_call_begin|>now<|tool_call_argument_begin|> {} <|tool_call_end|>", "", [("now", {})])],
    "pythonic": [("[get_weather(city='a'days=3, exact=False)]", "", [("get_weather", {"city": "a", "days": 3, "exact": False})]),
                 ("[get_weather(city=Zürich, CH (old, new), days=3), get_weather(city=None), get_weather(city= 7 up )]", "",
                  [("get_weather", {"city": "Zürich, CH (old, new)", "days": 3}), ("get_weather", {"city": None}),
                   ("get_weather", {"city": "7 up"})]),
                 ("[get_weather(city=a=b, c=d, exact=True)]", "", [("get_weather", {"city": "a=b, c=d", "exact": True})]),
                 ("[get_weather(city=\"the \"old\", town, by=the sea\", days=1), send.mail(body='it's \"\"', note=\"\")]", "",
                  [("get_weather", {"city": "the \"old\", town, by=the sea", "days": 1}), ("send.mail", {"body": "it's \"\"", "note": ""})]),
                 ("Sure: [now()]", "Sure: ", [("now", {})])],
    "minicpm5": [("<functionname=\"now\"></function> ok", " ok", [("now", {})]),
                 ("<function name='get_weather'><param name='city'>\nBonn\n</param><param name=\"days\"><![CDATA[ 3 ]]></param></function>", "",
                  [("get_weather", {"city": "\nBonn\n", "days": 3})])],
    "kimi_k3": [("<|open|>call tool=\"a&amp;b\" index=\"1\"<|sep|><|open|>argument key=\"&quot;k&quot;&amp;quot;\" type=\"number\"<|sep|>7"
                 "<|close|>argument<|sep|><|close|>call<|sep|>", "", [("a&b", {"\"k\"&quot;": 7})])],
    "minimax_m3": [("]<]minimax[>[<invoke name=\"send.mail\">]<]minimax[>[<to>]<]minimax[>[</to>]<]minimax[>[ <options>"
                    "]<]minimax[>[<x>1]<]minimax[>[</x>\n]<]minimax[>[</options>]<]minimax[>[<other>a ]<]minimax[>[<b> ]<]minimax[>[</c>]<]minimax[>[</other>]<]minimax[>[</invoke>", "",
                    [("send.mail", {"to": [], "options": {"x": 1}, "other": "a ]<]minimax[>[<b> ]<]minimax[>[</c>"})])],
    "hy_v3": [("<tool_calls:opensource>\n<tool_call:opensource>get_weather<tool_sep:opensource>\n<arg_key:opensource>city</arg_key:opensource>\n"
               "<arg_value:opensource>a</arg_value> b</arg_value:opensource>\n</tool_call:opensource>\n</tool_calls:opensource>ok", "ok",
               [("get_weather", {"city": "a</arg_value> b"})])],
    "k2_horizon": [("<ifm|tool_calls>\n<ifm|tool_call>get_weather\n<ifm|arg_key>city</ifm|arg_key>\n<ifm|arg_type>integer</ifm|arg_type>\n"
                    "<ifm|arg_value>7</ifm|arg_value>\n<ifm|arg_key>other</ifm|arg_key> <ifm|arg_type>string</ifm|arg_type><ifm|arg_value>007</ifm|arg_value>\n"
                    "<ifm|arg_key>more</ifm|arg_key><ifm|arg_type> any </ifm|arg_type> <ifm|arg_value>8</ifm|arg_value>"
                    "<ifm|arg_key>last</ifm|arg_key><ifm|arg_type>list[int]</ifm|arg_type><ifm|arg_value>[1]</ifm|arg_value></ifm|tool_call>\n</ifm|tool_calls>", "",
                    [("get_weather", {"city": "7", "other": "007", "more": "8", "last": [1]})]),
                   ("<ifm|tool_call>now</ifm|tool_call> and <ifm|tool_call>\n {\"arguments\": {}, \"name\": \"now\"}\n</ifm|tool_call>", " and ",
                    [("now", {}), ("now", {})])],
    "muse_glimmer": [(" to=now.now<|message|><atem:function_calls>\n<atem:invoke name=\"now.now\">\n</atem:invoke>\n</atem:function_calls><|eot|>", "", [("now", {})]),
                     ("to=user<|message|>So: <atem:invoke name=\"now\"></atem:invoke> is how. <|eot|>",
                      "So: <atem:invoke name=\"now\"></atem:invoke> is how. ", []),
                     (" to=user<|message|>One<|eom|>\n<|start|> assistant to=now <|message|><atem:invoke name=\"now\"></atem:invoke>"
                      "<|start|>assistant<|message|>Two <|start|> three<|eot|>", "OneTwo <|start|> three", [("now", {})]),
                     ("<|message|>Hi.<atem:invoke name=\"send.mail\"><atem:parameter name=\"body\">  a  </atem:parameter></atem:invoke><|eom|>"
                      "<|start|>assistant to=user<|message|>a <|eo", "Hi.a <|eo", [("send.mail", {"body": "  a  "})]),
                     ("to=self", "to=self", []), ("Hi<|start|>assistant to=us", "Hi", [])],
    "trinity": [("<think>\n<tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call></think>", "", [("now", {})])],
    "llama4_pythonic": [("[send.mail(to=\"['a', 'b']\")]", "", [("send.mail", {"to": ["a", "b"]})])],
    "functiongemma": [("<start_function_call>call:send.mail{to:<escape>['a']<escape>,note:None}<end_function_call>", "",
                       [("send.mail", {"to": ["a"], "note": None})])],
}


def rows_of(name):
    writers, close = FORMATS[name]
    for write in writers:
        for calls in ([WEATHER, mail(close)], [NOW], [NOW, NOW, WEATHER]):
            text = write(calls)
            yield text, "", calls
            if name == "openai":
                yield "<|channel|>commentary<|message|>Let me check.<|end|><|start|>assistant" + text, "Let me check.", calls
                continue
            yield "One < two.\n" + text + "\nThree", "One < two.\n\nThree", calls
            if calls == [NOW]:
                yield text + " and \n" + text, " and \n", calls + calls
    for text in MALFORMED.get(name, []):
        yield text, text, []
        yield "Look: " + text, "Look: " + text, []
    for text, content, calls in LENIENT.get(name, []):
        yield text, content, calls
    if name != "openai":
        for text in ("Just text, 1 < 2 [x] {y} and `z`.", "", " \n\t "):
            yield text, text, []


STRICT = [{"type": "function", "function": {"name": name, "strict": True, "parameters": {
    "type": "object", "properties": properties, "required": required, "additionalProperties": False}}}
    for name, properties, required in (
        ("get_weather", {"city": {"type": "string"}, "unit": {"enum": ["celsius", "kelvin"]}, "days": {"type": "integer"},
                         "exact": {"type": "boolean"}, "place": {
                             "type": "object", "properties": {"lat": {"type": "number"}, "tags": {"type": "array", "items": {"type": "string"}}},
                             "required": ["lat"], "additionalProperties": False}}, ["city", "unit"]),
        ("play", {"loud": {"type": "boolean"}, "song": {"type": "string", "maxLength": 9}, "n": {"$ref": "#/$defs/n"}}, []),
        ("now", {}, []))]
STRICT[1]["function"]["parameters"]["$defs"] = {"n": {"type": "integer"}}
FULL = ("get_weather", {"city": "Zürich, \"CH\" {1}", "unit": "kelvin", "days": 3, "exact": True, "place": {"lat": 1.5, "tags": ["a", "b"]}})
SHORT = ("get_weather", {"city": "x", "unit": "celsius"})
PLAY, LAST = ("play", {"loud": False, "song": "La la", "n": 7}), ("play", {"n": 1})


def python_json(name, args):
    """Strings in double quotes, as Llama 4 writes them."""
    return "%s(%s)" % (name, ", ".join("%s=%s" % (k, str(v) if isinstance(v, bool) else js(v)) for k, v in args.items()))


# What ends the output is no part of it; forms of which only one is asked for.
FORCED = {
    "openai": [lambda calls: harmony(calls).removesuffix("<|call|>")],
    "gigachat3": [each("<|function_call|>", "")],
    "cohere_command3": [lambda calls: "<|START_ACTION|>[\n    " + ",\n    ".join(js(
        {"tool_call_id": str(i), "tool_name": n, "parameters": a}) for i, (n, a) in enumerate(calls)) + "\n]<|END_ACTION|>"],
    "seed_oss": [lambda calls: "\n".join("<seed:tool_call>\n<function=%s>\n%s</function>\n</seed:tool_call>" % (
        n, "".join("<parameter=%s>%s</parameter>\n" % (k, text_value(v)) for k, v in a.items())) for n, a in calls)],
    "hcx": [array(" -> tool/function_call\n", "")],
    "pythonic": [array("", "", python_json)],
    "llama4_pythonic": [array("", "", python_json)],
    "olmo3": [section("<function_calls>", each("", "", "\n", python_json), "</function_calls>")],
    "lfm2": [array("<|tool_call_start|>", "<|tool_call_end|>", python_json)],
}
FORCED["solar_open"] = [lambda calls: solar(calls).replace("begin|>a1b2c3d4", "begin|>call")]
FORCED["muse"] = FORCED["muse_glimmer"] = [lambda calls: muse(calls).removeprefix("<|start|>assistant").removesuffix("<|eom|>")]


def forced_rows(name):
    for k, write in enumerate(FORCED.get(name, FORMATS[name][0])):
        for calls in ([FULL], [SHORT], [PLAY], [LAST], [SHORT, LAST, FULL]):
            yield {"format": name, "writer": k, "text": write(calls), "n_call": len(calls)}


def main():
    rows = [{"format": name, "text": text, "content": content, "calls": calls}
            for name in FORMATS for text, content, calls in rows_of(name)]
    with open("formats.json", "w") as f:
        f.write('{"tools": %s,\n"rows": [\n%s\n]}\n' % (json.dumps(TOOLS), ",\n".join(map(json.dumps, rows))))
    rows = [row for name in FORMATS for row in forced_rows(name)]
    with open("forced.json", "w") as f:
        f.write('{"tools": %s,\n"rows": [\n%s\n]}\n' % (json.dumps(STRICT), ",\n".join(map(json.dumps, rows))))


main()
