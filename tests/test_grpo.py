"""The GRPO recipe: its settings, and as a user starts it, on a tiny random policy with the real judge."""

import importlib.util
import json
import math
import re
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from test_recipes import ROOT, launch
from test_trl_rewards import logged, means
from trl import GRPOConfig

from xyreward import grpo, recipe
from xyreward.config import Arguments, GRPORecipe, Places, PromptsConfig, load_config
from xyreward.errors import ConfigError, DataError, MissingDependency
from xyreward.items import Item
from xyreward.judges.panel import model_judges
from xyreward.policy import load_policy
from xyreward.reward_audit import Look
from xyreward.sides import load_sides
from xyreward.testing import FakeAPI, Faults, make_item
from xyreward.training_prompts import choose_prompts
from xyreward.trl_rewards import NAMES, reward_function

SHOWN = re.findall(
    r"```text\n((?:== loading|Judge local).*?)```",
    (ROOT / "docs/grpo.md").read_text("utf-8"),
    re.DOTALL,
)
"""What docs/grpo.md shows of the recipe's output: of a dry run, and below the headline."""


def config(folder: Path, tiny: str, **changes: Any) -> str:
    """A configuration that runs in seconds: 4 steps of 4 completions."""
    data: dict[str, Any] = {
        "policy": {"model": tiny},
        "audit": {"every": 2, "limit": 2, "max_new_tokens": 8},
        "lora": {"r": 2, "target_modules": "all-linear"},
        "grpo": {
            "max_steps": 4,
            "per_device_train_batch_size": 4,
            "num_generations": 4,
            "max_completion_length": 8,
            "learning_rate": 1e-2,
            "logging_steps": 1,
            "save_steps": 1,
            "log_completions": True,
            "num_completions_to_print": 0,
        },
        "evaluation": {"limit": 3, "max_new_tokens": 12, "parts": ["writing"]},
        "output_dir": str(folder / "run"),
    }
    for name, value in changes.items():
        merged = isinstance(data.get(name), dict) and value is not None
        data[name] = {**data[name], **value} if merged else value
    path = folder / "config.yaml"
    path.write_text(json.dumps(data))  # JSON is YAML
    return str(path)


# ---------------------------------------------------------------- prompts


def items(hidden: int, controls: int) -> list[Item]:
    return [
        make_item(id=f"{kind} {n}", query=f"How do I do {kind} {n}?", kind=kind)
        for kind, number in (("xy", hidden), ("control", controls))
        for n in range(number)
    ]


@pytest.mark.parametrize(
    ("hidden", "controls", "settings", "kept"),
    [
        (30, 20, PromptsConfig(), (30, 10)),
        (30, 4, PromptsConfig(), (30, 4)),  # no more are there
        (30, 20, PromptsConfig(control_share=0), (30, 0)),
        (30, 20, PromptsConfig(max_prompts=20), (15, 5)),
        (0, 20, PromptsConfig(), (0, 20)),
    ],
)
def test_controls_are_part_of_the_prompts_up_to_their_share(
    hidden: int, controls: int, settings: PromptsConfig, kept: tuple[int, int]
) -> None:
    chosen = choose_prompts(settings, items(hidden, controls), "local")
    found = [item.kind for item in chosen.items]
    assert (found.count("xy"), found.count("control")) == kept
    assert sum(chosen.dropped.values()) == hidden + controls - sum(kept)
    again = choose_prompts(settings, items(hidden, controls)[::-1], "local")
    assert again == chosen


def test_no_prompt_is_an_error() -> None:
    with pytest.raises(DataError, match="no item is on the train side"):
        choose_prompts(PromptsConfig(), [], "local")


# ---------------------------------------------------------------- settings


def settings(**grpo_keys: Any) -> GRPORecipe:
    return GRPORecipe.model_validate(
        {
            "output_dir": "runs/x",
            "grpo": {"per_device_train_batch_size": 4, "num_generations": 4, **grpo_keys},
        }
    )


def test_a_key_that_fails_in_the_first_step_is_named_before_a_model_is_loaded() -> None:
    with pytest.raises(ConfigError, match=r"c.yaml: grpo.loss_type: .*dappo"):
        grpo.grpo_settings(settings(loss_type="dappo"), Places("c.yaml"))
    with pytest.raises(ConfigError, match=r"c.yaml: grpo: .*divisible by num_generations"):
        grpo.grpo_settings(settings(num_generations=3), Places("c.yaml"))


def test_keys_that_the_recipe_sets_and_impossible_numbers_are_all_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        grpo.grpo_settings(
            settings(temperature=0.0, reward_weights=[1.0], num_generation=4), Places("c.yaml")
        )
    assert str(caught.value).splitlines() == [
        "c.yaml: grpo.reward_weights: is set by the recipe; use the weights of the section reward",
        "c.yaml: grpo.num_generation: GRPOConfig has no such field; did you mean 'num_generations'?",
        "c.yaml: grpo.temperature: is 0.0, expected in (0, inf)",
    ]


def test_weights_of_components_are_the_trainers() -> None:
    config = settings().model_copy(
        update={"reward": settings().reward.model_copy(update={"components": True, "focus": 2.0})}
    )
    made, _ = grpo.grpo_settings(config, Places("c.yaml"))
    assert made.reward_weights == [1.0, 2.0, 1.0]
    plain, _ = grpo.grpo_settings(settings(), Places("c.yaml"))
    assert plain.reward_weights is None


def test_steps_and_sampled_completions_are_those_that_trl_counts(tiny: str, tmp_path: Path) -> None:
    from test_trl_rewards import settings as trls
    from test_trl_rewards import trained

    given = {
        "per_device_train_batch_size": 4, "gradient_accumulation_steps": 3, "steps_per_generation": 2,
        "num_iterations": 2, "max_steps": -1, "num_train_epochs": 2, "max_completion_length": 2,
    }  # fmt: skip
    made = trls("GRPO", tmp_path, **given)
    trainer, batches = trained(
        "GRPO", tiny, made, lambda completions, **_: [0.0] * len(completions)
    )
    sampled = sum(len(batch["rewards"]) for batch in batches)
    # 2 prompts at a time, of 4: two lots an epoch, each of 2 batches that are trained on twice.
    assert grpo._steps(made, 4) == (trainer.state.global_step, 12, sampled) == (6, 12, 32)
    assert grpo._steps(made, 5) == grpo._steps(made, 4)  # the fifth fills no lot
    prompts = choose_prompts(PromptsConfig(), items(1, 0), "local")
    with pytest.raises(ConfigError, match="1 prompts are there, and 2 are answered at a time"):
        grpo.plan(made, prompts)


def test_a_template_that_opens_thinking_in_the_prompt_is_seen(tiny: str) -> None:
    policy = load_policy(tiny)
    prompts = choose_prompts(PromptsConfig(), items(1, 0), "local")

    def begun() -> bool:
        (function,) = grpo.reward_functions(settings(), policy, prompts)
        return function.scorer.scoring.visible.begun

    assert not begun()
    policy.tokenizer.chat_template += "{% if add_generation_prompt %}<think>\n{% endif %}"
    assert begun()


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ("reward: {solution: 0, focus: 0.0, misconception: 0}", "all weights are 0"),
        ("reward: {components: true, length_limit: 900}", "belong to the composite reward"),
        ("reward: {judge_options: {api_key: x}}", "would be written into the run folder"),
        ("reward: {max_outage_s: -1}", "reward.max_outage_s"),
        ("audit: {then: explode}", "audit.then"),
        ("audit: {judge_options: {budget_usd: 5}}", "audit: judge_options are of no judge"),
        (
            "audit: {judge: anthropic, judge_options: {api_key: x}}",
            r"audit: judge_options\.api_key would be written into the run folder",
        ),
        (
            "evaluation: {parts: [preference], judge_options: {api_key: x}}",
            r"evaluation: judge_options\.api_key would be written into the run folder",
        ),
    ],
)
def test_impossible_sections_are_refused(tmp_path: Path, section: str, said: str) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(f"output_dir: runs/x\n{section}\n")
    with pytest.raises(ConfigError, match=said):
        load_config(GRPORecipe, file)


def test_the_curve_of_the_reward_compares_the_first_third_with_the_last_by_prompt(
    tmp_path: Path,
) -> None:
    from pyarrow import Table, parquet

    log: list[dict[str, Any]] = [{"step": n, "reward": n / 10} for n in range(1, 10)]
    for n in range(
        1, 10
    ):  # prompts a, b, c in turn; b and c gain 0.6, a 0.3; a failure is no reward
        prompt = "abc"[n % 3]
        gain = (0.05 if prompt == "a" else 0.1) * n
        rows = [(n, prompt, gain), (n, prompt, math.nan)]
        table = {
            "step": [r[0] for r in rows],
            "prompt": [r[1] for r in rows],
            "xy": [r[2] for r in rows],
        }
        parquet.write_table(Table.from_pydict(table), tmp_path / f"completions_{n:05d}.parquet")
    given = [{"train_runtime": 1}, *log, {"reward": None}]
    first, last, change = grpo.reward_curve(given, tmp_path, ["xy"]).values()
    assert first.startswith("0.150 [")
    assert last.startswith("0.650 [")
    assert change.startswith("+0.500 [+0.")
    assert change.endswith("over 3 prompts that both have")
    doubled = list(grpo.reward_curve(given, tmp_path, ["xy"], [2.0]).values())
    assert doubled[0].startswith("0.300 [")
    # Without tables: values of the log, and no interval that nobody can know.
    first, last = grpo.reward_curve(given, tmp_path / "none", ["xy"]).values()
    assert first == "0.200 (no interval without grpo.log_completions)"
    assert last.startswith("0.800 (no interval")
    assert grpo.reward_curve([{"reward": 1.0}], tmp_path, ["xy"]) == {}


# ---------------------------------------------------------------- as a user starts it


@pytest.fixture(scope="module")
def finished(tiny: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    folder = tmp_path_factory.mktemp("grpo")
    path = config(folder, tiny)
    done = launch("grpo", "--config", path)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder / "run", path, done.stdout


def test_the_dry_run_of_the_quickstart_prints_what_the_documentation_shows(tmp_path: Path) -> None:
    done = launch("grpo", "--dry-run", "--output-dir", str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr[-3000:]
    shown, _ = SHOWN
    assert done.stdout == shown.replace("runs/grpo-quickstart", str(tmp_path / "run"))


def test_the_run_folder_explains_itself(finished: tuple[Path, str, str]) -> None:
    run, _, printed = finished
    names = {p.name for p in run.iterdir()}
    assert names >= {
        "config.yaml", "environment.json", "data.json", "splits.json", "prompts.jsonl", "adapter",
        "before.jsonl", "after.jsonl", "log.jsonl", "report.json", "report.md", "reward_audit.jsonl",
    }  # fmt: skip
    prompts = [json.loads(line) for line in (run / "prompts.jsonl").read_text().splitlines()]
    train = {item.id for item in load_sides(GRPORecipe(output_dir="x").items, None).select("train")}
    assert {row["item_id"] for row in prompts} <= train
    assert "4 steps of 4 completions: 4 each to 1 prompts" in printed
    _, note = SHOWN
    assert f"\n{note}" in printed  # as the documentation shows it
    for stage in ("== evaluation before\n", "== training\n", "== evaluation after\n"):
        assert stage in printed
    facts = json.loads((run / "report.json").read_text())["facts"]
    assert facts["steps"] == 4
    assert facts["prompts from controls"] == "25%"
    assert "training reward, last third of the steps" in facts
    card = (run / "adapter/README.md").read_text()
    assert "GRPO" in card
    assert "129 prompts, 25% of them controls" in card
    assert str(run.parent) not in card


def test_what_is_logged_has_the_same_names_in_every_step(finished: tuple[Path, str, str]) -> None:
    run, _, _ = finished
    log = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    steps = [entry for entry in log if "reward" in entry]
    assert len(steps) == 4
    assert len({tuple(sorted(entry)) for entry in steps}) == 1
    assert {"judge/failure_rate", "audit/neutral_loss", "groups/equal_rewards"} <= set(steps[0])
    assert len(list((run / "checkpoints/completions").glob("*.parquet"))) == 4


def test_a_resumed_run_goes_on_from_its_checkpoint_and_its_first_look(
    finished: tuple[Path, str, str], tmp_path: Path
) -> None:
    run, path, _ = finished
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    for name in ("training.json", "after.jsonl", "report.json", "report.md", "log.jsonl"):
        (copy / name).unlink()
    shutil.rmtree(copy / "adapter")
    shutil.rmtree(copy / "checkpoints/checkpoint-4")
    done = launch("grpo", "--config", path, "--output-dir", str(copy), "--resume")
    assert done.returncode == 0, done.stderr[-3000:]
    assert "evaluation before: kept from before" in done.stdout
    assert "going on from" in done.stdout
    looks = [json.loads(x)["step"] for x in (copy / "reward_audit.jsonl").read_text().splitlines()]
    assert looks == [0, 2, 3, 4]
    facts = [json.loads((one / "report.json").read_text())["facts"] for one in (run, copy)]
    assert facts[1]["steps"] == 4
    assert facts[1]["mean training loss"] == pytest.approx(facts[0]["mean training loss"], abs=1e-6)


def test_looks_of_a_training_that_left_no_checkpoint_are_not_gone_on_with(
    tmp_path: Path, tiny: str
) -> None:
    wanted = GRPORecipe.model_validate(
        {"policy": {"model": tiny}, "output_dir": str(tmp_path / "run")}
    )
    run, data = recipe.Run(wanted, Arguments(tmp_path, resume=False)), recipe.load_data(wanted)
    look = Look(0, 0.5, None, None, 0.0, 10.0, 0.0, 1.0, 0.0, 3.0)
    run.folder.write(grpo.LOOKS, json.dumps(asdict(look)) + "\n")

    def looks() -> list[Look]:
        (audit,) = grpo.audit_of(run, wanted, load_policy(tiny), [reward_function("local")], data)
        return list(audit.looks)

    assert looks() == []
    checkpoint = tmp_path / "run/checkpoints/checkpoint-1"
    checkpoint.mkdir(parents=True)
    (checkpoint / "trainer_state.json").write_text("{}")
    assert looks() == [look]


CLAUDE = "anthropic:claude-sonnet-5-5"


@pytest.fixture
def paid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key, and a store of the test's own."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", "any")
    monkeypatch.setenv("XYREWARD_STORE", str(tmp_path / "store.sqlite"))


def test_without_vllm_a_run_that_wants_it_ends_before_its_policy_is_loaded() -> None:
    if importlib.util.find_spec("vllm") is not None:
        pytest.skip("vLLM is installed")
    for mode in ("colocate", "server"):
        config = settings(use_vllm=True, vllm_mode=mode)
        with pytest.raises(MissingDependency, match=r"^c.yaml: grpo.use_vllm: .*trl\[vllm\]"):
            grpo.check_vllm(config, Places("c.yaml"))
    grpo.check_vllm(settings(), Places("c.yaml"))


def test_no_look_of_the_audit_waits_for_a_message_batch(paid: None) -> None:
    options = {"batches": True, "max_wait_h": 2, "votes": 3}
    wanted: dict[str, Any] = {"output_dir": "run"}
    evaluation = {"judge": CLAUDE, "judge_options": options}
    made = GRPORecipe.model_validate({**wanted, "evaluation": evaluation})
    (second,) = model_judges(grpo.judges_of_training(made)["judge of the audit"])
    assert (second.in_batches, second.votes) == (False, 3)
    own = {"judge": CLAUDE, "judge_options": options}
    with pytest.raises(ValueError, match="every look of the audit would"):
        GRPORecipe.model_validate({**wanted, "audit": own})


def test_a_dry_run_tells_prompts_steps_and_the_judges_price(
    tiny: str, tmp_path: Path, paid: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY")  # nothing is sent, so no key is wanted
    path = config(tmp_path, tiny, reward={"judge": CLAUDE})
    done = launch("grpo", "--config", path, "--dry-run")
    assert done.returncode == 0, done.stderr[-3000:]
    assert "129 prompts, 25% of them controls" in done.stdout
    assert "4 steps of 4 completions" in done.stdout
    assert f"rewards of 16 completions, judged by {CLAUDE}: 16 calls" in done.stdout
    # The audit asks that judge, too: before, after two steps, and after the last.
    assert f"3 looks of the audit, 12 answers, judged by {CLAUDE}: 12 calls" in done.stdout
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("changes", "count"),
    [
        ({}, 10 * 8),
        ({"num_iterations": 3}, 4 * 8),  # four lots, each of which serves three steps
        ({"steps_per_generation": 8}, 5 * 16),  # of two steps each
        ({"steps_per_generation": 64}, 128),  # one lot, of which the end is never trained on
    ],
)
def test_an_estimate_counts_completions_as_the_trainer_samples_them(
    changes: dict[str, int], count: int
) -> None:
    config = settings()
    trainer = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4, "max_steps": 10}
    made = GRPOConfig(
        "unused",
        num_generations=2,
        use_cpu=True,
        bf16=False,
        activation_checkpointing=False,
        **trainer,
        **changes,
    )
    prompts = choose_prompts(config.prompts, items(60, 20), "local")
    assert grpo.estimate(config, prompts, made).startswith(f"rewards of {count} completions")


OF_EACH_PROCESS = {
    "judge/latency_p50_s", "judge/latency_p95_s", "judge/waited_s", "answers/distinct",
    "groups/equal_rewards",  # of one prompt, whose completions are shared
}  # fmt: skip


def completions_of(run: Path) -> dict[int, list[tuple[Item, str]]]:
    """Step -> its completions in all processes, with their items, of TRL's tables."""
    from pyarrow import parquet

    items = load_sides(GRPORecipe(output_dir="x").items, None).select("train")
    found: dict[int, list[tuple[Item, str]]] = {}
    for file in sorted((run / "checkpoints/completions").glob("*.parquet")):
        for row in parquet.read_table(file).to_pylist():
            (prompt,), (completion,) = row["prompt"], row["completion"]
            (item,) = [i for i in items if i.messages[-1]["content"] == prompt["content"]]
            found.setdefault(row["step"], []).append((item, completion["content"]))
    return found


def test_a_judge_that_is_gone_ends_all_processes_with_a_checkpoint_and_resuming_goes_on(
    tiny: str, tmp_path: Path, paid: None
) -> None:
    with FakeAPI(faults=Faults({"500": 1.0})) as api:
        judge = {"base_url": api.base_url, "max_attempts": 1, "max_concurrency": 4}
        path = config(
            tmp_path,
            tiny,
            audit=None,
            reward={"judge": CLAUDE, "judge_options": judge, "max_outage_s": 2.0},
            grpo={"per_device_train_batch_size": 2},
        )
        done = launch("grpo", "--config", path, processes=2)
        assert done.returncode != 0
        assert "JudgeUnreliable: anthropic:claude-sonnet-5-5: no verdict for 2 s" in done.stderr
        assert done.stderr.count("JudgeUnreliable: ") == 2  # both, in the same step
        assert re.search(r"exitcode\s*: 75", done.stderr)
        assert (tmp_path / "run/checkpoints/checkpoint-1/trainer_state.json").is_file()
        assert not (tmp_path / "run/training.json").exists()

        api.change(faults=Faults())
        done = launch("grpo", "--config", path, "--resume", processes=2)
        assert done.returncode == 0, done.stderr[-3000:]
    facts = json.loads((tmp_path / "run/report.json").read_text())["facts"]
    assert facts["steps"] == 4
    # One process judges the same completions in as many calls, and logs the same of them.
    with FakeAPI() as api:
        wanted: Any = {"base_url": api.base_url, "store": str(tmp_path / "alone.sqlite")}
        alone = reward_function(CLAUDE, max_outage_s=0, **wanted)
        steps = completions_of(tmp_path / "run")
        log = [json.loads(line) for line in (tmp_path / "run/log.jsonl").read_text().splitlines()]
        log = [entry for entry in log if "reward" in entry]
        assert [entry["step"] for entry in log] == [1, 2, 3, 4]
        for entry in log[1:]:
            items, answers = zip(*steps[entry["step"]], strict=True)
            assert len(answers) == 4
            found = means(logged(list(answers), list(items), alone))
            for name in set(NAMES) - OF_EACH_PROCESS:
                assert entry[name] == pytest.approx(found[name], rel=1e-5, nan_ok=True), name
        assert api.stats.calls == facts["judge of rewards calls"] > 0


def test_an_adapter_is_trained_on_and_its_mark_remembers_the_base(
    finished: tuple[Path, str, str], tmp_path: Path
) -> None:
    run, _, _ = finished
    changes: dict[str, Any] = {"lora": None, "audit": None, "grpo": {"max_steps": 1}}
    path = config(tmp_path, str(run / "adapter"), evaluation={"parts": []}, **changes)
    done = launch("grpo", "--config", path)
    assert done.returncode == 0, done.stderr[-3000:]
    marks = [
        json.loads((one / "adapter/xyreward.json").read_text()) for one in (run, tmp_path / "run")
    ]
    assert marks[0]["name"] == marks[1]["name"]
    assert (tmp_path / "run/adapter/adapter_model.safetensors").is_file()


def test_two_processes_log_the_same_names_and_share_the_audits_sample(
    finished: tuple[Path, str, str], tiny: str, tmp_path: Path
) -> None:
    accelerated = ["--config_file", "configs/accelerate/cpu_two_processes.yaml"]
    path = config(tmp_path, tiny, grpo={"per_device_train_batch_size": 2})
    done = launch("grpo", "--config", path, launcher=accelerated)
    assert done.returncode == 0, done.stderr[-3000:]
    run, _, _ = finished
    here, there = (
        [json.loads(x) for x in (one / "log.jsonl").read_text().splitlines()]
        for one in (run, tmp_path / "run")
    )
    assert "4 steps of 4 completions" in done.stdout
    assert json.loads((tmp_path / "run/environment.json").read_text())["world_size"] == 2
    assert [set(a) for a in here] == [set(b) for b in there]
    for name in ("audit/characters", "audit/reward", "audit/neutral_loss"):
        # The first look is of the untrained policy, whichever way the sample is shared.
        assert there[0][name] == pytest.approx(here[0][name], rel=1e-3)
    assert not math.isnan(there[0]["audit/neutral_loss"])
    assert (ROOT / "configs/accelerate/cpu_two_processes.yaml").is_file()
