"""A configuration file: strict YAML into a checked section. An unknown key is an error with its place.

YAML 1.2 by ruamel.yaml, so `1e-4` is a number, `no` and `2026-11-30` are words, and a key given
twice is an error.
`--set section.key=value` on the command line overrides the file.

Sections that are handed to another library as they are (`dpo` to TRL's DPOConfig) are checked against its
dataclass: keys, and plain values (`bf16: no` would otherwise be a true string).

Not here: what sections there are (`config.py`).
"""

from __future__ import annotations

import dataclasses
import difflib
import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ValidationError

from xyreward.errors import ConfigError

S = TypeVar("S", bound=BaseModel)


@dataclasses.dataclass(frozen=True, slots=True)
class Places:
    """Where settings were given: in the file, or on the command line, which overrides it."""

    path: str | Path
    flags: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Key (`dpo.beta`) -> the argument that gave it (`--set`)."""

    def of(self, key: str) -> str:
        """The file, or the argument that gave the key, its section or a part of it."""
        for given, flag in self.flags.items():
            if key == given or key.startswith(f"{given}.") or given.startswith(f"{key}."):
                return flag
        return str(self.path)


Others = Callable[[Mapping[str, Any], Places], Sequence[str]]
"""What is wrong with sections that other libraries check, as lines; called where pydantic found something."""


def load_config(
    section: type[S],
    path: str | Path | None,
    overrides: Sequence[str] = (),
    flags: Mapping[str, str] | None = None,
    others: Others | None = None,
) -> S:
    """Read, override and check a configuration. `path` None: overrides alone.

    Args:
        section: what it is of.
        path: of the YAML file.
        overrides: `key=value`, the value as YAML.
        flags: key -> the argument that gave it, for messages. None: some argument did.
        others: finds what is wrong with sections of other libraries, so that all problems are told at
            once. Without problems of ours the caller asks for theirs.

    Raises:
        ConfigError: no such file, not YAML, an unknown key, a wrong value; names file or argument and
        key, lists all.
    """
    data = {} if path is None else _read(Path(path))
    for override in overrides:
        _override(data, override)
    if flags is None:
        flags = {override.partition("=")[0]: "command line" for override in overrides}
    places = Places(path or "options", flags if path is not None else {})
    try:
        return section.model_validate(data)
    except ValidationError as error:
        found = [_explain(section, places, error), *(others(data, places) if others else ())]
    raise ConfigError("\n".join(found))


def check_keys(
    path: str | Path | Places,
    section: str,
    given: Mapping[str, Any],
    target: type,
    reserved: Mapping[str, str],
) -> None:
    """Check a section that goes to another library's dataclass: keys, and values of plain fields.

    The other library takes any value and fails late, or not at all: `bf16: no` is a string in YAML
    1.2, and a string that is not empty is true.

    Args:
        path: of the configuration file, or where settings were given, for messages.
        section: its key in the configuration, for messages.
        given: what the section says.
        target: the dataclass, e.g. trl.DPOConfig.
        reserved: key -> where it is set instead; the recipe decides these itself.

    Raises:
        ConfigError: unknown or reserved keys, values of another type than the field's; all of them.
    """
    if problems := wrong_keys(path, section, given, target, reserved):
        raise ConfigError("\n".join(problems))


def wrong_keys(
    path: str | Path | Places,
    section: str,
    given: Mapping[str, Any],
    target: type,
    reserved: Mapping[str, str],
) -> list[str]:
    """The lines of the error that `check_keys` raises; none where all is well."""
    places = path if isinstance(path, Places) else Places(path)
    known = {f.name for f in dataclasses.fields(target) if f.init}
    hints = get_type_hints(target)
    problems = []
    for key, value in given.items():
        where = f"{places.of(f'{section}.{key}')}: {section}.{key}"
        if key in reserved:
            problems.append(f"{where}: is set by the recipe; {reserved[key]}")
        elif key not in known:
            problems.append(f"{where}: {target.__name__} has no such field{_hint(str(key), known)}")
        elif expected := _mismatch(value, hints[key]):
            problems.append(f"{where}: is {value!r:.80}, expected {expected}")
    return problems


_PLAIN: Mapping[type, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    NoneType: "null",
}
_PLURAL: Mapping[type, str] = {
    bool: "true or false",
    int: "whole numbers",
    float: "numbers",
    str: "texts",
}


def _mismatch(value: Any, hint: Any) -> str:
    """What a field expects, where the value is none of it; "" for fields of other than plain types.

    Plain are true or false, numbers, texts, null, a fixed choice of these, and lists of them.
    """
    allowed = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    expected = []
    for one in allowed:
        if one in _PLAIN:
            fits = type(value) is one or (one is float and type(value) is int)
            text = _PLAIN[one]
        elif get_origin(one) is Literal:
            fits = any(value == choice and type(value) is type(choice) for choice in get_args(one))
            text = f"one of {', '.join(map(str, get_args(one)))}"
        elif get_origin(one) is list and get_args(one)[0] in _PLAIN:
            (inner,) = get_args(one)
            fits = type(value) is list and not any(_mismatch(member, inner) for member in value)
            text = f"a list of {_PLURAL[inner]}"
        else:
            return ""
        if fits:
            return ""
        expected.append(text)
    # In the order of _PLAIN, so that a message does not depend on how the field is declared.
    plain = [text for text in _PLAIN.values() if text in expected]
    return " or ".join([*plain, *(text for text in expected if text not in plain)])


def check_limits(
    path: str | Path | Places, section: str, given: Mapping[str, Any], limits: Mapping[str, str]
) -> None:
    """Check numbers of a section against intervals, written as in mathematics: `[0, 1)`.

    Args:
        limits: key -> interval. Keys that are not given, and values that are no numbers, pass.

    Raises:
        ConfigError: all values outside their intervals; nan is inside none.
    """
    if problems := outside_limits(path, section, given, limits):
        raise ConfigError("\n".join(problems))


def outside_limits(
    path: str | Path | Places, section: str, given: Mapping[str, Any], limits: Mapping[str, str]
) -> list[str]:
    """The lines of the error that `check_limits` raises; none where all is well."""
    places = path if isinstance(path, Places) else Places(path)
    problems = []
    for key, interval in limits.items():
        value = given.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        low, high = (float(end) for end in interval[1:-1].split(","))
        above = low < value or (interval[0] == "[" and value == low)
        below = value < high or (interval[-1] == "]" and value == high)
        if not (above and below):
            problems.append(
                f"{places.of(f'{section}.{key}')}: {section}.{key}: is {value}, expected in {interval}"
            )
    return problems


def _yaml() -> Any:
    from ruamel.yaml import YAML
    from ruamel.yaml.constructor import SafeConstructor
    from ruamel.yaml.representer import SafeRepresenter

    class PlainConstructor(SafeConstructor):
        """YAML 1.2 has no timestamps, and no field here is a date: they stay words."""

    PlainConstructor.add_constructor(
        "tag:yaml.org,2002:timestamp", SafeConstructor.construct_yaml_str
    )

    class PlainRepresenter(SafeRepresenter):
        """Escapes the line ends of Unicode, which in single quotes would become blanks."""

        def represent_str(self, data: str) -> Any:
            style = '"' if set(data) & set("\x85\u2028\u2029") else None
            return self.represent_scalar("tag:yaml.org,2002:str", data, style=style)

    PlainRepresenter.add_representer(str, PlainRepresenter.represent_str)
    yaml = YAML(typ="safe", pure=True)
    yaml.Constructor = PlainConstructor
    yaml.Representer = PlainRepresenter
    return yaml


def dump_yaml(recipe: BaseModel) -> str:
    """The resolved configuration as YAML that `load_config` reads back to an equal one."""
    stream = io.StringIO()
    yaml = _yaml()
    yaml.default_flow_style = False
    yaml.dump(_lists(recipe.model_dump()), stream)
    return stream.getvalue()


def _lists(data: Any) -> Any:
    # model_dump(mode="json") would do it too, and turn .inf into null.
    if isinstance(data, Mapping):
        return {key: _lists(value) for key, value in data.items()}
    return [_lists(value) for value in data] if isinstance(data, list | tuple) else data


def parse_yaml(text: str, where: str) -> Any:
    """YAML 1.2 to plain data. `where` names the text in the ConfigError of one that is not YAML."""
    from ruamel.yaml.error import YAMLError

    try:
        data = _yaml().load(text)
    except (YAMLError, ValueError) as error:  # ValueError: `!!int x`, a number of 5,000 digits
        # Without ruamel's advice on how to switch the check off.
        found = str(error).partition("To suppress this check")[0]
        raise ConfigError(f"{where}: not valid YAML: {' '.join(found.split())}") from None
    except RecursionError:
        raise ConfigError(
            f"{where}: is nested too deeply, expected at most {DEPTH} levels"
        ) from None
    _check_size(data, where)
    return data


DEPTH, SIZE = 30, 100_000


def _check_size(data: Any, where: str) -> None:
    """Refuse what anchors (`&a`, `*a`) blow up or tie into a knot.

    A few lines of YAML can stand for more than fits into memory, or for a list that holds itself.
    """
    seen = 0
    pending = [(data, 1)]
    while pending:
        value, depth = pending.pop()
        seen += 1
        if depth > DEPTH:
            raise ConfigError(
                f"{where}: is nested too deeply, expected at most {DEPTH} levels (does an anchor hold "
                "itself?)"
            )
        if seen > SIZE:
            raise ConfigError(f"{where}: has more than {SIZE} values once its anchors are resolved")
        if isinstance(value, Mapping):
            pending += [(inner, depth + 1) for pair in value.items() for inner in pair]
        elif isinstance(value, list | tuple | set):
            pending += [(inner, depth + 1) for inner in value]


def _read(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such configuration file") from None
    except IsADirectoryError:
        raise ConfigError(f"{path}: is a folder, expected a YAML file in it") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 ({error}); save it as UTF-8") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error})") from None
    data = parse_yaml(text, str(path))
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: is a {type(data).__name__}, expected keys and values")
    return data


def _override(data: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise ConfigError(f"--set {override}: expected section.key=value")
    *parents, last = key.split(".")
    for parent in parents:
        child = data.setdefault(parent, {})
        if child is None:
            child = data[parent] = {}
        if not isinstance(child, dict):
            raise ConfigError(
                f"--set {override}: {parent} is a {type(child).__name__}, not a section; set it "
                f"whole, with --set '{key.partition(f'{parent}.')[0]}{parent}=...'"
            )
        data = child
    data[last] = parse_yaml(text, f"--set {override}") if text else None


_SHAPES = {
    "model_type": "keys and values",
    "dataclass_type": "keys and values",
    "dict_type": "keys and values",
    "tuple_type": "a list",
}
"""pydantic's names of errors, in the words of a YAML file."""


def _explain(recipe: type[BaseModel], places: Places, error: ValidationError) -> str:
    problems = error.errors()
    lines = []
    for problem in problems:
        loc = problem["loc"]
        if problem["type"] == "too_short" and any(
            p["loc"][:-1][: len(loc)] == loc for p in problems
        ):
            continue  # pydantic counts only valid members; the invalid one has a line of its own
        key = ".".join(map(str, loc))
        lines.append(": ".join([places.of(key), *filter(None, [key]), _problem(recipe, problem)]))
    return "\n".join(lines)


def _problem(recipe: type[BaseModel], problem: Any) -> str:
    kind, loc, found = problem["type"], problem["loc"], problem["input"]
    if kind in ("extra_forbidden", "unexpected_keyword_argument"):
        key = str(loc[-1])
        if len(loc) == 1 and (others := _of_other_recipes(recipe, key)):
            return f"unknown key here; it is one of {' and '.join(others)}"
        return f"unknown key{_hint(key, _known(recipe, loc))}"
    if kind == "missing":
        return "is required"
    if kind in _SHAPES and found is None:
        return f"is empty, expected {_SHAPES[kind]}; leave the key out for the defaults"
    if kind in _SHAPES:
        return f"expected {_SHAPES[kind]} (found {found!r:.80})"
    said = problem["msg"].removeprefix("Value error, ")
    if isinstance(found, Mapping):  # of keys that do not go together, which the message names
        return str(said)
    return f"{said} (found {found!r:.80})"


def _of_other_recipes(recipe: type[BaseModel], key: str) -> list[str]:
    """Scripts of the recipes that have this section, of those that share a base with this one."""
    family: list[Any] = [base for base in recipe.__mro__ if hasattr(base, "script")]
    for base in family:
        family += [one for one in base.__subclasses__() if one not in family]
    return sorted({one.script for one in family if one.script and key in one.model_fields})


def _known(recipe: type[BaseModel], loc: Sequence[str | int]) -> set[str]:
    """Keys of the section in which an unknown key was found."""
    model: Any = recipe
    for part in loc[:-1]:
        if isinstance(part, int):
            continue
        field = _fields(model)[part]
        annotation = field.type if isinstance(field, dataclasses.Field) else field.annotation
        inner = getattr(annotation, "__args__", ())
        model = next((a for a in (annotation, *inner) if _fields(a)), None)
        if model is None:
            return set()
    return set(_fields(model))


def _fields(section: Any) -> Mapping[str, Any]:
    """Fields of a section, which is a model of pydantic or a dataclass; none for anything else."""
    if isinstance(section, type) and issubclass(section, BaseModel):
        return section.model_fields
    if isinstance(section, type) and dataclasses.is_dataclass(section):
        return {field.name: field for field in dataclasses.fields(section)}
    return {}


def _hint(key: str, known: set[str]) -> str:
    close = difflib.get_close_matches(key, known, n=1)
    if close:
        return f"; did you mean {close[0]!r}?"
    # TRL's configurations have some two hundred fields: a list of them hides the message.
    return f"; known: {', '.join(sorted(known))}" if len(known) <= 20 else ""
