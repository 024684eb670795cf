# SPDX-License-Identifier: Apache-2.0
"""The grammar of the training dialogues: one function per skill, a table that weighs them.

A dialogue is a list of chat messages in the OpenAI form plus the tools on offer. Every assistant
turn is a training target. For evaluation a dialogue ends with the turn that is asked for, and
`Case.expect` says what a right answer is (see scoring.py).
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from facts import QUIRE, SMALL_TALK
from tools import Tool, ToolMaker
from words import Words

SYSTEM = ["You are a helpful assistant.", "You are a helpful assistant.", "You are a friendly assistant.", "Be brief.",
          "You are an AI assistant. Use the tools when they help.", "Answer shortly.", "You help people."]


@dataclass
class Case:
    """A dialogue; `expect` is set when its last assistant turn is to be scored."""

    category: str
    messages: list[dict]
    tools: list[dict] = field(default_factory=list)
    expect: dict = field(default_factory=dict)
    answer: dict = field(default_factory=dict)  # the assistant turn that training would have seen


def user(text: str) -> dict:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict:
    return {"role": "assistant", "content": text}


def call_turn(*calls: tuple[str, dict]) -> dict:
    return {"role": "assistant", "content": None, "tool_calls": [
        {"id": f"call_{i}", "type": "function", "function": {"name": n, "arguments": json.dumps(a, ensure_ascii=False)}}
        for i, (n, a) in enumerate(calls)]}


class Grammar:
    """All skills, drawing from one seeded generator."""

    def __init__(self, seed: int, held_out: bool = False) -> None:
        self.rng = random.Random(seed)
        self.w = Words(self.rng, held_out)
        self.t = ToolMaker(self.w)

    # ---- plain answers ----

    def known(self, table: list[tuple[str, list[str]]]) -> tuple[str, str]:
        answer, questions = self.w.pick(table)
        q = self.w.pick(questions)
        x = self.rng.random()
        if x < 0.06:
            q = q.lower()
        elif x < 0.10:
            q = q.rstrip("?.!")
        elif x < 0.13:
            q = "Please tell me: " + q
        return q, answer

    def arithmetic(self) -> tuple[str, str]:
        w, r = self.w, self.rng
        op = w.pick("++++--**/")
        if op == "+":
            top = w.pick((10, 10, 20, 20, 50))
            a, b = r.randint(0, top), r.randint(0, top)
            q, answer = w.pick((f"{a} + {b}", f"{a} + {b}", f"{a} plus {b}", f"{a}+{b}")), a + b
        elif op == "-":
            top = w.pick((10, 20, 20))
            a, b = sorted((r.randint(0, top), r.randint(0, top)), reverse=True)
            q, answer = w.pick((f"{a} - {b}", f"{a} - {b}", f"{a} minus {b}", f"{a}-{b}")), a - b
        elif op == "*":
            a, b = r.randint(0, 10), r.randint(0, 10)
            q, answer = w.pick((f"{a} * {b}", f"{a} times {b}", f"{a} x {b}", f"{a}*{b}")), a * b
        else:
            b, answer = r.randint(1, 10), r.randint(0, 10)
            a = b * answer
            q = w.pick((f"{a} / {b}", f"{a} divided by {b}"))
        ask = w.pick(("What is {}?", "What is {}?", "What is {}?", "How much is {}?", "{} = ?", "{}", "Calculate {}.",
                      "Compute {}", "{}?", "what's {}?", "Can you work out {}?"))
        return ask.format(q), str(answer)

    def copied_text(self) -> str:
        """Anything that can stand on one line."""
        w, r = self.w, self.rng
        x = r.random()
        if x < 0.40:
            text = w.phrase(1, w.pick((3, 5, 8, 12)))
        elif x < 0.55:
            text = " ".join(w.pseudo() for _ in range(r.randint(1, 5)))
        elif x < 0.65:
            text = w.pick((w.code, w.email, w.phone, w.url, w.path, w.digits, w.date, w.full_name, w.price))()
        elif x < 0.75:
            text = " ".join(w.pick((w.code, w.word, w.digits, w.pseudo, w.first_name))() for _ in range(r.randint(2, 7)))
        elif x < 0.88:
            text = w.phrase()
            text = ", ".join((text, w.phrase(1, 5))) if w.chance(0.5) else text + " " + w.pick(("and", "but", "or", "so")) + " " + w.phrase(1, 5)
        else:
            alphabet = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.:/+"
            text = "".join(w.pick(alphabet) for _ in range(r.randint(3, 12)))
        if w.chance(0.4):
            text = text[0].upper() + text[1:]
        if w.chance(0.2):
            text += w.pick((".", "!", "?"))
        return " ".join(text.split())

    def copying(self) -> tuple[str, str]:
        text = self.copied_text()
        ask = self.w.pick((
            "Repeat: {}", "Repeat after me: {}", "Say: {}", "Copy this: {}", "Copy this text: {}", "Copy exactly: {}", "Echo {}",
            "Repeat this exactly: {}", "Repeat the following text: {}", "Please repeat: {}", "Say \"{}\"", "Repeat \"{}\"",
            "Copy the text \"{}\"", "Repeat after me:\n{}", "Copy this text exactly:\n{}", "Print this: {}", "Write: {}",
            "Please copy the following exactly: {}", "Can you say \"{}\"?", "Repeat the following:\n\n{}", "Say {}"))
        return ask.format(text), text

    # ---- extraction ----

    def extraction(self) -> tuple[str, str]:
        return self.w.pick((self._from_sentences, self._from_sentences, self._from_sentences, self._from_pairs,
                            self._to_json))()

    SENTENCES = [
        "{name} lives in {city}.", "{name} works at {company}.", "{name} from {city} ordered a {color} {product} for {price} on {date}.",
        "The meeting with {name} takes place on {date} at {clock} in {city}.", "Order {code} was shipped to {city} on {date}.",
        "You can write to {email}.", "Call us at {phone}.", "The {product} costs {price}.", "My name is {name} and I live in {city}.",
        "Invoice {code} over {price} is due on {date}.", "Please send the {product} to {name}, {city}.", "{name} can be reached at {email}.",
        "On {date} {name} bought a {product} for {price}.", "The train to {city} leaves at {clock}.", "{company} is based in {city}.",
        "Contact: {name}, {email}, {phone}.", "{name} was born on {date} in {city}.", "The concert in {city} starts at {clock}.",
        "The total is {price}.", "The booking {code} is for {name}.", "{company} sells a {color} {product}.", "See {url} for more.",
        "I paid {price} for a {product} from {company}.", "Hello, this is {name} from {company}.", "Your order number is {code}.",
        "We will meet at {clock} on {date}.", "The {color} {product} is in {city}.", "Dear {name}, your {product} arrives on {date}.",
        "{name} will fly to {city} on {date}.", "Reply to {email} before {date}.", "{name} called from {phone} at {clock}."]
    ASKS = {
        "name": ["Who is mentioned?", "What is the name?", "What is the name of the person?", "Who is it about?", "name", "Which person is named?"],
        "city": ["Which city is mentioned?", "What is the city?", "Which city?", "city", "What city is it?", "Where is it?"],
        "date": ["What is the date?", "On which date?", "When is it?", "date", "Which date is mentioned?"],
        "price": ["What is the price?", "How much is it?", "How much does it cost?", "price", "What does it cost?", "Which price is mentioned?"],
        "email": ["What is the email address?", "What is the email?", "email", "email address", "Which email address is given?"],
        "phone": ["What is the phone number?", "phone number", "Which phone number is given?", "What is the number to call?"],
        "code": ["What is the order number?", "What is the number of the order?", "code", "What is the code?", "What is the reference number?"],
        "company": ["Which company is mentioned?", "What is the company?", "company", "What is the name of the company?"],
        "product": ["Which product is mentioned?", "What is the product?", "product", "Which item is it?"],
        "color": ["What color is it?", "What is the color?", "color", "Which color is mentioned?"],
        "clock": ["At what time?", "What is the time?", "time", "When does it start?", "Which time is mentioned?"],
        "url": ["What is the link?", "What is the URL?", "url", "Which web page is mentioned?"]}

    def _text(self) -> tuple[str, dict[str, str]]:
        """A text of one to three sentences in which every kind of fact occurs once at most."""
        w, facts, parts = self.w, {}, []
        for _ in range(w.pick((1, 1, 2, 2, 3))):
            s = w.pick(self.SENTENCES)
            keys = [k for k in self.ASKS if "{" + k + "}" in s]
            if any(k in facts for k in keys):
                continue
            new = {k: str(w.value(k) if k != "company" else w.name_like() + w.pick(("", "", " Ltd", " Corp", " Inc", " GmbH")))
                   for k in keys}
            facts |= new
            parts.append(s.format(**new))
        if w.chance(0.35):
            filler = w.phrase(3, 8)
            parts.insert(w.rng.randint(0, len(parts)), filler[0].upper() + filler[1:] + ".")
        return " ".join(parts), facts

    def _wrap(self, text: str, ask: str) -> str:
        w = self.w
        if "?" in ask:
            return w.pick(("{t} {a}", "{a} {t}", "Text: {t}\nQuestion: {a}", "{t}\n{a}", "{a}\n{t}", "{t}\n\n{a}", "{a}\n\n{t}",
                           "Read this: {t}\n{a}", "Given the text \"{t}\", {l}", "{a} Text: {t}")).format(
                t=text, a=ask, l=ask[0].lower() + ask[1:])
        return w.pick(("Extract the {a} from this text: {t}", "Extract the {a}: {t}", "Find the {a} in this text: {t}",
                       "Give me the {a} in: {t}", "{t}\nExtract the {a}.", "Extract the {a} from the following text:\n{t}",
                       "Extract the {a}.\n\n{t}", "{a}? {t}", "What is the {a} in this text?\n{t}")).format(t=text, a=ask)

    def _from_sentences(self) -> tuple[str, str]:
        text, facts = self._text()
        key = self.w.pick(list(facts))
        return self._wrap(text, self.w.pick(self.ASKS[key])), facts[key]

    def _to_json(self) -> tuple[str, str]:
        text, facts = self._text()
        keys = self.rng.sample(list(facts), min(len(facts), self.w.pick((1, 2, 2, 3))))
        named = keys[0] if len(keys) == 1 else ", ".join(keys[:-1]) + " and " + keys[-1]
        ask = self.w.pick(("Extract {k} as JSON: {t}", "Extract {k} as JSON from this text: {t}", "{t}\nGive me {k} as JSON.",
                           "Return a JSON object with {k}.\n{t}", "Extract {k} as JSON.\n\n{t}"))
        return ask.format(k=named, t=text), json.dumps({k: facts[k] for k in keys}, ensure_ascii=False)

    def _from_pairs(self) -> tuple[str, str]:
        w, pairs = self.w, {}
        for _ in range(w.pick((2, 2, 3, 4))):
            pairs[w.noun() if w.chance(0.8) else w.pick(w.adjectives) + " " + w.noun()] = str(w.value(w.pick(
                ("word", "phrase", "name", "city", "code", "int", "date", "color", "price", "pseudo", "number"))))
        form = w.pick(("{k}: {v}", "{k} = {v}", "The {k} is {v}.", "The {k} is {v}.", "{k}: {v}"))
        glue = "\n" if form[0] == "{" and w.chance(0.7) else ", " if form[0] == "{" else " "
        text = glue.join(form.format(k=k, v=v) for k, v in pairs.items())
        key = w.pick(list(pairs))
        return self._wrap(text, w.pick(("What is the {k}?", "What is the {k}?", "{k}")).format(k=key)), pairs[key]

    # ---- dialogues ----

    def system(self) -> list[dict]:
        w = self.w
        if w.chance(0.75):
            return []
        text = w.pick(SYSTEM) if w.chance(0.7) else w.phrase(3, 10).capitalize() + "."
        return [{"role": "system", "content": text}]

    def plain(self) -> tuple[str, str]:
        """One question and its answer, of any skill that needs no tool."""
        x = self.rng.random()
        if x < 0.50:
            return self.extraction()
        if x < 0.70:
            return self.copying()
        if x < 0.76:
            return self.arithmetic()
        return self.known(QUIRE if x < 0.93 else SMALL_TALK)

    def plain_dialogue(self) -> Case:
        messages = self.system()
        for _ in range(12 if self.w.chance(0.02) else self.w.pick((1, 2, 3, 4))):
            q, a = self.plain()
            messages += [user(q), assistant(a)]
        return Case("plain", messages)

    def tool_dialogue(self) -> Case:
        """Some tools, then mostly one turn: a call, often its result; now and then plain talk."""
        w = self.w
        tools = self.t.offer(w.pick((1, 1, 2, 2, 3, 3, 4, 5)))
        messages = self.system()
        for _ in range(9 if w.chance(0.02) else w.pick((1, 1, 1, 1, 1, 1, 2, 3))):
            if w.chance(0.12):
                q, a = self.known(SMALL_TALK if w.chance(0.6) else QUIRE) if w.chance(0.7) else self.plain()
                messages += [user(q), assistant(a)]
                continue
            tool = w.pick(tools)
            messages += self._call(tool)
        return Case("tool", messages, [t.schema(w.chance(0.5)) for t in tools])

    def drill(self) -> Case:
        """A request for a bare tool: the choice of a tool in few tokens."""
        w, x = self.w, self.rng.random()
        if x < 0.25:
            return self.reading_drill()
        if x < 0.40:
            return self.sums_drill()
        tools = [self.t.bare() for _ in range(w.pick((1, 2, 3, 4, 5)))]
        tool = w.pick(tools)
        text, args = self.t.request(tool)
        return Case("drill", [user(text), call_turn((tool.name, args))], [t.schema() for t in tools])

    def reading_drill(self) -> Case:
        """One text and several questions about it."""
        w = self.w
        text, facts = self._text()
        keys = list(facts)
        w.rng.shuffle(keys)
        messages = []
        for key in keys[:4]:
            ask = w.pick(self.ASKS[key])
            messages += [user(ask if messages else self._wrap(text, ask)), assistant(facts[key])]
        return Case("drill", messages)

    def sums_drill(self) -> Case:
        """Several sums: in other dialogues there are too few to be learned."""
        messages = []
        for _ in range(self.w.pick((1, 2, 4, 6, 8))):
            q, a = self.arithmetic()
            messages += [user(q), assistant(a)]
        return Case("drill", messages)

    def _call(self, tool: Tool) -> list[dict]:
        w = self.w
        if tool.asks and "weather" in tool.topic and any(p.key == "city" for p in tool.params) and w.chance(0.06):
            return self._two_calls(tool)
        text, args = self.t.request(tool)
        turns = [user(text), call_turn((tool.name, args))]
        if w.chance(0.35):
            result, answer, _ = self.t.result(tool, args)
            turns += [{"role": "tool", "content": result}, assistant(answer)]
        return turns

    def _two_calls(self, tool: Tool) -> list[dict]:
        """One question about two cities: two calls in one turn, and sometimes both results."""
        w, t = self.w, self.t
        place = next(p.name for p in tool.params if p.key == "city")
        a, b = w.city(), w.city()
        text = w.pick(("What is the weather in {a} and in {b}?", "What is the weather in {a} and {b}?",
                       "What's the weather like in {a} and {b}?", "Weather in {a} and {b}?", "Compare the weather in {a} and {b}."))
        turns = [user(text.format(a=a, b=b)), call_turn((tool.name, {place: a}), (tool.name, {place: b}))]
        if w.chance(0.5):
            results = [t.result(tool, {place: city}) for city in (a, b)]
            turns += [{"role": "tool", "content": result} for result, _, _ in results]
            turns.append(assistant(" ".join(answer for _, answer, _ in results)))
        return turns

    def warm_up(self) -> Case:
        """Copying and nothing else: what a model has to find out before it can learn all the rest."""
        messages = []
        for _ in range(3):
            text = self.w.pick((lambda: self.w.phrase(2, 12), self.copied_text))()
            messages += [user("Repeat: " + text), assistant(text)]
        return Case("warm up", messages)

    def dialogue(self) -> Case:
        return self.tool_dialogue() if self.w.chance(0.72) else self.plain_dialogue()

    # ---- evaluation ----

    def case(self, category: str) -> Case:
        return CATEGORIES[category](self)

    def _question(self, category: str, pair: tuple[str, str], kind: str = "exact") -> Case:
        return Case(category, [user(pair[0])], [], {kind: pair[1]}, assistant(pair[1]))

    def _tool_case(self, category: str, realistic: bool) -> Case:
        tools = self.t.offer(self.w.pick((1, 2, 3, 4, 5)))
        wanted = [t for t in tools if bool(t.asks) == realistic]
        if not wanted:
            return self._tool_case(category, realistic)
        tool = self.w.pick(wanted)
        text, args = self.t.request(tool)
        return Case(category, [user(text)], [t.schema() for t in tools], {"call": {"name": tool.name, "arguments": args}}, call_turn((tool.name, args)))

    def _result_case(self) -> Case:
        tools = self.t.offer(self.w.pick((1, 2, 3)))
        tool = self.w.pick(tools)
        text, args = self.t.request(tool)
        result, answer, holds = self.t.result(tool, args)
        turns = [user(text), call_turn((tool.name, args)), {"role": "tool", "content": result, "tool_call_id": "call_0"}]
        return Case("tool result", turns, [t.schema() for t in tools], {"holds": holds}, assistant(answer))

    def _no_tool_case(self) -> Case:
        q, a = self.known(SMALL_TALK if self.w.chance(0.6) else QUIRE)
        return Case("no tool needed", [user(q)], [t.schema() for t in self.t.offer(self.w.pick((1, 2, 3)))], {"exact": a}, assistant(a))


CATEGORIES: dict[str, Callable[[Grammar], Case]] = {
    "tool, invented": lambda g: g._tool_case("tool, invented", False),
    "tool, realistic": lambda g: g._tool_case("tool, realistic", True),
    "tool result": lambda g: g._result_case(),
    "no tool needed": lambda g: g._no_tool_case(),
    "extraction": lambda g: g._question("extraction", g.extraction()),
    "copying": lambda g: g._question("copying", g.copying()),
    "arithmetic": lambda g: g._question("arithmetic", g.arithmetic()),
    "greeting": lambda g: g._question("greeting", g.known(SMALL_TALK)),
    "quire": lambda g: g._question("quire", g.known(QUIRE)),
}
