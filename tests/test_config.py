import dataclasses
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xyreward.config import (
    Arguments,
    DPORecipe,
    EvaluateRecipe,
    GRPORecipe,
    Places,
    Recipe,
    RewardModelRecipe,
    check_keys,
    check_limits,
    dump_yaml,
    load_config,
    parse_arguments,
    parse_yaml,
)
from xyreward.errors import ConfigError

DEFAULTS = DPORecipe(output_dir="runs/x")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "recipe.yaml"


def load(file: Path, text: str, *overrides: str) -> DPORecipe:
    """Load the text as a DPO recipe; a line with output_dir is put in front."""
    file.write_text(f"output_dir: runs/x\n{text}", "utf-8")
    return load_config(DPORecipe, file, overrides)


def refused(file: Path, text: str, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(file, text, *overrides)
    return str(caught.value)


# ---------------------------------------------------------------- keys


@pytest.mark.parametrize(
    ("text", "place", "hint"),
    [
        ("sed: 1", "sed", "seed"),
        ("output-dir: x", "output-dir", "output_dir"),
        ("policy: {modle: x}", "policy.modle", "model"),
        ("items: [{source: mini}, {sorce: x}]", "items.1.sorce", "source"),
        ("pairs: {controls_share: 0.1}", "pairs.controls_share", "control_share"),
        ("evaluation: {max_new_token: 5}", "evaluation.max_new_token", "max_new_tokens"),
    ],
)
def test_a_misspelt_key_is_an_error_with_file_place_and_the_key_that_was_meant(
    file: Path, text: str, place: str, hint: str
) -> None:
    assert refused(file, text) == f"{file}: {place}: unknown key; did you mean {hint!r}?"


def test_a_key_like_no_other_is_an_error_with_the_known_ones(file: Path) -> None:
    assert refused(file, "evaluation: {nonsense: 1}") == (
        f"{file}: evaluation.nonsense: unknown key; known: answers_per_item, batch_size, controls, judge, "
        "judge_options, leave_out, limit, max_failure_rate, max_new_tokens, oracle, parts, references, "
        "sources, split, temperature"
    )
    assert refused(file, "pairs: {rule: {temperature: 1}}") == (
        f"{file}: pairs.rule.temperature: unknown key; known: margin, margin_pairs, max_length_ratio, "
        "max_pairs_per_item, needs, rejected_kinds, same_origin"
    )


def test_a_section_of_another_recipe_is_an_unknown_key(file: Path) -> None:
    for section, scripts in (
        ("dpo", "recipes/dpo.py"),
        ("reward_model", "recipes/reward_model.py"),
        ("lora", "recipes/dpo.py and recipes/grpo.py and recipes/reward_model.py"),
    ):
        file.write_text(f"output_dir: x\n{section}: {{beta: 0.1}}\n")
        with pytest.raises(ConfigError) as refused:
            load_config(EvaluateRecipe, file)
        assert str(refused.value) == f"{file}: {section}: unknown key here; it is one of {scripts}"
    # `reward`, which it has, is near `reward_model`, and not what was meant.
    file.write_text("output_dir: x\nreward_model: {max_length: 256}\n")
    with pytest.raises(ConfigError, match=r"it is one of recipes/reward_model\.py"):
        load_config(GRPORecipe, file)


def test_all_problems_are_listed_at_once(file: Path) -> None:
    text = refused(file, "sed: 1\nevaluation: {batch_size: 0, splitt: dev}\n")
    places = [line.removeprefix(f"{file}: ").partition(":")[0] for line in text.splitlines()]
    assert sorted(places) == ["evaluation.batch_size", "evaluation.splitt", "sed"]


def test_a_missing_key_is_named(file: Path) -> None:
    for text in ("", "# nothing but a comment\n", "---\n", "seed: 1\n"):
        file.write_text(text)
        with pytest.raises(ConfigError) as caught:
            load_config(DPORecipe, file)
        assert str(caught.value) == f"{file}: output_dir: is required"


@pytest.mark.parametrize(
    "text", ["seed: 1\nseed: 2", "dpo: {beta: 0.1, beta: 0.2}", "items: [{source: a, source: b}]"]
)
def test_a_key_given_twice_is_an_error(file: Path, text: str) -> None:
    message = refused(file, text)
    assert message.startswith(f"{file}: not valid YAML: ")
    assert "found duplicate key" in message
    assert "suppress" not in message


# ---------------------------------------------------------------- values


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seed: true", "seed: Input should be a valid integer (found True)"),
        ('seed: "1"', "seed: Input should be a valid integer (found '1')"),
        ("seed: 1.0", "seed: Input should be a valid integer (found 1.0)"),
        ("seed: 1e3", "seed: Input should be a valid integer (found 1000.0)"),
        ("seed:", "seed: Input should be a valid integer (found None)"),
        ("seed: -1", "seed: Input should be greater than or equal to 0 (found -1)"),
        ("seed: 4294967296", "seed: Input should be less than 4294967296 (found 4294967296)"),
        ("policy: !!set {model}", "policy: expected keys and values (found {'model'})"),
        ("pairs: {max_pairs: 0}", "pairs.max_pairs: Input should be greater than 0 (found 0)"),
        ("pairs: {control_share: 1}", "pairs.control_share: Input should be less than 1 (found 1)"),
        ('pairs: {control_share: "0.2"}', "pairs.control_share: Input should be a valid number"),
        ("pairs: {control_share: .nan}", "pairs.control_share: Input should be"),
        ("pairs: {control_share: yes}", "pairs.control_share: Input should be a valid number"),
        (
            "pairs: {rule: {rejected_kinds: [litteral]}}",
            "pairs.rule.rejected_kinds.0: Input should be 'goal_",
        ),
        (
            "pairs: {rule: {margin: 1.5}}",
            "pairs.rule: margin is 1.5, expected in [0, 1]",
        ),
        ("pairs: {rule: {margin: true}}", "pairs.rule.margin: Input should be a valid number"),
        (
            "pairs: {rule: {same_origin: no}}",
            "pairs.rule.same_origin: Input should be a valid bool",
        ),
        ("pairs: {rule: 3}", "pairs.rule: expected keys and values (found 3)"),
        ("pairs: {guards: {limits: {sane: 1}}}", "pairs.guards.limits.sane"),
        ("pairs: {balance: 0.6}", "pairs.balance: Input should be less than or equal to 0.5"),
        ("pairs: {sources: []}", "pairs.sources: Tuple should have at least 1 item"),
        ("pairs: {sources: [onpolicy]}", "pairs.sources.0: Input should be 'references'"),
        ("pairs: {on_policy: {samples: 0}}", "pairs.on_policy.samples: Input should be greater"),
        ("rounds: 0", "rounds: Input should be greater than 0"),
        ("evaluation: {split: tset}", "evaluation.split: Input should be 'dev', 'test' or 'all'"),
        ("evaluation: {limit: -1}", "evaluation.limit: Input should be greater than 0 (found -1)"),
        ("evaluation: {parts: writing}", "evaluation.parts: expected a list (found 'writing')"),
        ("policy: {model: 135}", "policy.model: Input should be a valid string (found 135)"),
        ("policy: {dtype: fp8}", "policy.dtype: Input should be 'auto', 'float32'"),
        ("policy: smollm", "policy: expected keys and values (found 'smollm')"),
        ("items: mini", "items: expected a list (found 'mini')"),
        ("items: {source: mini}", "items: expected a list (found {'source': 'mini'})"),
        ("items: [mini]", "items.0: expected keys and values (found 'mini')"),
        ("items: []", "items: Tuple should have at least 1 item"),
        ("items: [{kinds: []}]", "items.0.kinds: Tuple should have at least 1 item"),
        ("dpo: [beta]", "dpo: expected keys and values (found ['beta'])"),
        ("dpo: {1: 2}", "dpo.1.[key]: Input should be a valid string (found 1)"),
    ],
)
def test_a_wrong_value_is_an_error_with_place_and_what_was_found(
    file: Path, text: str, message: str
) -> None:
    found = refused(file, text)
    assert found.startswith(f"{file}: {message}")
    assert "\n" not in found


def test_an_empty_output_folder_is_an_error(file: Path) -> None:
    assert refused(file, "", 'output_dir=""') == (
        "command line: output_dir: String should have at least 1 character (found '')"
    )


def test_a_key_that_is_no_word_is_an_error(file: Path) -> None:
    assert "('a',): Keys should be strings" in refused(file, "? [a]\n: b\n")
    assert refused(file, "1: 2").startswith(f"{file}: 1: ")


@pytest.mark.parametrize("section", ["policy", "pairs", "evaluation", "dpo", "items"])
def test_a_section_whose_keys_were_all_commented_out_is_an_error_that_says_what_to_do(
    file: Path, section: str
) -> None:
    expected = "a list" if section == "items" else "keys and values"
    assert refused(file, f"{section}:\n  # all: off\n") == (
        f"{file}: {section}: is empty, expected {expected}; leave the key out for the defaults"
    )


def test_null_for_lora_means_that_all_weights_are_trained(file: Path) -> None:
    assert load(file, "lora: null").lora is None
    assert load(file, "lora: {r: 8}").lora == {"r": 8}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-4", 0.0001),
        ("1E-4", 0.0001),
        ("2.0e-4", 0.0002),
        ("5e-7", 5e-7),
        ("1e3", 1000.0),
        ("0.1", 0.1),
        (".inf", float("inf")),
        ("16", 16),
        ("true", True),
        ("null", None),
        ("no", "no"),
        ("off", "off"),
        ("2026-11-30", "2026-11-30"),
        ("2026-11-30 10:00:00", "2026-11-30 10:00:00"),
        ("12:30:45", "12:30:45"),
        ("'1e-4'", "1e-4"),
        ("all-linear", "all-linear"),
    ],
)
def test_values_are_those_of_yaml_1_2(file: Path, text: str, value: Any) -> None:
    found = load(file, f"dpo: {{key: {text}}}").dpo["key"]
    assert found == value
    assert type(found) is type(value)


# ---------------------------------------------------------------- files

LAUGHS = "a: &a0 [1, 1]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 20)
)
"""Twenty lines that stand for 9 ** 19 numbers."""


def test_line_ends_and_the_mark_of_windows_do_no_harm(file: Path) -> None:
    file.write_bytes(b"\xef\xbb\xbfoutput_dir: runs/x\r\npolicy:\r\n  model: m\r\nseed: 3\r\n")
    found = load_config(DPORecipe, file)
    assert (found.output_dir, found.policy.model, found.seed) == ("runs/x", "m", 3)


def test_a_file_that_is_absent_a_folder_or_not_text_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.yaml: no such configuration file"):
        load_config(DPORecipe, tmp_path / "absent.yaml")
    with pytest.raises(ConfigError, match=rf"{tmp_path}: is a folder, expected a YAML file in it"):
        load_config(DPORecipe, tmp_path)
    latin = tmp_path / "latin.yaml"
    latin.write_bytes("output_dir: Läufe\n".encode("latin-1"))
    with pytest.raises(ConfigError, match=r"latin\.yaml: is not UTF-8 .*save it as UTF-8"):
        load_config(DPORecipe, latin)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- a\n- b\n", "is a list, expected keys and values"),
        ("just words\n", "is a str, expected keys and values"),
        ("a: [1,\n", "not valid YAML: while parsing"),
        ("a: b: c\n", "not valid YAML: "),
        ("a:\n\tb: 1\n", "not valid YAML: "),
        ("a: 1\n---\na: 2\n", "not valid YAML: expected a single document"),
        ("a: !!python/object:os.system x\n", "not valid YAML: could not determine a constructor"),
        ("a: !!int x\n", "not valid YAML: invalid literal for int"),
        (f"a: {'1' * 5000}\n", "not valid YAML: Exceeds the limit"),
        ("a: \0\n", "not valid YAML: "),
        ("a: " + "[" * 40 + "]" * 40, "is nested too deeply, expected at most 30 levels"),
        ("a: " + "[" * 5000 + "]" * 5000, "is nested too deeply"),
        ("dpo: &a {b: *a}\n", "is nested too deeply, expected at most 30 levels (does an anchor"),
        ("items: &a [*a]\n", "is nested too deeply"),
        (LAUGHS, "has more than 100000 values once its anchors are resolved"),
    ],
)
def test_what_is_not_one_yaml_mapping_is_an_error_in_one_line(
    file: Path, text: str, message: str
) -> None:
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_config(DPORecipe, file)
    assert str(caught.value).startswith(f"{file}: {message}")
    assert "\n" not in str(caught.value)


# ---------------------------------------------------------------- --set


def test_set_overrides_the_file_at_any_depth_and_later_wins(file: Path) -> None:
    found = load(
        file,
        "seed: 1\ndpo: {beta: 0.1, learning_rate: 1e-5}\n",
        "seed=2",
        "seed=3",
        "dpo.learning_rate=1e-4",
        "policy.chat_template_kwargs.enable_thinking=false",
        "evaluation.parts=[writing]",
        "items=[{source: mini, kinds: [control]}]",
        "lora.r=4",
    )
    assert found.seed == 3
    assert found.dpo == {"beta": 0.1, "learning_rate": 0.0001}
    assert found.policy.chat_template_kwargs == {"enable_thinking": False}
    assert found.evaluation.parts == ("writing",)
    assert found.items[0].kinds == ("control",)
    assert found.lora == {"r": 4}


def test_set_of_nothing_or_null_switches_off(file: Path) -> None:
    assert load(file, "lora: {r: 8}", "lora=").lora is None
    assert load(file, "lora: {r: 8}", "lora=null").lora is None
    assert load(file, "pairs: {max_pairs: 5}", "pairs.max_pairs=null").pairs.max_pairs is None


def test_set_fills_a_section_that_the_file_leaves_null(file: Path) -> None:
    assert load(file, "lora: null", "lora.r=8").lora == {"r": 8}
    assert load(file, "evaluation:", "evaluation.limit=3").evaluation.limit == 3


def test_the_value_of_set_may_hold_an_equals_sign(file: Path) -> None:
    assert load(file, "", "policy.model=a=b").policy.model == "a=b"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("seed", "--set seed: expected section.key=value"),
        ("=1", "--set =1: expected section.key=value"),
        ("dpo.x=[1,", "--set dpo.x=[1,: not valid YAML: "),
        ("seed.x=1", "--set seed.x=1: seed is a int, not a section"),
        (
            "items.0.source=x",
            "--set items.0.source=x: items is a list, not a section; set it whole, "
            "with --set 'items=...'",
        ),
        (
            "dpo.betas.0=x",
            "--set dpo.betas.0=x: betas is a list, not a section; set it whole, "
            "with --set 'dpo.betas=...'",
        ),
    ],
)
def test_a_set_that_cannot_be_is_named(file: Path, override: str, message: str) -> None:
    text = "seed: 1\nitems: [{source: mini}]\ndpo: {betas: [1, 2]}\n"
    assert refused(file, text, override).startswith(message)


def test_a_misspelt_key_of_set_is_an_error_like_one_in_the_file(file: Path) -> None:
    message = refused(file, "", "evaluation.batch=4")
    assert message == "command line: evaluation.batch: unknown key; did you mean 'batch_size'?"


# ---------------------------------------------------------------- command line


def test_the_command_line_names_file_model_folder_and_overrides(tmp_path: Path) -> None:
    default, other = tmp_path / "default.yaml", tmp_path / "other.yaml"
    default.write_text("output_dir: runs/default\n")
    other.write_text("output_dir: runs/other\nseed: 1\n")
    assert parse_arguments(DPORecipe, default, []) == (
        DPORecipe(output_dir="runs/default"),
        Arguments(default, resume=False),
    )
    arguments = ["--config", str(other), "--model", "m", "--output-dir", "o", "--resume"]
    config, found = parse_arguments(
        DPORecipe, default, [*arguments, "--skip-eval", "--set", "seed=2", "--set", "dpo.beta=1"]
    )
    assert found == Arguments(other, resume=True)
    assert (config.policy.model, config.output_dir, config.seed) == ("m", "o", 2)
    assert config.evaluation.parts == ()
    assert config.dpo == {"beta": 1}


def test_an_evaluation_cannot_be_asked_to_skip_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("output_dir: runs/x\n")
    with pytest.raises(SystemExit):
        parse_arguments(EvaluateRecipe, file, ["--skip-eval"])
    assert "unrecognized arguments: --skip-eval" in capsys.readouterr().err
    assert parse_arguments(EvaluateRecipe, file, [])[0].evaluation.parts


def test_what_the_command_line_gave_is_told_as_its_and_not_as_the_file_s(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("output_dir: runs/x\nsead: 1\ndpo: {lerning_rate: 1, beta: 2}\n")
    arguments = ["--config", str(file), "--set", "evaluation.limit=-1", "--set", "dpo.gamma=1"]

    def others(found: Mapping[str, Any], places: Places) -> list[str]:
        return [f"{places.of(f'dpo.{key}')}: {key}" for key in found["dpo"]]

    with pytest.raises(ConfigError) as caught:
        parse_arguments(DPORecipe, file, [*arguments, "--output-dir", ""], others=others)
    assert [line.split(" (found")[0] for line in str(caught.value).splitlines()] == [
        "--set: evaluation.limit: Input should be greater than 0",
        "--output-dir: output_dir: String should have at least 1 character",
        f"{file}: sead: unknown key; did you mean 'seed'?",
        f"{file}: lerning_rate",
        f"{file}: beta",
        "--set: gamma",
    ]
    section = {"beta": 1, "gamma": {"inner": 1}}
    places = Places(file, {"dpo.gamma.inner": "--set"})
    with pytest.raises(ConfigError) as caught:
        check_keys(places, "dpo", section, Trainer, {})
    assert [line.split(": ")[0] for line in str(caught.value).splitlines()] == [str(file), "--set"]


@pytest.mark.parametrize("name", ["2026", "a #1", "null", "x: y", "[a]", "C:\\runs\\a", "", "ä"])
def test_names_of_folders_and_models_are_taken_as_they_are(tmp_path: Path, name: str) -> None:
    default = tmp_path / "default.yaml"
    default.write_text("output_dir: runs/default\n")
    config, _ = parse_arguments(DPORecipe, default, ["--model", name])
    assert config.policy.model == name
    if name:
        config, _ = parse_arguments(DPORecipe, default, ["--output-dir", name])
        assert config.output_dir == name


@pytest.mark.parametrize("argument", ["--sed", "--conf", "--learning_rate", "positional"])
def test_an_unknown_argument_is_refused_and_not_ignored(
    tmp_path: Path, argument: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        parse_arguments(DPORecipe, tmp_path / "x.yaml", [argument, "1"])
    assert stopped.value.code == 2
    assert argument in capsys.readouterr().err


# ---------------------------------------------------------------- sections of other libraries


@dataclasses.dataclass
class Trainer:
    """Stands in for a configuration of TRL: fields of every sort."""

    output_dir: str = ""
    learning_rate: float = 0.0
    max_steps: int = 0
    max_length: int | None = None
    bf16: bool | None = None
    strategy: Literal["no", "steps"] = "no"
    loss_type: list[str] = dataclasses.field(default_factory=list)
    report_to: str | list[str] | None = None
    weights: list[float] | None = None
    kwargs: dict[str, int] | str | None = None
    derived: int = dataclasses.field(default=0, init=False)


def check(**given: Any) -> None:
    check_keys("c.yaml", "dpo", given, Trainer, {"output_dir": "use the top-level output_dir"})


def test_a_section_of_known_keys_and_fitting_values_passes() -> None:
    check()
    check(learning_rate=1e-4, max_steps=5, max_length=None, bf16=True, strategy="no")
    check(learning_rate=1, bf16=None, loss_type=["sigmoid"], report_to="none")
    check(loss_type=[], report_to=["a"], weights=[1, 0.5], kwargs=3)  # of kwargs we know nothing


def test_unknown_and_reserved_keys_are_all_named_with_what_to_do() -> None:
    with pytest.raises(ConfigError) as caught:
        check(learning_rat=1, output_dir="x", derived=1, zzz=1)
    assert str(caught.value).splitlines() == [
        "c.yaml: dpo.learning_rat: Trainer has no such field; did you mean 'learning_rate'?",
        "c.yaml: dpo.output_dir: is set by the recipe; use the top-level output_dir",
        "c.yaml: dpo.derived: Trainer has no such field; known: bf16, kwargs, "
        "learning_rate, loss_type, max_length, max_steps, output_dir, report_to, strategy, weights",
        "c.yaml: dpo.zzz: Trainer has no such field; known: bf16, kwargs, "
        "learning_rate, loss_type, max_length, max_steps, output_dir, report_to, strategy, weights",
    ]


def test_the_hint_does_not_list_hundreds_of_fields() -> None:
    fields: list[Any] = [(f"field_{i}", int, 0) for i in range(200)]
    big = dataclasses.make_dataclass("Big", fields)
    with pytest.raises(ConfigError) as caught:
        check_keys("c.yaml", "dpo", {"zzz": 1}, big, {})
    assert str(caught.value) == "c.yaml: dpo.zzz: Big has no such field"


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("bf16", "no", "true or false or null"),  # a string that is not empty is true
        ("bf16", 1, "true or false or null"),
        ("learning_rate", "2e-4", "a number"),
        ("learning_rate", True, "a number"),
        ("max_steps", 1e3, "a whole number"),
        ("max_steps", True, "a whole number"),
        ("max_steps", None, "a whole number"),
        ("max_length", "384", "a whole number or null"),
        ("max_length", [384], "a whole number or null"),
        ("strategy", "epoch", "one of no, steps"),
        ("strategy", False, "one of no, steps"),
        ("loss_type", "sigmoid", "a list of texts"),
        ("loss_type", [1], "a list of texts"),
        ("loss_type", {"sigmoid": 1}, "a list of texts"),
        ("report_to", [["a"]], "a text or null or a list of texts"),
        ("weights", [1, "2"], "null or a list of numbers"),
    ],
)
def test_a_value_of_another_type_than_a_plain_field_is_an_error(
    key: str, value: Any, expected: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        check(**{key: value})
    assert str(caught.value) == f"c.yaml: dpo.{key}: is {value!r}, expected {expected}"


@pytest.mark.parametrize(
    ("interval", "inside", "outside"),
    [
        ("[0, 1)", [0, 0.0, 0.999], [-1e-9, 1, 1.0, float("nan"), float("inf")]),
        ("(0, inf)", [1e-9, 10**400], [0, -1, float("inf"), float("nan")]),
        ("[0, inf]", [0, float("inf")], [float("-inf"), float("nan")]),
    ],
)
def test_numbers_are_held_against_their_intervals(
    interval: str, inside: list[float], outside: list[float]
) -> None:
    for value in inside:
        check_limits("c.yaml", "dpo", {"x": value}, {"x": interval})
    for value in outside:
        with pytest.raises(ConfigError) as caught:
            check_limits("c.yaml", "dpo", {"x": value}, {"x": interval})
        assert str(caught.value) == f"c.yaml: dpo.x: is {value}, expected in {interval}"
    check_limits("c.yaml", "dpo", {"x": "text", "y": -1}, {"x": interval, "z": interval})


def test_all_numbers_outside_their_intervals_are_named() -> None:
    with pytest.raises(ConfigError) as caught:
        check_limits("c.yaml", "dpo", {"a": -1, "b": 5}, {"a": "[0, 1]", "b": "[0, 1]"})
    assert len(str(caught.value).splitlines()) == 2


# ---------------------------------------------------------------- round trip

words = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | words
    | st.sampled_from(["no", "1e-4", "~", "2026-11-30", "a\u2028b", "x: y", "\ta\r\n", "é" * 200]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=80, deadline=None)
@given(st.dictionaries(words, plain, max_size=3), words.filter(bool), st.integers(0, 2**32 - 1))
def test_a_configuration_written_as_yaml_reads_back_equal(
    tmp_path_factory: pytest.TempPathFactory, dpo: dict[str, Any], name: str, seed: int
) -> None:
    before = DPORecipe(output_dir=name, dpo=dpo, seed=seed, lora={"r": 4})
    file = tmp_path_factory.getbasetemp() / "round_trip.yaml"
    file.write_text(dump_yaml(before), "utf-8", newline="\n")
    assert load_config(DPORecipe, file) == before


@pytest.mark.parametrize("value", [float("inf"), 1e-5, "1e-5", "no", "2026-11-30", "a\u2028b"])
def test_values_that_yaml_could_confuse_keep_value_and_type(file: Path, value: Any) -> None:
    before = DPORecipe(output_dir="x", dpo={"key": value, "list": [value]})
    file.write_text(dump_yaml(before), "utf-8")
    found = load_config(DPORecipe, file).dpo
    assert found == before.dpo
    assert type(found["key"]) is type(value)


def test_the_written_configuration_shows_the_defaults(file: Path) -> None:
    data = parse_yaml(dump_yaml(DEFAULTS), "the dump")
    assert data["evaluation"]["parts"] == ["writing", "preference", "picking"]
    assert data["pairs"]["control_share"] == 0.25
    assert data["lora"] is None


def test_a_configuration_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        DEFAULTS.seed = 1


@pytest.mark.parametrize(
    "path",
    [
        path
        for path in sorted((Path(__file__).parent.parent / "configs").rglob("*.yaml"))
        if path.parent.name != "accelerate"  # not ours to read
    ],
    ids=lambda path: f"{path.parent.name}/{path.name}",
)
def test_every_configuration_that_is_shipped_loads(path: Path) -> None:
    recipes: dict[str, type[Recipe]] = {
        "dpo": DPORecipe,
        "evaluate": EvaluateRecipe,
        "grpo": GRPORecipe,
        "reward_model": RewardModelRecipe,
    }
    assert load_config(recipes[path.parent.name], path).output_dir


def test_configurations_of_evaluations_show_every_kind_of_policy() -> None:
    folder = Path(__file__).parent.parent / "configs/evaluate"
    found = {
        load_config(EvaluateRecipe, path).policy.model.partition(":")[0]
        for path in folder.glob("*.yaml")
    }
    assert found == {"embedded", "chat", "anthropic", "answers"}


@pytest.mark.parametrize(
    ("model", "parts"),
    [
        ("embedded:smollm2-135m", ("writing", "preference", "picking")),
        ("chat:m@http://127.0.0.1:8000", ("writing", "picking")),
        ("anthropic:claude-haiku-5-5", ("writing", "picking")),
        ("answers:mine.jsonl", ("writing",)),
    ],
)
def test_what_is_measured_by_default_is_what_there_is(model: str, parts: tuple[str, ...]) -> None:
    wanted = load_config(
        EvaluateRecipe, None, ["output_dir=x", f"policy.model={json.dumps(model)}"]
    )
    assert wanted.evaluation.parts == parts


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["policy.model=chat:m@http://127.0.0.1:1"], "can be evaluated and not trained"),
        (["evaluation.split=all"], "for a policy that is not trained here"),
        (["evaluation.controls=mini"], "for a policy that is not trained here"),
        (
            ["evaluation.oracle=true", "evaluation.parts=[preference]"],
            "expected writing among parts",
        ),
        (["evaluation.leave_out=a", "evaluation.sources=[b]"], "take them out, or leave_out"),
    ],
)
def test_what_training_cannot_be_evaluated_by_is_refused(overrides: list[str], said: str) -> None:
    for recipe in (DPORecipe, GRPORecipe, RewardModelRecipe):
        with pytest.raises(ConfigError, match=re.escape(said)):
            load_config(recipe, None, ["output_dir=x", *overrides])


@pytest.mark.parametrize(
    ("recipe", "section", "name"),
    [
        (GRPORecipe, {"audit": {"judge": "anthropic:m", "judge_options": {}}}, "audit"),
        (GRPORecipe, {"reward": {"judge": "anthropic:m", "judge_options": {}}}, "reward"),
        (GRPORecipe, {"sft": {}, "pairs": {"judge": "anthropic:m", "judge_options": {}}}, "pairs"),
        # Where nothing is judged, nobody loads the judge, and the configuration is kept all the same.
        (DPORecipe, {"evaluation": {"parts": ["preference"], "judge_options": {}}}, "evaluation"),
        (DPORecipe, {"pairs": {"judge": "anthropic:m", "judge_options": {}}}, "pairs"),
        (RewardModelRecipe, {"distilled": {"judge_options": {}}}, "distilled"),
    ],
)
def test_no_key_gets_into_the_configuration_of_a_run_folder(
    tmp_path: Path, recipe: type[Recipe], section: dict[str, Any], name: str
) -> None:
    section[name]["judge_options"] = {"api_key": "sk-of-somebody"}
    file = tmp_path / "c.yaml"
    file.write_text(json.dumps({"output_dir": "runs/x", **section}))
    with pytest.raises(ConfigError) as caught:
        load_config(recipe, file)
    assert f"{name}: judge_options.api_key would be written into" in str(caught.value)
    assert "sk-of-somebody" not in str(caught.value)


def test_options_of_an_audit_are_of_its_own_judge(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("output_dir: runs/x\naudit: {judge_options: {votes: 3}}\n")
    with pytest.raises(
        ConfigError, match="audit: judge_options are of no judge; name one in judge"
    ):
        load_config(GRPORecipe, file)
