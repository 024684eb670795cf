# SPDX-License-Identifier: Apache-2.0
"""Tools, requests for them and their results: realistic families and invented ones.

`ToolMaker.offer()` draws the tools of one conversation, `request()` a user's sentence together with
the one right call. Invented tools are a verb, a noun (often a word that does not exist) and up to
four parameters; their requests name the parameters or use the preposition that fits, so the only
way to get a call right is to match words and to copy.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from families import FAMILIES, HELD_OUT, ROOMS, TICKERS
from words import VERBS, Words, split_list

# Parameter names of invented tools and the kinds of value that go with them.
TYPED_PARAMS = {
    "city": "city", "location": "city", "place": "city", "town": "city", "destination": "city", "where": "city",
    "city_name": "city", "origin": "city", "name": "name", "user": "first", "owner": "name", "person": "name",
    "customer": "name", "guest": "name", "author": "name", "contact": "first", "recipient": "email", "to": "email",
    "address": "email", "id": "code", "code": "code", "reference": "code", "key": "code", "date": "date",
    "start_date": "date", "when": "date", "due_date": "date", "deadline": "date", "day": "day", "time": "clock",
    "start_time": "clock", "at": "clock", "begin": "clock", "subject": "phrase", "reason": "phrase", "term": "word",
    "search": "phrase", "note": "text", "content": "text", "body": "text", "question": "text", "description": "text",
    "link": "url", "folder": "path", "filename": "path", "nation": "country", "lang": "language",
    "max": "int", "min": "int", "n": "int", "total": "int", "percent": "int", "distance": "number", "value": "number",
    "limit": "int", "count": "int", "size": "int", "quantity": "int", "page": "int", "width": "int",
    "height": "int", "age": "int", "year": "int", "level": "int", "amount": "number", "weight": "number",
    "price": "number", "score": "number", "ratio": "number", "threshold": "number", "email": "email",
    "phone": "phone", "url": "url", "path": "path", "file": "path", "query": "phrase", "keyword": "word",
    "topic": "phrase", "title": "title", "text": "text", "message": "text", "comment": "text",
    "label": "word", "tag": "word", "country": "country", "language": "language", "color": "color",
    "currency": "currency", "item": "product", "product": "product", "dish": "food", "number": "numstr",
    "account_number": "numstr", "serial": "numstr", "zip": "numstr", "verbose": "bool", "force": "bool",
    "public": "bool", "urgent": "bool", "recursive": "bool", "dry_run": "bool", "notify": "bool",
    "priority": ["low", "medium", "high"], "status": ["open", "closed", "pending"], "mode": ["fast", "slow", "auto"],
    "format": ["json", "csv", "text", "xml"], "order": ["asc", "desc"], "sort": ["newest", "oldest", "cheapest"],
    "side": ["left", "right"], "kind": ["small", "large"], "unit": ["metric", "imperial"],
}
ANY_KIND = ["word", "word", "phrase", "pseudo", "name", "city", "code", "int", "int", "number", "date",
            "text", "bool", "enum", "enum", "numstr", "color"]
JSON_TYPE = {"int": "integer", "number": "number", "bool": "boolean"}
PREPOSITION = {"city": "in", "date": "on", "day": "", "clock": "at", "email": "to", "name": "for", "first": "for",
               "country": "in", "language": "in", "path": "in", "product": "for", "code": "for", "phrase": "about",
               "word": "for", "pseudo": "for", "phone": "to", "title": "called", "currency": "in", "food": "for"}
# Families that the same request may mean are not offered together.
GROUPS = {"calculator": "sums", "add": "sums", "multiply": "sums", "run_code": "sums", "web_search": "search", "kb": "search",
          "news": "search", "note": "notes", "todo": "notes", "event": "notes", "ticket": "notes", "invoice": "bills", "bill_pay": "bills",
          "transfer": "bills", "room_book": "stays", "hotel": "stays", "rental_car": "stays", "library_book": "shelf",
          "define": "shelf", "shopping": "shop", "order_item": "shop", "product_search": "shop"}
TELLING = {"city", "date", "clock", "email", "country", "language", "currency", "phone", "path", "url"}
POLITE = ["{}", "{}", "{}", "{}", "Please {l}", "Can you {l}", "Could you please {l}", "{} please", "Hi, {l}",
          "Hello! {}", "I need you to {l}", "{} Thanks!", "Hey, can you {l}", "I would like you to {l}", "Now {l}"]


@dataclass
class Param:
    """One parameter: what the schema says and what kind of value a request gives it."""

    key: str
    name: str
    kind: object                        # a kind of Words.value, or the list of enum values
    required: bool
    description: str = ""

    def schema(self) -> dict:
        out: dict = {"type": "string" if isinstance(self.kind, list) else JSON_TYPE.get(self.kind, "string")}
        if self.description:
            out["description"] = self.description
        if isinstance(self.kind, list):
            out["enum"] = self.kind
        return out


COUNTING = {"count", "quantity", "amount", "n", "total"}  # integers that may stand before the noun: "order 3 lamps"


@dataclass
class Tool:
    """A tool as offered in one conversation, and how to ask for it."""

    name: str
    description: str
    params: list[Param]
    topic: set[str] = field(default_factory=set)   # what must not be shared by two tools on offer
    asks: list[str] = field(default_factory=list)  # realistic families: request patterns
    verb: str = ""
    noun: str = ""

    def schema(self, compact: bool = False) -> dict:
        """The OpenAI form. `compact` drops what people often leave out."""
        function: dict = {"name": self.name}
        if self.description:
            function["description"] = self.description
        required = [p.name for p in self.params if p.required]
        parameters: dict = {"type": "object", "properties": {p.name: p.schema() for p in self.params}}
        if required or not compact:
            parameters["required"] = required
        function["parameters"] = parameters
        return {"type": "function", "function": function}


def spoken(name: str) -> str:
    """How a person says an identifier: max_rows -> max rows."""
    return name.replace("_", " ")


def camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(w.capitalize() for w in rest)


class ToolMaker:
    """Draws tools, requests and results from one `Words`; held-out words give held-out tools."""

    def __init__(self, words: Words) -> None:
        self.w = words
        self.verbs = split_list(sorted(VERBS), words.held_out)
        self.families = [f for f in FAMILIES if (f in HELD_OUT) == words.held_out]
        if not words.held_out:
            self.families += ["weather"] * 5    # the first thing that a newcomer asks

    # ---- tools ----

    def realistic(self) -> Tool:
        w, family = self.w, self.w.pick(self.families)
        names, descriptions, params, asks = FAMILIES[family]
        made = [Param(key, w.pick(p[0]), p[1], p[2], w.pick(p[3]) if w.chance(0.5) else "")
                for key, p in params.items()]
        if len({p.name for p in made}) < len(made):
            made = [Param(key, p[0][0], p[1], p[2]) for key, p in params.items()]
        used = [p for p in made if p.required or w.chance(0.6)]
        keys = {p.key for p in used}
        asks = [a for a in asks if all(p.key in keys or "{" + p.key + "}" not in a for p in made)]
        name = w.pick(names)
        if not w.held_out:
            self._rename(used, params)
            if w.chance(0.3):           # a name known by heart is not copied
                name = w.pick((f"{name}_{w.noun()}", f"{w.noun()}_{name}", f"{w.pseudo(1)}_{name}", f"{name}_{w.pseudo(1)}"))
        if w.chance(0.08):
            name = camel(name)
        topic = {family, GROUPS.get(family, family), name} | set(name.split("_")) - VERBS.keys()
        return Tool(name, w.pick(descriptions), used, topic, asks)

    def _rename(self, used: list[Param], params: dict) -> None:
        """Give some parameters names that training has not met, told by their place and description."""
        w = self.w
        for p in used:
            if w.chance(0.3):
                p.name = w.pick((f"{p.name}_{w.noun()}", f"{w.noun()}_{p.name}", f"{w.pseudo(1)}_{p.name}", w.invented()))
                p.description = p.description or w.pick(params[p.key][3])
            if w.chance(0.08):
                p.name = camel(p.name)
        if len({p.name for p in used}) < len(used):
            for i, p in enumerate(used):
                p.name += str(i)

    def invented(self) -> Tool:
        w = self.w
        verb = w.invented() if w.chance(0.06 if w.held_out else 0.25) else w.pick(self.verbs)
        noun = w.noun()
        if w.chance(0.2):
            noun = w.pick(w.adjectives) + "_" + noun
        style = w.rng.random()
        name = (f"{verb}_{noun}" if style < 0.62 else camel(f"{verb}_{noun}") if style < 0.74 else
                f"{noun}_{verb}" if style < 0.82 else w.pseudo(2) if style < 0.92 else noun)
        thing = spoken(noun)
        description = w.pick((f"{verb} a {thing}", f"{verb} the {thing}", f"{verb}s a {thing}", f"{verb} {thing}",
                              f"Tool to {verb} a {thing}", f"Use this to {verb} the {thing}", f"{verb} one {thing}",
                              f"{verb} the {thing} of a {spoken(w.noun())}", f"{verb} a {thing} by {w.word()}"))
        description = description[0].upper() + description[1:] + w.pick(("", "", "."))
        if style < 0.82 and w.chance(0.15):
            description = ""
        params: list[Param] = []
        for _ in range(w.pick((0, 1, 1, 1, 2, 2, 2, 3))):
            p = self.param()
            if p.name not in [q.name for q in params] and p.name not in (verb, noun):
                params.append(p)
        topic = {verb, noun, name} | set(noun.split("_"))
        return Tool(name, description, params, topic, [], verb, noun)

    def bare(self) -> Tool:
        """An invented tool with a plain name, no description and at most one parameter."""
        w = self.w
        verb = w.invented() if w.chance(0.25) else w.pick(self.verbs)
        noun = w.noun()
        params = [self.param()] if w.chance(0.6) else []
        for p in params:
            p.description = ""
        return Tool(f"{verb}_{noun}", "", params, set(), [], verb, noun)

    def param(self) -> Param:
        w = self.w
        if w.chance(0.08):                  # "nights": 3 <- "for 3 nights"
            name = w.noun() + "s"
            return Param("counted", name, "int", w.chance(0.8), w.pick(("", "", f"Number of {name}", f"How many {name}")))
        if w.chance(0.55):
            name = w.pick(list(TYPED_PARAMS))
            kind = TYPED_PARAMS[name]
            if w.chance(0.15):
                name = w.noun() + "_" + name
        else:
            name = w.noun() if w.chance(0.8) else w.pick(w.adjectives) + "_" + w.noun()
            kind = w.pick(ANY_KIND)
        if kind == "enum":
            kind = list(dict.fromkeys(w.word() for _ in range(w.pick((2, 2, 3, 3, 4)))))
        description = "" if w.chance(0.8) else w.pick((f"The {spoken(name)}", f"{spoken(name)} to use",
                                                        f"Which {spoken(name)}", w.phrase(1, 3)))
        return Param(name, name, kind, w.chance(0.7), description)

    def one(self) -> Tool:
        # One held-out tool in four is realistic: there are only few held-out families.
        return self.realistic() if self.w.chance(0.25 if self.w.held_out else 0.4) else self.invented()

    def offer(self, n: int) -> list[Tool]:
        """`n` tools of which a request can mean only one: verbs may repeat, nouns may not."""
        tools: list[Tool] = []
        taken: set[str] = set()
        while len(tools) < n:
            t = self.one()
            own = t.topic - {t.verb} if t.name != t.verb else t.topic
            if not own & taken:
                tools.append(t)
                taken |= own
        return tools

    # ---- requests ----

    def value(self, kind: object):  # noqa: ANN201 - what the JSON of the call holds
        w = self.w
        if isinstance(kind, list):
            return w.pick(kind)
        if kind == "numstr":
            return w.digits(2, 8)
        if kind == "room":
            return w.pick(ROOMS)
        if kind == "place":
            return w.pick((w.city, lambda: "the " + w.pick(w.nouns), lambda: f"{w.rng.randint(1, 99)} {w.name_like()} Street"))()
        if kind == "pseudo_or_ticker":
            return w.pick(TICKERS) if w.chance(0.5) else w.pseudo().upper() if w.chance(0.5) else w.name_like()
        if kind == "expr":
            a, b, c = w.rng.randint(0, 999), w.rng.randint(0, 99), w.rng.randint(1, 20)
            return w.pick((f"{a} + {b}", f"{a} * {b}", f"{a}*{b}", f"({a} + {b}) / {c}", f"{a} - {b}", f"{a}/{c}",
                           f"{a} + {b} * {c}", f"sqrt({a})"))
        return w.value(kind)

    def request(self, tool: Tool) -> tuple[str, dict]:
        """A sentence that asks for `tool`, and the arguments it gives."""
        return self._from_pattern(tool) if tool.asks else self._from_words(tool)

    def _from_pattern(self, tool: Tool) -> tuple[str, dict]:
        w, ask = self.w, self.w.pick(tool.asks)
        args: dict = {}
        for p in tool.params:
            if "{" + p.key + "}" in ask:
                args[p.key] = self.value(p.kind)
        text = ask.format(**args)
        if w.chance(0.15):
            text = self._polite(text)
        if w.chance(0.08):
            text = text.rstrip(".?")
        return text, {p.name: args[p.key] for p in tool.params if p.key in args}

    def _from_words(self, tool: Tool) -> tuple[str, dict]:
        w = self.w
        given = [p for p in tool.params if p.required or w.chance(0.5)]
        args = {p.name: self.value(p.kind) for p in given}
        article, noun, said = w.pick(("the ", "the ", "a ", "my ", "", "this ")), spoken(tool.noun), None
        before = [p for p in given if isinstance(p.kind, list) or (p.name in COUNTING and p.kind == "int")]
        if before and w.chance(0.25):       # "an urgent ticket", "3 lamps"
            said = w.pick(before)
            noun = f"{args[said.name]} {noun}"
            if said.kind == "int":
                article, noun = "", noun + "s"
        thing = article + noun
        if w.chance(0.12):
            text = w.pick(("Use {}", "Call {}", "Run {}", "{}")).format(tool.name)
        elif tool.verb in VERBS and w.chance(0.6):
            text = w.pick(VERBS[tool.verb]).format(n=thing)
        else:
            text = f"{tool.verb.capitalize()} {thing}"
        kinds = [p.kind for p in given if not isinstance(p.kind, list)]
        order = [p for p in given if p is not said or noun not in text]
        if w.chance(0.4):
            w.rng.shuffle(order)
        parts = []
        for p in order:
            # Without its name a value must still be recognisable: the only one, or of a telling kind.
            telling = (p.kind in TELLING and TYPED_PARAMS.get(p.name) == p.kind) if isinstance(p.kind, str) else True
            alone = len(tool.params) == 1 or (telling and kinds.count(p.kind) <= 1)
            parts.append(self._mention(p, args[p.name], alone and w.chance(0.55)))
        glue = w.pick((" ", ", ", " and ", ", "))
        text += (w.pick((" ", " ", ", ", ": ")) if parts else "") + glue.join(parts)
        text = self._polite(text) if w.chance(0.6) else text + w.pick((".", "", "", "!"))
        return text, args

    def _mention(self, p: Param, value, bare: bool) -> str:  # noqa: ANN001 - any JSON scalar
        w = self.w
        say = spoken(p.name) if w.chance(0.8) else p.name
        if p.key == "counted" and w.chance(0.8):
            return w.pick(("for {v} {p}", "{v} {p}", "with {v} {p}", "of {v} {p}")).format(v=value, p=say)
        if p.kind == "bool":
            yes = (f"with {say}", f"{say} on", f"{say}: true", f"{say} true", f"{say} yes", f"{say} should be true")
            no = (f"without {say}", f"{say} off", f"{say}: false", f"{say} false", f"no {say}", f"{say} should be false")
            return w.pick(yes if value else no)
        loose = isinstance(value, str) and " " in value and p.kind in ("phrase", "text")   # where does it end?
        shown = f'"{value}"' if isinstance(value, str) and w.chance(0.5 if loose else 0.12) else str(value)
        if bare:
            prep = "" if isinstance(p.kind, list) else PREPOSITION.get(p.kind, "")
            return f"{prep} {shown}".strip()
        return w.pick(("with {p} {v}", "with {p} {v}", "{p} {v}", "{p} {v}", "{p}: {v}", "{p} = {v}", "with the {p} {v}",
                       "where {p} is {v}", "the {p} is {v}", "set {p} to {v}", "use {v} as {p}", "{p} is {v}",
                       "the {p} should be {v}", "for {p} {v}")).format(p=say, v=shown)

    def _polite(self, text: str) -> str:
        style = self.w.pick(POLITE)
        lower = text if text[:2].isupper() or text.startswith("I ") else text[:1].lower() + text[1:]
        out = style.format(text, l=lower)
        if out.startswith(("Can", "Could", "Hey")):
            out = out.rstrip(".") + ("" if out.endswith("?") else "?")
        return out

    # ---- results ----

    def result(self, tool: Tool, args: dict) -> tuple[str, str, list[str]]:
        """What the tool returns, the assistant's sentence about it, and the strings it must hold."""
        w = self.w
        city = next((args[p.name] for p in tool.params if p.kind == "city" and p.name in args), None)
        x = w.rng.random()
        if x < 0.08:
            return w.pick(('{"status": "ok"}', '{"success": true}', "ok", "done", '{"ok": true}')), "Done.", ["Done"]
        if x < 0.14:
            why = w.pick(("not found", "permission denied", "timeout", "invalid argument", w.phrase(2, 4)))
            return w.pick((json.dumps({"error": why}), f"error: {why}", f"Error: {why}")), f"That did not work: {why}.", [why]
        weather = bool({"weather", "forecast"} & tool.topic)
        if x < 0.36:
            text = self._weather_text() if weather else w.phrase(1, 7) if w.chance(0.6) else str(w.value(
                w.pick(("int", "number", "price", "date", "clock", "code", "name"))))
            if city and weather:
                return text, f"The weather in {city}: {text}.", [text]
            return text, f"Here is the result: {text}.", [text]
        facts = self._weather_facts() if weather else self._facts(tool)
        if city and w.chance(0.25):
            facts = {next(p.name for p in tool.params if p.kind == "city"): city} | facts
        shown = {k: v if isinstance(v, str) else json.dumps(v) for k, v in facts.items()}
        parts = [f"the {spoken(k)} is {v}" for k, v in shown.items()]
        text = parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1]
        text = f"In {city}, {text}." if city and city not in facts.values() else text[0].upper() + text[1:] + "."
        compact = (",", ":") if w.chance(0.35) else (", ", ": ")
        return json.dumps(facts, separators=compact), text, list(shown.values())

    def _weather_text(self) -> str:
        w = self.w
        sky = w.pick("rain|sunny|cloudy|snow|clear sky|fog|light rain|windy|thunderstorm|hail".split("|"))
        degrees = w.rng.randint(-25, 42)
        return w.pick((f"{degrees} degrees, {sky}", f"{degrees} degrees and {sky}", f"{sky}, {degrees} degrees",
                       f"{sky} at {degrees} degrees", f"{degrees}C, {sky}", sky, f"{degrees} degrees"))

    def _weather_facts(self) -> dict:
        w = self.w
        sky = w.pick("rain|sunny|cloudy|snow|clear|fog|light rain|windy|thunderstorm|drizzle".split("|"))
        if w.chance(0.15):
            sky = w.word()
        facts = {w.pick(("temperature", "temperature", "temp", "degrees", "temperature_c")): w.rng.randint(-25, 42),
                 w.pick(("condition", "condition", "conditions", "sky", "weather", "description")): sky,
                 "humidity": w.rng.randint(10, 99), "wind": w.rng.randint(0, 40), "unit": w.pick(("celsius", "fahrenheit"))}
        keys = list(facts)[:w.pick((1, 2, 2, 2, 2, 3))]
        if w.chance(0.2):
            keys.append(w.pick(("humidity", "wind", "unit")))
        if w.chance(0.2):
            w.rng.shuffle(keys)
        return {k: facts[k] for k in keys}

    def _facts(self, tool: Tool) -> dict:
        w = self.w
        facts = {}
        for _ in range(w.pick((1, 1, 2, 2, 3, 4))):
            p = self.param()
            facts[p.name] = self.value(p.kind)
        return facts
