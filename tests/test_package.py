import ast
import importlib
import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import xyreward
from xyreward import reward_model
from xyreward.config import (
    DPORecipe,
    EvaluateRecipe,
    GRPORecipe,
    Places,
    Recipe,
    RewardModelRecipe,
    check_keys,
    load_config,
)
from xyreward.grpo import wrong_training
from xyreward.recipe import SET_BY_RECIPE

ROOT = Path(__file__).parent.parent

PUBLIC = [
    "Item",
    "Judge",
    "JudgeFailure",
    "Reward",
    "Score",
    "Verdict",
    "XYRewardError",
    "ascore",
    "assign_splits",
    "build_pairs",
    "check_no_overlap",
    "evaluate",
    "load_items",
    "load_judge",
    "load_policy",
    "score",
]

HEAVY = [
    "accelerate",
    "anthropic",
    "datasets",
    "pandas",
    "peft",
    "scipy",
    "sklearn",
    "torch",
    "transformers",
    "trl",
]


def python(code: str) -> str:
    """What a new process prints."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


# ---------------------------------------------------------------- names


def test_the_public_names_are_these_and_no_others() -> None:
    assert xyreward.__all__ == PUBLIC
    assert set(PUBLIC) <= set(dir(xyreward))


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_is_an_object_of_this_package(name: str) -> None:
    assert getattr(xyreward, name).__module__.startswith("xyreward.")
    assert getattr(xyreward, name) is getattr(xyreward, name)


def test_a_star_import_brings_the_public_names() -> None:
    code = "from xyreward import *; print(sorted(n for n in dir() if n[0] != '_'))"
    assert python(code) == str(PUBLIC)


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'xyreward' has no attribute 'scores'"):
        xyreward.scores  # noqa: B018
    assert not hasattr(xyreward, "scores")


def test_what_a_user_of_pairs_calls_is_in_one_place_and_the_same_object_as_in_its_module() -> None:
    from xyreward import pairs

    assert set(pairs.__all__) == set(pairs._WHERE)
    assert set(pairs.__all__) <= set(dir(pairs))
    for name, module in pairs._WHERE.items():
        assert getattr(pairs, name) is getattr(
            importlib.import_module(f"xyreward.pairs.{module}"), name
        )
    with pytest.raises(AttributeError, match=r"xyreward\.pairs' has no attribute 'build_pair'"):
        pairs.build_pair  # noqa: B018


def test_the_version_is_that_of_the_distribution() -> None:
    from importlib.metadata import version

    assert version("xyreward") == xyreward.__version__
    assert re.fullmatch(r"\d+\.\d+\.\d+", xyreward.__version__)


# ---------------------------------------------------------------- weight


@pytest.mark.parametrize(
    "code",
    [
        "import xyreward",
        "from xyreward import Item, Judge, JudgeFailure, Reward, Score, Verdict, ascore, score",
        "from xyreward import build_pairs, load_items, load_judge; load_items('mini')",
        "from xyreward.pairs import *",
        "from xyreward import assign_splits, load_items; assign_splits(load_items('mini'))",
        "import xyreward.config, xyreward.errors, xyreward.runs, xyreward.testing",
        "import xyreward.attack, xyreward.reading, xyreward.rubric",
        "import xyreward.pairs.audit, xyreward.pairs.balance",
        "import xyreward.completions, xyreward.scorer, xyreward.training_prompts",
    ],
)
def test_what_needs_no_model_loads_no_heavy_package(code: str) -> None:
    seen = f"{code}; import json, sys; print(json.dumps([m for m in {HEAVY} if m in sys.modules]))"
    assert json.loads(python(seen)) == []


def test_importing_the_package_imports_only_what_is_in_it() -> None:
    code = "import sys; before = set(sys.modules); import xyreward; "
    code += "print(sorted(m for m in set(sys.modules) - before if m.startswith('xyreward')))"
    assert python(code) == "['xyreward']"


def test_no_module_imports_a_private_name_of_another() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {name.name} of {node.module}"
        for folder in ("xyreward", "recipes", "examples")
        for path in (ROOT / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "xyreward"
        for name in node.names
        if name.name.startswith("_") and not name.name.startswith("__")
    ]
    assert found == []


# ---------------------------------------------------------------- shipped configurations

RECIPES: dict[str, type[Recipe]] = {
    "dpo": DPORecipe,
    "evaluate": EvaluateRecipe,
    "grpo": GRPORecipe,
    "reward_model": RewardModelRecipe,
}
CONFIGS = [
    path
    for path in sorted(p.relative_to(ROOT / "configs") for p in (ROOT / "configs").rglob("*.y*ml"))
    if path.parts[0] != "accelerate"  # of another program; test_recipes.py starts recipes with it
]


def test_all_shipped_configurations_are_tested_here() -> None:
    assert [str(path) for path in CONFIGS] == [
        "dpo/on_policy_cpu.yaml",
        "dpo/quickstart.yaml",
        "dpo/qwen3.5-9b-lora.yaml",
        "dpo/xybench.yaml",
        "evaluate/answers.yaml",
        "evaluate/anthropic.yaml",
        "evaluate/quickstart.yaml",
        "evaluate/vllm.yaml",
        "evaluate/xybench.yaml",
        "grpo/quickstart.yaml",
        "grpo/qwen3.5-9b-vllm.yaml",
        "grpo/rm.yaml",
        "reward_model/quickstart.yaml",
    ]


@pytest.mark.parametrize("path", CONFIGS, ids=str)
def test_a_shipped_configuration_loads_and_its_sections_fit_trl_and_peft(path: Path) -> None:
    config = load_config(RECIPES[path.parts[0]], ROOT / "configs" / path)
    if isinstance(config, DPORecipe):
        from peft import LoraConfig
        from trl import DPOConfig

        assert config.dpo
        check_keys(path, "dpo", config.dpo, DPOConfig, SET_BY_RECIPE)
        check_keys(path, "lora", config.lora or {}, LoraConfig, {})
    if isinstance(config, GRPORecipe):
        assert config.grpo["scale_rewards"] in {"batch", "none"}  # see docs/grpo.md
        assert "mask_truncated_completions" in config.grpo
        assert wrong_training(config.model_dump(), Places(path)) == []
    if isinstance(config, RewardModelRecipe):
        assert config.reward_model["max_length"]
        assert reward_model.wrong_training(config.model_dump(), Places(path)) == []


@pytest.mark.parametrize("path", CONFIGS, ids=str)
def test_a_shipped_configuration_begins_with_its_command_and_then_says_its_hardware(
    path: Path,
) -> None:
    lines = (ROOT / "configs" / path).read_text("utf-8").splitlines()
    recipe = path.parts[0]
    command = rf"# accelerate launch recipes/{recipe}\.py(?! --config)\b"
    if path.name != "quickstart.yaml":  # that one is the recipe's default
        # A policy that is evaluated elsewhere needs no launcher.
        start = (
            "xyreward eval" if recipe == "evaluate" else rf"accelerate launch recipes/{recipe}\.py"
        )
        command = rf"# {start} --config configs/{re.escape(str(path))}"
    assert re.match(command, lines[0])
    assert (ROOT / "recipes" / f"{recipe}.py").is_file()
    header = "\n".join(lines[: next(i for i, line in enumerate(lines) if line[:1] != "#")])
    assert "Hardware: " in header


LAUNCHERS = sorted((ROOT / "configs/accelerate").glob("*.yaml"))


def test_all_launchers_are_tested_here() -> None:
    assert [path.stem for path in LAUNCHERS] == [
        "cpu_two_processes", "fsdp2", "multi_gpu", "multi_node", "one_process", "zero2", "zero3",
    ]  # fmt: skip


@pytest.mark.parametrize("path", LAUNCHERS, ids=lambda p: p.name)
def test_a_launchers_file_is_one_of_accelerates_and_says_its_hardware(path: Path) -> None:
    from accelerate.commands.config.config_args import load_config_from_file
    from accelerate.commands.launch import launch_command_parser

    loaded = load_config_from_file(
        str(path)
    )  # refuses unknown keys, but not those within a section
    known = {option.dest for option in launch_command_parser()._actions}
    assert not {*loaded.fsdp_config, *loaded.deepspeed_config} - known
    kind = str(loaded.distributed_type)
    assert ("FSDP" in kind, "DEEPSPEED" in kind) == ("fsdp" in path.stem, "zero" in path.stem)
    if "fsdp" in path.stem:
        assert loaded.fsdp_config["fsdp_version"] == 2
    first, *others = path.read_text("utf-8").splitlines()
    assert re.match(
        rf"# accelerate launch (--quiet )?--config_file configs/accelerate/{path.name} .*recipes/\w+\.py",
        first,
    )
    assert any(line.startswith("# Hardware: ") for line in others)


def test_no_two_shipped_configurations_write_into_the_same_folder() -> None:
    folders = [load_config(RECIPES[p.parts[0]], ROOT / "configs" / p).output_dir for p in CONFIGS]
    assert len(set(folders)) == len(CONFIGS)


def test_our_own_hints_catch_what_trl_would_take_without_a_word() -> None:
    from trl import DPOConfig

    from xyreward.errors import ConfigError

    with pytest.raises(ConfigError) as caught:
        check_keys("c.yaml", "dpo", {"bf16": "no", "learning_rate": "1e-4"}, DPOConfig, {})
    assert str(caught.value).splitlines() == [
        "c.yaml: dpo.bf16: is 'no', expected true or false or null",
        "c.yaml: dpo.learning_rate: is '1e-4', expected a number",
    ]


# ---------------------------------------------------------------- the wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    done = subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (file,) = folder.glob("*.whl")
    return zipfile.ZipFile(file)


def test_the_wheel_holds_the_library_and_its_data_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    found = {name for name in wheel.namelist() if ".dist-info/" not in name}
    package = ROOT / "xyreward"
    expected = {
        str(path.relative_to(ROOT))
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert found == expected
    assert {name.partition("/")[0] for name in found} == {"xyreward"}  # no recipes, tests, configs
    assert "xyreward/py.typed" in found
    assert "xyreward/data/mini/splits.json" in found
    assert sum(name.startswith("xyreward/data/mini/") for name in found) >= 14
    assert sum(name.startswith("xyreward/data/attacks/") for name in found) >= 41
    assert "xyreward/prompts/xy.md" in found
    assert "xyreward/templates/audit.html.jinja" in found
    assert "xyreward/templates/sheet.html.jinja" in found
    assert any(name.startswith("xyreward/data/calibration/local-") for name in found)
    kinds = {".py", ".typed", ".jsonl", ".json", ".md", ".txt", ".jinja", ".css", ".js"}
    assert {path.suffix for path in map(Path, found)} <= kinds


def test_the_wheel_says_what_it_needs_and_under_which_licence(wheel: zipfile.ZipFile) -> None:
    (name,) = (n for n in wheel.namelist() if n.endswith(".dist-info/METADATA"))
    metadata = wheel.read(name).decode()
    assert f"\nVersion: {xyreward.__version__}\n" in metadata
    assert "\nLicense-Expression: Apache-2.0\n" in metadata
    assert "\nRequires-Python: >=3.11\n" in metadata
    base = re.findall(r"^Requires-Dist: ([\w.-]+)[^;\n]*$", metadata, re.MULTILINE)
    assert base
    # scipy is loaded only for intervals and balance, scikit-learn (by this name no heavy one) only for
    # the audit's bag of words; anthropic, so that answers can be scored through an API.
    assert set(base) & set(HEAVY) == {"anthropic", "scipy"}
    assert any(n.endswith(".dist-info/licenses/LICENSE") for n in wheel.namelist())
