"""Configuration of a recipe: one YAML file, strict. An unknown or misspelt key is an error with its place.

YAML 1.2 by ruamel.yaml, so `1e-4` is a number, `no` is a word, and a key given twice is an error.
`--set section.key=value` on the command line overrides the file.

Sections `lora` and `dpo` are handed to peft and TRL as they are; their keys are checked against
LoraConfig and DPOConfig. `null` for `lora` means that all weights are trained.

Not here: what a recipe does with it (`recipes/`).
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from xyreward.embedded import POLICY_NAME
from xyreward.errors import ConfigError
from xyreward.items import AnswerKind, ItemKind
from xyreward.splits import Side

EvaluationPart = Literal["writing", "preference", "picking"]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class PolicyConfig(_Section):
    """The model to train or to evaluate."""

    model: str = POLICY_NAME
    """`embedded:smollm2-135m`, a folder, a hub name, or a folder or hub name of a peft adapter."""
    revision: str | None = None
    """Commit of a hub model."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Of the weights. `auto`: float32 on CPU and MPS, bfloat16 on CUDA where it is supported."""
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Passed to the chat template, e.g. `enable_thinking: false`."""


class ItemsConfig(_Section):
    """One source of items; see `load_items` for the fields."""

    source: str = "mini"
    hub_split: str | None = None
    revision: str | None = None
    columns: dict[str, str | None] = Field(default_factory=dict)
    kinds: tuple[ItemKind, ...] = ("xy", "control")
    """Keep only these kinds of items of this source."""


class PairsConfig(_Section):
    """Which preference pairs are made of the train items; see `build_pairs`."""

    rejected_kinds: tuple[AnswerKind, ...] = ("literal", "passing_mention", "dump", "wrong_goal")
    control_share: float = Field(default=0.25, ge=0, lt=1)
    max_pairs: int | None = Field(default=None, gt=0)


class EvaluationConfig(_Section):
    """The held-out evaluation."""

    split: Side = "test"
    parts: tuple[EvaluationPart, ...] = ("writing", "preference", "picking")
    """Empty: no evaluation."""
    judge: str = "local"
    max_new_tokens: int = Field(default=192, gt=0)
    """Longest generated answer, in tokens. Answers that reach it are counted."""
    batch_size: int = Field(default=16, gt=0)
    limit: int | None = Field(default=None, gt=0)
    """Evaluate only this many items of each kind (first by content hash), for a quick look."""
    max_failure_rate: float = Field(default=0.05, ge=0, le=1)
    """Above this share of failed judgements no headline is printed."""


class Recipe(_Section):
    """What all recipes take."""

    policy: PolicyConfig = PolicyConfig()
    items: tuple[ItemsConfig, ...] = Field(default=(ItemsConfig(),), min_length=1)
    splits_lock: str | None = None
    """Path of a splits.json that keeps sides stable over runs. None: sides of the bundled items are
    those of the package, others are assigned by content hash."""
    evaluation: EvaluationConfig = EvaluationConfig()
    output_dir: str
    seed: int = 0


class DPORecipe(Recipe):
    """What `recipes/dpo.py` takes."""

    pairs: PairsConfig = PairsConfig()
    lora: dict[str, Any] | None = None
    """peft's LoraConfig. None: train all weights, or go on training the adapter that `policy` names."""
    dpo: dict[str, Any] = Field(default_factory=dict)
    """TRL's DPOConfig."""


class EvaluateRecipe(Recipe):
    """What `recipes/evaluate.py` takes."""


R = TypeVar("R", bound=Recipe)


@dataclasses.dataclass(frozen=True, slots=True)
class Arguments:
    """A recipe's command line beside the configuration."""

    path: Path
    resume: bool


def parse_arguments(
    recipe: type[R], default: str | Path, argv: Sequence[str] | None = None
) -> tuple[R, Arguments]:
    """Read a recipe's command line: `[--config F] [--resume] [--model M] [--output-dir D] [--set k=v ...]`.

    Raises:
        ConfigError: see `load_config`.
        SystemExit: unknown argument or --help, as argparse does.
    """
    parser = argparse.ArgumentParser(description=recipe.__doc__, allow_abbrev=False)
    parser.add_argument("--config", type=Path, default=Path(default), help="YAML file")
    parser.add_argument("--model", help="same as --set policy.model=...")
    parser.add_argument("--output-dir", help="same as --set output_dir=...")
    parser.add_argument(
        "--resume", action="store_true", help="go on with the run in output_dir where it stopped"
    )
    parser.add_argument("--skip-eval", action="store_true", help="same as --set evaluation.parts=[]")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="e.g. dpo.learning_rate=1e-4"
    )
    args = parser.parse_args(argv)
    overrides = list(args.set)
    if args.model is not None:
        overrides.append(f"policy.model={args.model}")
    if args.output_dir is not None:
        overrides.append(f"output_dir={args.output_dir}")
    if args.skip_eval:
        overrides.append("evaluation.parts=[]")
    return load_config(recipe, args.config, overrides), Arguments(args.config, args.resume)


def load_config(recipe: type[R], path: str | Path, overrides: Sequence[str] = ()) -> R:
    """Read, override and check a configuration.

    Raises:
        ConfigError: no such file, not YAML, an unknown key, a wrong value; names file and key, lists all.
    """
    data = _read(Path(path))
    for override in overrides:
        _override(data, override)
    try:
        return recipe.model_validate(data)
    except ValidationError as error:
        raise ConfigError("\n".join(_explain(recipe, str(path), e) for e in error.errors())) from None


def check_keys(path: str | Path, section: str, given: Mapping[str, Any], target: type,
               reserved: Mapping[str, str]) -> None:
    """Check the keys of a section that goes to another library's dataclass.

    Args:
        target: the dataclass, e.g. trl.DPOConfig.
        reserved: key -> where it is set instead; the recipe decides these itself.

    Raises:
        ConfigError: unknown or reserved keys, all of them.
    """
    known = {f.name for f in dataclasses.fields(target) if f.init}
    problems = []
    for key in given:
        if key in reserved:
            problems.append(f"{path}: {section}.{key}: is set by the recipe; {reserved[key]}")
        elif key not in known:
            problems.append(
                f"{path}: {section}.{key}: {target.__name__} has no such field{_hint(key, known)}"
            )
    if problems:
        raise ConfigError("\n".join(problems))


def _yaml() -> Any:
    from ruamel.yaml import YAML

    return YAML(typ="safe", pure=True)


def dump_yaml(recipe: BaseModel) -> str:
    """The resolved configuration as YAML that `load_config` reads back to an equal one."""
    stream = io.StringIO()
    yaml = _yaml()
    yaml.default_flow_style = False
    yaml.dump(recipe.model_dump(mode="json"), stream)
    return stream.getvalue()


def parse_yaml(text: str) -> Any:
    """YAML 1.2 to plain data."""
    return _yaml().load(text)


def _read(path: Path) -> dict[str, Any]:
    from ruamel.yaml.error import YAMLError

    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such configuration file") from None
    except (UnicodeDecodeError, OSError) as error:
        raise ConfigError(f"{path}: cannot be read ({error})") from None
    try:
        data = parse_yaml(text)
    except YAMLError as error:
        raise ConfigError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None
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
            raise ConfigError(f"--set {override}: {parent} is not a section")
        data = child
    data[last] = parse_yaml(text) if text else None


def _explain(recipe: type[BaseModel], path: str, error: Any) -> str:
    place = ".".join(str(part) for part in error["loc"])
    if error["type"] == "extra_forbidden":
        return f"{path}: {place}: unknown key{_hint(str(error['loc'][-1]), _known(recipe, error['loc']))}"
    found = f" (found {error['input']!r:.80})" if error["type"] != "missing" else ""
    return f"{path}: {place}: {error['msg']}{found}"


def _known(recipe: type[BaseModel], loc: Sequence[str | int]) -> set[str]:
    """Keys of the section in which an unknown key was found."""
    model: Any = recipe
    for part in loc[:-1]:
        if isinstance(part, int):
            continue
        annotation = model.model_fields[part].annotation
        inner = getattr(annotation, "__args__", ())
        model = next(
            (a for a in (annotation, *inner) if isinstance(a, type) and issubclass(a, BaseModel)), None
        )
        if model is None:
            return set()
    return set(model.model_fields)


def _hint(key: str, known: set[str]) -> str:
    close = difflib.get_close_matches(key, known, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; known: {', '.join(sorted(known))}"
