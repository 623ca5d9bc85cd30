"""What the fake model says: valid values for the request's schema, and the ways to get them wrong.

Not here: HTTP (`server.py`), the choice of what goes wrong (`faults.py`).
"""

from __future__ import annotations

import copy
import json
import random
import re
from collections.abc import Iterator, Mapping
from typing import Any

SENTENCE = "I would rather talk about this in plain sentences than fill in a form."
ELSEWHERE = "a sentence that occurs nowhere in what was to be judged"
OFF_MENU = "somewhat"

_NONCE = re.compile(r"(?<![0-9a-f])[0-9a-f]{16}(?![0-9a-f])")
_RULE = re.compile(r"^\s*(```|~~~|===|---|<<<|>>>)")


def tokens(text: str) -> int:
    """A quarter of the characters, rounded up: the estimate that this server bills by."""
    return -(-len(text) // 4)


def find_answer(text: str) -> str:
    """The text between the last pair of fence lines; all of it where there is no pair.

    A fence line carries a nonce of 16 hex digits, the same in both lines of a pair. Without any
    nonce, lines that begin with a rule (three of `-=<>~` or backquotes) are taken.
    """
    lines = text.splitlines()
    nonces = [(i, found[0]) for i, line in enumerate(lines) if (found := _NONCE.search(line))]
    if nonces:
        fences = [i for i, nonce in nonces if nonce == nonces[-1][1]]
    else:
        fences = [i for i, line in enumerate(lines) if _RULE.match(line)]
    if len(fences) < 2:
        return text
    return "\n".join(lines[fences[-2] + 1 : fences[-1]])


def fill(schema: Mapping[str, Any], rng: random.Random, answer: str) -> Any:
    """A value that is valid under a JSON schema; the same for the same rng and answer.

    A string whose property name has "quote" in it becomes a stretch of `answer`, each at most once,
    so that no two entries contradict each other. Arrays have one to three entries where the schema
    does not say otherwise, none of quotes where the answer is empty.

    Raises:
        ValueError: a schema without type, enum, const, $ref or combination.
    """
    return _Filler(schema, rng, answer).value(schema, "")


class _Filler:
    def __init__(self, root: Mapping[str, Any], rng: random.Random, answer: str) -> None:
        self.root = root
        self.rng = rng
        self.quotes = _stretches(answer, rng)

    def value(self, schema: Mapping[str, Any], name: str) -> Any:
        if "$ref" in schema:
            return self.value(resolve(self.root, schema), name)
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            return self.rng.choice(schema["enum"])
        for several in ("anyOf", "oneOf"):
            if several in schema:
                return self.value(self.rng.choice(schema[several]), name)
        if "allOf" in schema:
            merged: dict[str, Any] = {}
            for part in schema["allOf"]:
                merged.update(resolve(self.root, part))
            return self.value(merged, name)
        kind = schema.get("type", "object" if "properties" in schema else None)
        if isinstance(kind, list):
            kind = kind[0]
        match kind:
            case "object":
                return {k: self.value(v, k) for k, v in schema.get("properties", {}).items()}
            case "array":
                return self._array(schema, name)
            case "string":
                return self._string(name)
            case "boolean":
                return self.rng.random() < 0.5
            case "integer":
                low = int(schema.get("minimum", 0))
                return self.rng.randint(low, int(schema.get("maximum", low + 10)))
            case "number":
                low_f = float(schema.get("minimum", 0.0))
                return round(self.rng.uniform(low_f, float(schema.get("maximum", low_f + 1.0))), 3)
            case "null":
                return None
        raise ValueError(
            f"schema of {name or 'the reply'!r} has no type that can be filled: {schema}"
        )

    def _array(self, schema: Mapping[str, Any], name: str) -> list[Any]:
        low = int(schema.get("minItems", 1))
        count = self.rng.randint(low, max(low, int(schema.get("maxItems", low + 2))))
        items = schema.get("items", {"type": "string"})
        if any("quote" in key for key in resolve(self.root, items).get("properties", {})):
            count = min(count, len(self.quotes))
        return [self.value(items, name) for _ in range(count)]

    def _string(self, name: str) -> str:
        if "quote" in name:
            return self.quotes.pop() if self.quotes else ""
        return (
            f"{name.replace('_', ' ').capitalize() or 'Text'}, number {self.rng.randrange(1000)}."
        )


def resolve(root: Mapping[str, Any], schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema that a local $ref (`#/$defs/name`) names; any other schema itself."""
    while "$ref" in schema:
        found: Any = root
        for part in schema["$ref"].removeprefix("#/").split("/"):
            found = found[part]
        schema = found
    return schema


def _stretches(answer: str, rng: random.Random) -> list[str]:
    """Up to eight stretches of an answer, each within one line, 12 words at most, in random order."""
    found: dict[str, None] = {}
    for line in answer.splitlines():
        words = [match.span() for match in re.finditer(r"\S+", line)]
        for start in range(0, len(words), 12):
            end = min(start + 12, len(words)) - 1
            found[line[words[start][0] : words[end][1]]] = None
    # A stretch inside another one would be found in both places: two labels for one text.
    alone = [q for q in found if len(q) >= 8 and sum(q in other for other in found) == 1]
    several = (alone or list(found))[:64]
    rng.shuffle(several)
    return several[:8]


# ---------------------------------------------------------------- getting it wrong


def spoil(kind: str, value: Any, schema: Mapping[str, Any] | None) -> str:
    """The JSON text of a reply, made wrong in one of the ways of `REPLY_FAULTS` that are about JSON.

    Returns prose where the reply has nothing that can be wrong in this way.
    """
    value = copy.deepcopy(value)  # it may be an object of the user's reply function
    labels = list(_labels(value, schema, schema)) if schema else []
    labels.sort(key=lambda label: not isinstance(label[2][0], bool))  # a menu rather than yes or no
    quoted = _first_quoted(value)
    match kind:
        case "wrong_label" if labels:
            where, key, _ = labels[-1]
            where[key] = OFF_MENU
        case "missing_label" if labels:
            where, key, _ = labels[-1]
            del where[key]
        case "duplicate_label" if labels:
            where, key, others = labels[-1]
            # Two members of one name cannot be in a dict: the first is written under a stand-in.
            stand_in = "\0again"
            value = _with_first(value, where, stand_in, others[0])
            text = json.dumps(value, ensure_ascii=False)
            return text.replace(json.dumps(stand_in), json.dumps(key), 1)
        case "duplicate_key" if isinstance(value, dict) and value:
            key = next(iter(value))
            head = json.dumps({key: value[key]}, ensure_ascii=False)
            return head[:-1] + ", " + json.dumps(value, ensure_ascii=False)[1:]
        case "wrong_quote" if quoted:
            entries, i, key = quoted
            entries[i][key] = ELSEWHERE
        case "contradiction" if quoted:
            entries, i, _ = quoted
            inside = [(k, others) for w, k, others in labels if w is entries[i]]
            if not inside:
                return SENTENCE
            label, others = inside[-1]
            entries.append({**entries[i], label: others[0]})
        case _:
            return SENTENCE
    return json.dumps(value, ensure_ascii=False)


_Label = tuple[dict[str, Any], str, list[Any]]
"""(object that has it, its key, the other values of its menu)"""


def _labels(value: Any, schema: Any, root: Any) -> Iterator[_Label]:
    """Every enum and boolean of a value, in order of the schema."""
    schema = resolve(root, schema)
    if isinstance(value, list):
        for entry in value:
            yield from _labels(entry, schema.get("items", {}), root)
    elif isinstance(value, dict):
        for key, part in schema.get("properties", {}).items():
            part = resolve(root, part)
            if key not in value:
                continue
            menu = [True, False] if part.get("type") == "boolean" else part.get("enum", [])
            if others := [other for other in menu if other != value[key]]:
                yield value, key, others
            else:
                yield from _labels(value[key], part, root)


def _first_quoted(value: Any) -> tuple[list[dict[str, Any]], int, str] | None:
    """The first entry of an array that has a quote: (array, position, key of the quote)."""
    if isinstance(value, dict):
        value = list(value.values())
    if not isinstance(value, list):
        return None
    for i, entry in enumerate(value):
        if isinstance(entry, dict):
            for key in entry:
                if "quote" in key and isinstance(entry[key], str):
                    return value, i, key
        if found := _first_quoted(entry):
            return found
    return None


def _with_first(value: Any, where: dict[str, Any], key: str, member: Any) -> Any:
    """A copy of a JSON value in which the object `where` has one member more, at its front."""
    if isinstance(value, list):
        return [_with_first(entry, where, key, member) for entry in value]
    if isinstance(value, dict):
        copy = {k: _with_first(v, where, key, member) for k, v in value.items()}
        return {key: member, **copy} if value is where else copy
    return value
