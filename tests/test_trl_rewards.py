"""Reward functions: called as TRL calls them, and inside TRL's own trainers on a tiny random policy."""

import asyncio
import json
import math
import multiprocessing
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from label_judge import LabelJudge

from xyreward import trl_rewards
from xyreward.errors import ConfigError, DataError, JudgeError
from xyreward.items import Item
from xyreward.reward import Reward
from xyreward.testing import FakeAPI, ScriptedJudge, make_item
from xyreward.trl_rewards import (
    NAMES,
    RewardFunction,
    blocking,
    component_functions,
    only_if_judged,
    prompt_rows,
    reward_function,
    xy,
)
from xyreward.verdict import JudgeFailure, LabelProbabilities, Labels, Verdict

GOOD = Labels(
    has_stated_solution=False,
    has_intended_solution=True,
    focus="intended",
    identifies_misconception=True,
)
HALF = Labels(
    has_stated_solution=True,
    has_intended_solution=True,
    focus="balanced",
    identifies_misconception=False,
)
JUDGE = ScriptedJudge(
    {
        (None, "good"): GOOD,
        (None, "half"): HALF,
        (None, "lost"): JudgeFailure("timeout", "no reply in 300 s"),
    }
)


def columns(items: Sequence[Item]) -> dict[str, Any]:
    rows = prompt_rows(items)
    return {name: [row[name] for row in rows] for name in rows[0] if name != "prompt"}


def call(function: Any, answers: Sequence[Any], item: Item | None = None, **more: Any) -> Any:
    """As TRL calls it: everything by keyword, completions as messages."""
    items = [item or make_item()] * len(answers)
    return asyncio.run(
        function(
            prompts=[i.messages for i in items],
            completions=[
                [{"role": "assistant", "content": a}] if isinstance(a, str) else a for a in answers
            ],
            completion_ids=[[1]] * len(answers),
            trainer_state=None,
            **{**columns(items), **more},
        )
    )


# ---------------------------------------------------------------- one function


def test_a_failed_judgement_is_none_and_an_empty_answer_zero() -> None:
    function = reward_function(JUDGE, reward=Reward())
    # The half-good one: solution 1, focus 0.5, misconception 0, and the mean of these.
    assert call(function, ["good", "half", "lost", ""]) == [1.0, 0.5, None, 0.0]


def test_texts_are_completions_too_and_thinking_is_not_judged() -> None:
    item = make_item()
    rewards = asyncio.run(
        reward_function(JUDGE)(
            [item.query] * 2, ["<think>half</think>good", "good"], **columns([item, item])
        )
    )
    assert rewards == [1.0, 1.0]


def test_a_control_is_rewarded_by_its_own_table() -> None:
    direct = Labels(
        has_stated_solution=True,
        has_intended_solution=True,
        focus="stated",
        identifies_misconception=False,
    )
    judge = ScriptedJudge({(None, "direct"): direct, (None, "good"): GOOD})
    assert call(reward_function(judge), ["direct", "good"], make_item(kind="control")) == [1.0, 0.0]


def test_trl_knows_its_name_and_that_it_must_be_awaited() -> None:
    from trl.trainer.utils import get_callable_name, is_async_callable

    functions = [reward_function(JUDGE), *component_functions(JUDGE), xy]
    functions.append(only_if_judged(call, functions[0]))  # type: ignore[arg-type]
    assert all(map(is_async_callable, functions))
    assert list(map(get_callable_name, functions)) == [
        "xyreward", "pragmatic_solution", "pragmatic_focus", "misconception_identification", "xyreward",
        "call",
    ]  # fmt: skip


def test_it_goes_to_another_process_with_its_settings_alone() -> None:
    function = reward_function("scripted:nowhere.jsonl", max_outage_s=5)
    with pytest.raises(JudgeError, match="no file"):  # opened at the first batch, here and there
        call(function, ["good"])
    there = pickle.loads(pickle.dumps(function))
    assert there.__name__ == "xyreward"
    assert there.scorer.scoring == function.scorer.scoring
    assert pickle.loads(pickle.dumps(xy)).scorer is xy.scorer


def test_rows_that_are_no_items_are_named() -> None:
    function = reward_function(JUDGE)
    with pytest.raises(DataError) as caught:
        call(function, ["good"], intended_request=[" "])
    assert "row 0" in str(caught.value)
    assert "intended_request" in str(caught.value)
    item = make_item()
    with pytest.raises(DataError, match="and no 'intended_request'; name its column in `columns`"):
        asyncio.run(function([item.messages], ["good"], stated_request=["Make it louder."]))
    with pytest.raises(DataError, match="has no column 'goal', which `columns` names"):
        call(reward_function(JUDGE, columns={"intended_request": "goal"}), ["good"])


def test_columns_with_other_names_are_mapped_and_requests_that_are_equal_are_a_controls() -> None:
    direct = Labels(
        has_stated_solution=True,
        has_intended_solution=True,
        focus="stated",
        identifies_misconception=False,
    )
    function = reward_function(
        ScriptedJudge({(None, "direct"): direct}), columns={"intended_request": "goal"}
    )
    rewards = asyncio.run(
        function(["How?"] * 2, ["direct"] * 2, stated_request=["a", "a"], goal=["a", "b"])
    )
    assert rewards == [1.0, 1 / 3]  # the second is an item with a hidden goal, and only solved


def test_prompts_without_columns_need_a_judge_that_can_infer_their_goal() -> None:
    with pytest.raises(JudgeError, match="cannot infer what a bare query is after"):
        asyncio.run(reward_function(JUDGE)(["How?"], ["good"]))
    with pytest.raises(JudgeError, match="cannot infer what a bare query is after"):
        reward_function(JUDGE).check([{"prompt": "How?", "source": "a forum"}])


def test_check_finds_before_training_what_the_first_batch_would(tmp_path: Path) -> None:
    rows = prompt_rows([make_item()])
    reward_function(JUDGE).check(rows)
    with pytest.raises(DataError, match="row 0"):
        reward_function(JUDGE).check([{**rows[0], "stated_request": ""}])
    with pytest.raises(DataError, match=r"no column 'prompt'.* it has source, stated_request"):
        reward_function(JUDGE).check([{"source": "a forum", "stated_request": "How?"}])
    with pytest.raises(JudgeError, match="no file"):
        reward_function(f"scripted:{tmp_path}/x").check(rows)


def test_an_impossible_setting_is_refused_when_the_function_is_made() -> None:
    with pytest.raises(ConfigError, match="on_failure is 'zero', expected one of none, raise"):
        reward_function(JUDGE, on_failure="zero")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="columns: goal are no fields of an item"):
        reward_function(JUDGE, columns={"goal": "x"})
    with pytest.raises(ConfigError, match="max_outage_s is nan"):
        reward_function(JUDGE, max_outage_s=math.nan)
    with pytest.raises(ConfigError, match="a message batch takes up to a day"):
        reward_function("anthropic", batches=True)


# ---------------------------------------------------------------- several functions, one judge


def together(functions: Sequence[Any], answers: Sequence[str], **more: Any) -> list[list[Any]]:
    """As TRL does: all of them at once, with the same lists."""
    item = make_item()
    prompts = [item.messages] * len(answers)
    completions = [[{"role": "assistant", "content": a}] for a in answers]

    async def run() -> list[Any]:
        return list(
            await asyncio.gather(
                *(
                    f(
                        prompts=prompts,
                        completions=completions,
                        **columns([item] * len(answers)),
                        **more,
                    )
                    for f in functions
                )
            )
        )

    return asyncio.run(run())


def test_each_metric_is_a_function_and_all_three_ask_once_per_distinct_completion() -> None:
    judge = LabelJudge()
    functions = component_functions(judge, soft=False)
    answers = ["a", "b", "a", "c", ""]
    found = together(functions, answers)
    assert sorted(answer for _, answer in judge.asked) == ["a", "b", "c"]
    composite = together([reward_function(LabelJudge(), reward=Reward())], answers)[0]
    for of_row, whole in zip(zip(*found, strict=True), composite, strict=True):
        assert sum(of_row) / 3 == pytest.approx(whole)


def test_functions_that_share_a_judge_have_none_for_the_same_completions() -> None:
    class Moody(LabelJudge):
        """Fails at the first time, and never again."""

        def outcome(self, item: Item, answer: str) -> Any:
            return (
                JudgeFailure("refused", "no") if self.calls == 1 else super().outcome(item, answer)
            )

    judge = Moody()
    assert together(component_functions(judge), ["a", "b"]) == [[None, None]] * 3
    assert judge.calls == 1
    assert None not in together(component_functions(judge), ["a", "b"])[0]


def test_a_list_that_a_loop_fills_anew_is_judged_anew() -> None:
    judge = LabelJudge()
    function = reward_function(judge)
    item = make_item()
    buffer = ["a", "b"]

    async def step(*answers: str) -> Any:
        buffer[:] = answers
        return await function([item.messages] * 2, buffer, **columns([item] * 2))

    asyncio.run(step("a", "b"))
    asyncio.run(step("c", "b"))
    assert [answer for _, answer in judge.asked] == ["a", "b", "c", "b"]


def test_functions_that_shared_a_judge_share_it_in_another_process_too() -> None:
    one, two, _ = (pickle.loads(pickle.dumps(f)) for f in component_functions(LabelJudge()))
    assert one.scorer is two.scorer


def plain(completions: Sequence[Any], **_: Any) -> list[float]:
    return [float(len(c[0]["content"])) for c in completions]


async def awaited(completions: Sequence[Any], **_: Any) -> list[float]:
    return plain(completions)


@pytest.mark.parametrize("other", [plain, awaited])
def test_another_reward_has_none_where_the_judge_failed(other: Callable[..., Any]) -> None:
    judged = reward_function(JUDGE)
    found = together([judged, only_if_judged(other, judged)], ["good", "lost", "half"])
    assert found[0][1] is None
    assert found[1] == [4.0, None, 4.0]


def test_another_reward_of_the_wrong_length_is_named() -> None:
    judged = reward_function(JUDGE)
    with pytest.raises(ValueError, match="<lambda> returned 0 rewards for 1 completions"):
        together([only_if_judged(lambda **_: [], judged)], ["good"])


# ---------------------------------------------------------------- trainers that take no None


def test_where_a_trainer_takes_no_none_a_failure_raises_or_drops_its_group() -> None:
    with pytest.raises(JudgeError, match=r"1 of 2 completions could not be judged \(timeout 1\)"):
        call(reward_function(JUDGE, on_failure="raise"), ["good", "lost"])
    items = [make_item()] * 3 + [make_item(id="other", query="How do I sleep?")] * 2
    items.append(make_item(id="third", query="How do I wake up?"))
    answers = ["good", "half", "lost", "good", "good", "lost"]
    function = reward_function(JUDGE, reward=Reward(), on_failure="drop_group")
    rewards = asyncio.run(function([i.messages for i in items], answers, **columns(items)))
    # The first group has no advantage: every reward is its mean. The second is as it was.
    # Of the third nothing is known: it has the mean of all that were scored.
    assert rewards == [0.75, 0.75, 0.75, 1.0, 1.0, 0.875]
    with pytest.raises(JudgeError, match=r"2 of 2 completions could not be judged \(off_menu 2\)"):
        call(function, ["unknown", "unknown"])


def test_a_trainer_that_cannot_await_gets_a_plain_function_that_never_gives_none() -> None:
    with pytest.raises(ConfigError, match="takes None for 0"):
        blocking(reward_function(JUDGE))
    function = blocking(reward_function(JUDGE, on_failure="raise"))
    item = make_item()
    given: dict[str, Any] = {"prompts": [item.messages], "completions": ["good"]} | columns([item])
    assert function(**given) == [1.0]
    with pytest.raises(JudgeError):
        function(**{**given, "completions": ["unknown"]})


# ---------------------------------------------------------------- an outage


@pytest.fixture
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xyreward.scorer.FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr("xyreward.scorer.LONGEST_PAUSE_S", 0.02)


@pytest.mark.usefixtures("short_pauses")
def test_an_outage_is_waited_out_with_one_question_at_a_time() -> None:
    judge = LabelJudge(out_for=3)
    answers = ["a", "b", "c", ""]
    rewards = call(reward_function(judge, max_outage_s=60), answers)
    assert rewards == call(reward_function(LabelJudge()), answers)
    # All three, then the first alone until it is answered, then the others.
    assert [answer for _, answer in judge.asked] == ["a", "b", "c", "a", "a", "a", "b", "c"]


@pytest.mark.usefixtures("short_pauses")
def test_what_the_store_has_and_empty_answers_are_no_sign_that_the_judge_is_there() -> None:
    class Stored(LabelJudge):
        async def judge(self, items: Any, answers: Any) -> Any:
            found = await super().judge(items, answers)
            sure = LabelProbabilities.certain(GOOD)
            stored = Verdict(GOOD, sure, self.name, self.rubric_version, cached=True)
            return [stored if a == "stored" else v for a, v in zip(answers, found, strict=True)]

    judge = Stored(out_for=2)
    assert None not in call(reward_function(judge, max_outage_s=60), ["stored", "new", ""])
    assert [answer for _, answer in judge.asked] == ["stored", "new", "new", "new"]


@pytest.mark.usefixtures("short_pauses")
def test_a_longer_outage_is_an_exception_unless_a_guard_is_there_to_end_the_run() -> None:
    function = reward_function(LabelJudge(out_for=10**6), max_outage_s=0.1)
    with pytest.raises(
        JudgeError, match=r"no verdict for 0.1 s \(max_outage_s\).*no route to host"
    ):
        call(function, ["a", "b"])
    function.scorer.guarded = True
    assert call(function, ["a", "b", ""]) == [None, None, 0.0]
    counts = function.scorer.take_counts()
    assert (counts.judged, counts.failed) == (2, 2)  # nobody is asked about an empty one
    assert counts.stopped is not None
    assert function.scorer.take_counts().judged == 0


def test_single_failures_are_no_outage() -> None:
    judge = LabelJudge(failing=0.5, kind="timeout")
    rewards = call(reward_function(judge, max_outage_s=0), [str(n) for n in range(40)])
    assert 5 < rewards.count(None) < 35
    assert judge.calls == 1


@pytest.mark.usefixtures("short_pauses")
def test_a_judge_that_cannot_go_on_raises_or_is_counted() -> None:
    class Stopped(LabelJudge):
        async def judge(self, items: Any, answers: Any) -> Any:
            raise JudgeError("the key is wrong")

    function = reward_function(Stopped())
    with pytest.raises(JudgeError, match="the key is wrong"):
        call(function, ["a"])
    function.scorer.guarded = True
    assert call(function, ["a"]) == [None]
    assert function.scorer.take_counts().stopped == "JudgeError: the key is wrong"


def test_a_spent_budget_ends_the_run_and_is_no_string_of_failures() -> None:
    spent = JudgeFailure("over_budget", "run 'r' has spent 20 of 20 US dollars; raise budget_usd")
    function = reward_function(ScriptedJudge({(None, "good"): GOOD, (None, "late"): spent}))
    with pytest.raises(JudgeError, match="has spent 20 of 20 US dollars; raise budget_usd"):
        call(function, ["good", "late"])
    function.scorer.guarded = True
    assert call(function, ["late"]) == [None]
    assert "raise budget_usd" in str(function.scorer.take_counts().stopped)


# ---------------------------------------------------------------- what is logged


def test_metrics_and_columns_are_logged_once_whatever_number_of_functions() -> None:
    metrics: dict[str, list[float]] = {}
    table: dict[str, list[Any]] = {}

    def log_metric(name: str, value: float) -> None:
        metrics.setdefault(name, []).append(value)

    def log_extra(name: str, values: list[Any]) -> None:
        table.setdefault(name, []).extend(values)

    functions = component_functions(JUDGE)
    together(
        functions, ["good", "good", "lost", "\u200b"], log_metric=log_metric, log_extra=log_extra
    )
    assert len(metrics["judge/waited_s"]) == 1
    assert len(metrics["judge/failure_rate"]) == 4
    found = means(metrics)
    assert found["judge/failure_rate"] == found["judge/failed/timeout"] == 0.25
    assert found["answers/empty"] == 0.25
    assert found["answers/distinct"] == 0.75
    assert found["answers/characters"] == (4 + 4 + 4 + 1) / 4
    assert found["labels/focus_intended"] == pytest.approx(2 / 3)
    assert found["groups/equal_rewards"] == 0
    assert table["judge_failure"] == [None, None, "timeout", None]
    assert table["focus"] == ["intended", "intended", None, "neither"]


def means(*shares: dict[str, list[float]]) -> dict[str, float]:
    """What TRL makes of the values of processes: sums and counts of all, and no name without any."""
    names = sorted({name for share in shares for name in share})
    values = {name: [x for share in shares for x in share.get(name, ())] for name in names}
    return {name: math.fsum(of) / len(of) for name, of in values.items()}


def logged(
    answers: list[str], items: list[Item] | None = None, judge: Any = JUDGE
) -> dict[str, list[float]]:
    """All values that are logged of a batch, one step of a guarded run."""
    found: dict[str, list[float]] = {}
    function = (
        judge if isinstance(judge, RewardFunction) else reward_function(judge, max_outage_s=0)
    )
    function.scorer.guarded = True
    given = items or [make_item()] * len(answers)
    prompts = [item.messages for item in given]
    asyncio.run(
        function(
            prompts,
            answers,
            log_metric=lambda name, value: found.setdefault(name, []).append(value),
            **columns(given),
        )
    )
    return found


def test_the_same_metrics_are_logged_where_nothing_was_judged() -> None:
    judged, failed, silent = map(means, map(logged, (["good", "half"], ["lost", "lost"], ["", ""])))
    assert list(judged) == list(failed) == list(silent) == sorted(NAMES)
    assert math.isnan(failed["labels/focus_intended"])
    assert math.isnan(silent["judge/from_store"])  # none was needed
    assert silent["labels/focus_neither"] == 1
    assert failed["groups/equal_rewards"] == 1
    assert judged["groups/equal_rewards"] == 0


def test_processes_log_together_what_one_would(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each value counts once, wherever it is: not each process once, whatever it has."""
    items = [make_item(id=f"item {n}", query=f"How do I do {n}?") for n in range(2)]
    lost = JudgeFailure("timeout", "no reply in 300 s", cost_usd=0.25)
    judge = ScriptedJudge({(None, "good"): GOOD, (None, "half"): HALF, (None, "lost"): lost})
    answers = ["good", "lost", "lost", "", "good", "half", "half", "half"]
    alone = means(logged(answers, [items[0]] * 4 + [items[1]] * 4, judge))
    monkeypatch.setenv("WORLD_SIZE", "2")
    shares = [logged(answers[4 * n : 4 * n + 4], [items[n]] * 4, judge) for n in range(2)]
    of_one_process = {"judge/waited_s", "judge/latency_p50_s", "judge/latency_p95_s"}
    together = means(*shares)
    assert list(together) == list(alone)
    for name in set(alone) - of_one_process:
        assert together[name] == pytest.approx(alone[name]), name
    assert together["labels/focus_intended"] == 2 / 6
    assert together["judge/cost_usd"] == 0.25  # and not the mean of two processes
    # One that has no verdict says nothing of labels, so that it does not hide the others'.
    nothing = logged(["lost", "lost"], judge=judge)
    assert not any(name.startswith("labels/") for name in nothing)
    assert means(shares[1], nothing)["labels/focus_intended"] == 1 / 4


def test_what_the_judge_took_is_logged_and_what_the_store_had_took_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "any")
    item = make_item()

    def of(function: RewardFunction, answers: list[str]) -> dict[str, float]:
        return means(logged(answers, [item] * len(answers), function))

    with FakeAPI(latency=0.05) as api:
        function = reward_function(
            "anthropic:claude-sonnet-5-5", base_url=api.base_url, store=tmp_path / "store.sqlite"
        )
        first = of(function, ["one", "two", "two", ""])
        again = of(function, ["one", "two", "three", "three", "", " "])
    assert (first["judge/from_store"], first["answers/distinct"]) == (0, 3 / 4)
    assert 0.05 <= first["judge/latency_p50_s"] <= first["judge/latency_p95_s"]
    assert first["judge/latency_p95_s"] <= first["judge/waited_s"]
    assert first["judge/cost_usd"] > 0
    # Two of three were there, and nobody is asked of empty ones: half of the verdicts took no time.
    assert again["judge/from_store"] == pytest.approx(2 / 3)
    assert again["judge/latency_p50_s"] == 0
    assert again["judge/latency_p95_s"] > 0.04
    assert 0 < again["judge/cost_usd"] < first["judge/cost_usd"]


def test_a_vote_takes_its_time_and_one_that_the_store_had_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "any")
    with FakeAPI(latency=0.05) as api:
        function = reward_function(
            "anthropic:claude-sonnet-5-5",
            votes=3,
            base_url=api.base_url,
            store=tmp_path / "s.sqlite",
        )
        logged(["one", "two"], judge=function)
        # Six votes are there, three are not: with a zero for each verdict the median would be one's time.
        again = means(logged(["one", "two", "three"], judge=function))
    assert again["judge/latency_p50_s"] == 0
    assert again["judge/latency_p95_s"] > 0.04


# ---------------------------------------------------------------- configured from outside


def test_the_function_for_trls_command_line_is_configured_by_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "reward.yaml").write_text("judge: local\nfocus: 3.0\nmax_outage_s: 5\n")
    monkeypatch.setenv("XYREWARD_REWARD", str(tmp_path / "reward.yaml"))
    monkeypatch.setenv("XYREWARD_JUDGE", "scripted:x.jsonl")
    scoring = trl_rewards.scoring_from_environment()
    assert scoring.judge == "scripted:x.jsonl"
    assert scoring.reward == Reward(focus=3.0, soft=True)
    assert scoring.max_outage_s == 5
    (tmp_path / "reward.yaml").write_text("jugde: local\n")
    with pytest.raises(ConfigError, match=r"reward.yaml: jugde: unknown key; did you mean 'judge'"):
        trl_rewards.scoring_from_environment()
    monkeypatch.delenv("XYREWARD_REWARD")
    monkeypatch.delenv("XYREWARD_JUDGE")
    assert trl_rewards.scoring_from_environment().judge == "local"


def test_trls_own_command_trains_with_it(tiny: str, tmp_path: Path) -> None:
    rows = "".join(json.dumps(row) + "\n" for row in prompt_rows([make_item(), make_item(id="b")]))
    (tmp_path / "data").mkdir()
    (tmp_path / "data/train.jsonl").write_text(rows)
    arguments = {
        "model_name_or_path": tiny,
        "dataset_name": f"{tmp_path}/data",
        "reward_funcs": "xyreward.trl_rewards.xy",
        "output_dir": f"{tmp_path}/out",
        "num_generations": 2,
        "per_device_train_batch_size": 2,
        "max_completion_length": 4,
        "max_steps": 1,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "use_cpu": True,
        "bf16": False,
        "dtype": "float32",
    }
    command = [str(Path(sys.executable).parent / "trl"), "grpo"]
    for name, value in arguments.items():
        command += [f"--{name}", str(value)]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        env={**os.environ, "XYREWARD_JUDGE": "local", "HF_HUB_OFFLINE": "1"},
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "rewards/xyreward/mean" in done.stdout
    assert "judge/failure_rate" in done.stdout


# ---------------------------------------------------------------- a judge that is paid


def _score_share(functions: list[RewardFunction], answers: list[str], results: Any) -> None:
    results.put(together(functions, answers))


def test_three_functions_in_two_processes_make_as_many_calls_as_there_are_distinct_completions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """64 completions of which 40 are distinct, some of them in both processes: 40 calls."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", "any")
    # Rank 0: 0..31. Rank 1: 16..39 and eight of its own once more. Distinct: 0..39.
    shares = [
        [f"answer {n}" for n in range(32)],
        [f"answer {n}" for n in [*range(16, 40), *range(32, 40)]],
    ]
    assert sum(map(len, shares)) == 64
    assert len({answer for share in shares for answer in share}) == 40
    with FakeAPI(latency=0.02) as api:
        functions = component_functions(
            "anthropic:claude-sonnet-5-5", base_url=api.base_url, store=tmp_path / "store.sqlite"
        )
        context = multiprocessing.get_context("spawn")
        results = context.Queue()
        processes = [
            context.Process(target=_score_share, args=(functions, share, results))
            for share in shares
        ]
        for process in processes:
            process.start()
        found = [results.get(timeout=120) for _ in processes]
        for process in processes:
            process.join(60)
            assert process.exitcode == 0
        assert api.stats.billed == api.stats.delivered == 40
    assert all(None not in rewards for functions in found for rewards in functions)


# ---------------------------------------------------------------- in TRL's trainers


def settings(kind: str, folder: Path, **more: Any) -> Any:
    import trl

    return getattr(trl, f"{kind}Config")(
        **{
            "output_dir": str(folder),
            "use_cpu": True,
            "bf16": False,
            "activation_checkpointing": False,
            "report_to": "none",
            "num_generations": 4,
            "per_device_train_batch_size": 8,
            "max_completion_length": 6,
            "max_steps": 4,
            "logging_steps": 1,
            "save_strategy": "no",
            "seed": 3,
            **more,
        }
    )


def trained(kind: str, tiny: str, args: Any, functions: Any) -> tuple[Any, list[dict[str, Any]]]:
    """The trainer after its steps, and every batch that it generated and scored."""
    import trl
    from datasets import Dataset

    base = getattr(trl, f"{kind}Trainer")

    class Watched(base):  # type: ignore[misc,valid-type]
        def _calculate_rewards(self, *arguments: Any) -> Any:
            self.rewards = super()._calculate_rewards(*arguments)
            return self.rewards

        def _generate_and_score_completions(self, inputs: Any) -> Any:
            found = super()._generate_and_score_completions(inputs)
            batches.append({"rewards": self.rewards, "advantages": found["advantages"]})
            return found

    batches: list[dict[str, Any]] = []
    items = [make_item(id=f"item {n}", query=f"How do I do {n}?") for n in range(4)]
    trainer = Watched(
        model=tiny,
        args=args,
        reward_funcs=functions,
        train_dataset=Dataset.from_list(prompt_rows(items)),
    )
    trainer.train()
    return trainer, batches


def groups(values: Any) -> list[list[float]]:
    return values.view(-1, 4).tolist()  # type: ignore[no-any-return]


def centred(rewards: list[float], scale: str, all_rewards: list[float]) -> list[float]:
    """GRPO's advantages by hand, over the scored rows alone."""
    scored = [r for r in rewards if not math.isnan(r)]
    if not scored:
        return [0.0] * len(rewards)
    mean = sum(scored) / len(scored)
    over = scored if scale == "group" else [r for r in all_rewards if not math.isnan(r)]
    if scale == "none":
        spread = 1.0
    elif len(over) < 2:
        return [0.0] * len(rewards)
    else:
        middle = sum(over) / len(over)
        spread = math.sqrt(sum((r - middle) ** 2 for r in over) / (len(over) - 1)) + 1e-4
    return [0.0 if math.isnan(r) else (r - mean) / spread for r in rewards]


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_a_failing_judge_leaves_the_advantages_of_the_scored_rows_to_grpos_formula(
    tiny: str, tmp_path: Path, scale: str
) -> None:
    function = reward_function(LabelJudge(failing=0.2))
    trainer, batches = trained(
        "GRPO", tiny, settings("GRPO", tmp_path, scale_rewards=scale), function
    )
    failed = 0
    for batch in batches:
        rewards = batch["rewards"][:, 0]
        failed += int(rewards.isnan().sum())
        expected = [
            value for group in groups(rewards) for value in centred(group, scale, rewards.tolist())
        ]
        assert batch["advantages"].tolist() == pytest.approx(expected, abs=1e-5)
        assert all(batch["advantages"][rewards.isnan()] == 0)
    assert 0 < failed < 32 / 2
    logged = [entry for entry in trainer.state.log_history if "judge/failure_rate" in entry]
    assert sum(entry["judge/failure_rate"] for entry in logged) == pytest.approx(failed / 8)
    assert len({tuple(sorted(entry)) for entry in logged}) == 1


def test_components_of_a_failing_judge_follow_the_formula_that_normalises_each_first(
    tiny: str, tmp_path: Path
) -> None:
    functions = component_functions(LabelJudge(failing=0.2), soft=False)
    args = settings("GRPO", tmp_path, multi_objective_aggregation="normalize_then_sum")
    _, batches = trained("GRPO", tiny, args, functions)
    failed = 0
    for batch in batches:
        sums = [0.0] * 8
        lost = batch["rewards"].isnan().all(dim=1)
        assert lost.equal(batch["rewards"].isnan().any(dim=1))  # all three or none
        failed += int(lost.sum())
        for k in range(3):
            column = batch["rewards"][:, k]
            normal = [v for group in groups(column) for v in centred(group, "group", [])]
            sums = [a + b for a, b in zip(sums, normal, strict=True)]
        scored = [
            math.nan if gone else value for gone, value in zip(lost.tolist(), sums, strict=True)
        ]
        expected = centred(scored, "batch", scored)
        assert batch["advantages"].tolist() == pytest.approx(expected, abs=1e-4)
        assert all(batch["advantages"][lost] == 0)
    assert 0 < failed < 32 / 2


def test_rloo_leaves_failed_rows_out_of_the_mean_of_the_others(tiny: str, tmp_path: Path) -> None:
    function = reward_function(LabelJudge(failing=0.2))
    args = settings("RLOO", tmp_path, beta=0.0)
    _, batches = trained("RLOO", tiny, args, function)
    failed = 0
    for batch in batches:
        expected = []
        for group in groups(batch["rewards"][:, 0]):
            scored = [r for r in group if not math.isnan(r)]
            failed += len(group) - len(scored)
            for reward in group:
                if math.isnan(reward) or len(scored) < 2:
                    expected.append(0.0)
                else:
                    expected.append(reward - (sum(scored) - reward) / (len(scored) - 1))
        assert batch["advantages"].tolist() == pytest.approx(expected, abs=1e-5)
    assert 0 < failed < 32 / 2


def test_an_asynchronous_trainer_scores_groups_at_once_without_its_loggers() -> None:
    """As trl.experimental.async_grpo does in its child: gathered functions per group, many groups at once."""
    judge = LabelJudge(failing=0.2)
    functions = component_functions(judge)
    items = [make_item(id=f"item {n}", query=f"How do I do {n}?") for n in range(20)]

    async def group(item: Item) -> list[Any]:
        given: dict[str, Any] = {
            "prompts": [item.messages] * 4,
            "completions": [f"{item.id} {n}" for n in range(4)],
        }
        return await asyncio.gather(*(f(**given, **columns([item] * 4)) for f in functions))

    async def run() -> list[list[Any]]:
        return await asyncio.gather(*map(group, items))

    found = asyncio.run(run())
    assert len(judge.asked) == len(set(judge.asked)) == 80
    for per_function in found:
        assert len({tuple(r is None for r in rewards) for rewards in per_function}) == 1
