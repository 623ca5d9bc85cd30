import json
import math
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from label_judge import LabelJudge

from xyreward.config import AuditConfig
from xyreward.errors import ConfigError
from xyreward.grpo import ended_by
from xyreward.items import Item
from xyreward.judges import Judge, load_judge
from xyreward.judges.calls import JudgeStopped
from xyreward.policy import Policy, load_policy
from xyreward.reward_audit import (
    Look,
    RewardAudit,
    distinct,
    neutral_loss,
    neutral_passages,
    read_look,
    repetition,
)
from xyreward.testing import FakeAPI, Faults, make_item
from xyreward.trl_rewards import reward_function
from xyreward.verdict import JudgeFailure, LabelProbabilities, Labels, Verdict

FIRST = Look(
    step=0, reward=0.2, second_reward=0.3, over_correction=0.1, failed=0.0, characters=100.0, truncated=0.5,
    distinct_2=0.9, repetition=0.0, neutral_loss=3.0, lead=-0.1,
)  # fmt: skip
ITEMS = [make_item(id=f"item {n}", query=f"How do I do {n}?") for n in range(3)]
ITEMS += [make_item(id=f"control {n}", query=f"What is {n}?", kind="control") for n in range(2)]


@pytest.fixture(scope="module")
def policy(tiny: str) -> Policy:
    return load_policy(tiny)


# ---------------------------------------------------------------- figures


def test_the_gap_is_how_much_more_the_own_judges_reward_rose() -> None:
    later = replace(FIRST, step=10, reward=0.7, second_reward=0.4, lead=0.3)
    assert later.gap(FIRST) == pytest.approx((0.7 - 0.2) - (0.4 - 0.3))
    assert replace(later, lead=None).gap(FIRST) is None
    assert later.gap(replace(FIRST, lead=None)) is None


def test_figures_beyond_their_bounds_are_told_and_none_are_where_there_is_no_bound() -> None:
    later = replace(
        FIRST,
        step=10,
        reward=0.7,
        second_reward=0.4,
        lead=0.3,
        over_correction=0.6,
        neutral_loss=3.4,
    )
    assert later.objections(FIRST, AuditConfig()) == [
        "the training's reward rose more than the second judge's (max_gap): 0.400, above 0.2",
        "share of controls with an invented misconception (max_over_correction): 0.600, above 0.5",
        "rise of the loss on neutral text (max_neutral_loss): 0.400, above 0.3",
    ]
    none = AuditConfig(max_gap=None, max_over_correction=None, max_neutral_loss=None)
    assert later.objections(FIRST, none) == []
    assert FIRST.objections(FIRST, AuditConfig()) == []
    assert len(replace(FIRST, neutral_loss=math.nan).objections(FIRST, AuditConfig())) == 1


def test_metrics_have_the_same_names_whatever_is_missing() -> None:
    nothing = replace(FIRST, second_reward=None, lead=None, over_correction=None)
    assert list(FIRST.metrics(FIRST)) == list(nothing.metrics(FIRST))
    assert math.isnan(nothing.metrics(FIRST)["audit/gap"])
    assert FIRST.metrics(FIRST)["audit/length_ratio"] == 1


def test_distinct_sequences_and_repetitions() -> None:
    assert distinct([[1, 2, 3], [1, 2, 4]], 2) == 3 / 4  # 1-2 twice
    assert distinct([[1]], 2) == 1
    assert repetition([1, 2, 1, 2, 1, 2], 2) == pytest.approx(1 - 2 / 5)  # 12 21 12 21 12
    assert repetition([1, 2, 3], 4) == 0


def test_the_loss_on_neutral_text_is_that_of_an_untrained_model(policy: Policy) -> None:
    passages = neutral_passages()
    assert len(passages) == 16
    nats, tokens = neutral_loss(policy, passages[:2])
    assert tokens == sum(len(p.encode()) - 1 for p in passages[:2])  # a token for each byte
    assert nats / tokens == pytest.approx(math.log(259), rel=0.05)  # it knows nothing


# ---------------------------------------------------------------- the callback


def audit(policy: Policy, second: Judge | None = None, **more: Any) -> RewardAudit:
    settings = AuditConfig(
        every=2, max_new_tokens=4, max_over_correction=None, **more.pop("settings", {})
    )
    return RewardAudit(
        policy, ITEMS, reward_function(LabelJudge()), judge=second, settings=settings, **more
    )


def state(step: int, last: int = 5) -> Any:
    return SimpleNamespace(global_step=step, max_steps=last)


ARGUMENTS = SimpleNamespace(fsdp=[], deepspeed_plugin=None)


def control() -> Any:
    return SimpleNamespace(should_training_stop=False, should_save=False)


def test_it_looks_before_the_first_step_at_its_interval_and_after_the_last(policy: Policy) -> None:
    told: list[Look] = []
    watched = audit(
        policy, LabelJudge(name="other"), on_look=lambda look, beyond: told.append(look)
    )
    policy.model.train()
    watched.on_train_begin(ARGUMENTS, state(0), control())
    for n in range(1, 6):
        watched.on_step_end(ARGUMENTS, state(n), control())
    assert [look.step for look in told] == [0, 2, 4, 5]
    assert policy.model.training  # as the trainer left it
    first, *others = (replace(look, step=0) for look in told)
    assert all(other == first for other in others)  # nothing was trained
    assert first.truncated == 1
    assert first.gap(first) == 0
    assert watched.function.more == told[-1].metrics(told[0])


def test_only_figures_that_a_look_can_have_are_logged(policy: Policy) -> None:
    watched = audit(policy, LabelJudge())  # the training's own: no second one
    watched.on_train_begin(ARGUMENTS, state(0), control())
    never = {"audit/second_reward", "audit/gap"}
    assert set(watched.function.more) == set(FIRST.metrics(FIRST)) - never
    watched = RewardAudit(policy, ITEMS[:3], reward_function(LabelJudge(failing=1)))  # no control
    watched.on_train_begin(ARGUMENTS, state(0), control())
    assert set(watched.function.more) == set(FIRST.metrics(FIRST)) - never - {
        "audit/over_correction"
    }
    assert math.isnan(watched.function.more["audit/reward"])  # this time


def test_the_same_judge_is_not_a_second_one(policy: Policy) -> None:
    watched = audit(policy, LabelJudge())
    watched.on_train_begin(ARGUMENTS, state(0), control())
    (look,) = watched.looks
    assert look.second_reward is None
    assert look.reward is not None
    assert watched.function.scorer.judge.calls == 1  # type: ignore[attr-defined]


def test_a_resumed_run_is_compared_with_its_first_look(policy: Policy) -> None:
    earlier = [FIRST, replace(FIRST, step=2), replace(FIRST, step=4)]
    watched = audit(policy, earlier=earlier)
    watched.on_train_begin(ARGUMENTS, state(3), control())  # the checkpoint is of step 3
    assert [look.step for look in watched.looks] == [0, 2, 3]
    again = audit(policy, earlier=earlier)
    again.on_train_begin(ARGUMENTS, state(4), control())
    assert again.looks == earlier


@pytest.mark.parametrize("then", ["warn", "stop"])
def test_beyond_a_bound_it_warns_or_ends_the_run(policy: Policy, then: str) -> None:
    watched = audit(policy, earlier=[replace(FIRST, neutral_loss=1.0)], settings={"then": then})
    watched.on_train_begin(ARGUMENTS, state(0), control())
    asked = control()
    watched.on_step_end(ARGUMENTS, state(2), asked)
    assert asked.should_training_stop == asked.should_save == (then == "stop")
    told = "the audit, at step 2: rise of the loss on neutral text (max_neutral_loss): "
    assert [fact.startswith(told) for fact in ended_by([watched]).values()] == [True] * (
        then == "stop"
    )


def test_the_gap_is_of_answers_that_both_judges_judged(policy: Policy) -> None:
    class Picky(LabelJudge):
        """Fails on whatever has no hidden goal, and else says what the training's judge says."""

        def outcome(self, item: Item, answer: str) -> Any:
            if item.kind == "control":
                return JudgeFailure("unparseable", "no")
            return super().outcome(item, answer)

    watched = audit(policy, Picky(name="other"))
    watched.on_train_begin(ARGUMENTS, state(0), control())
    (look,) = watched.looks
    assert look.failed == 2 / 5
    assert look.reward != look.second_reward
    assert look.lead == 0  # where both judged they agree


def test_a_judge_that_fails_leaves_the_other_figures(policy: Policy) -> None:
    watched = audit(policy, LabelJudge(failing=1.0, name="other"))
    watched.on_train_begin(ARGUMENTS, state(0), control())
    (look,) = watched.looks
    assert (look.second_reward, look.over_correction, look.failed) == (None, None, 1.0)
    assert look.characters > 0


def test_over_correction_is_of_controls_alone_and_by_the_second_judge(policy: Policy) -> None:
    class Inventive(LabelJudge):
        """Sees a misconception wherever there is one, and in one of the two controls."""

        def outcome(self, item: Item, answer: str) -> Any:
            sees = item.kind == "xy" or item.id == "control 0"
            labels = Labels(
                has_stated_solution=False,
                has_intended_solution=False,
                focus="neither",
                identifies_misconception=sees,
            )
            return Verdict(labels, LabelProbabilities.certain(labels), self.name, "1")

    watched = audit(policy, Inventive(name="other"))
    watched.on_train_begin(ARGUMENTS, state(0), control())
    assert watched.looks[0].over_correction == 0.5


def test_failures_of_the_trainings_own_judge_are_told_too(policy: Policy) -> None:
    watched = audit(policy, LabelJudge(name="other"))
    watched.function.scorer.judge.failing = 1.0  # type: ignore[attr-defined]
    watched.on_train_begin(ARGUMENTS, state(0), control())
    (look,) = watched.looks
    assert look.second_reward is not None
    assert (look.reward, look.failed) == (None, 1.0)


def test_a_judge_that_fails_is_told_and_ends_no_training(policy: Policy) -> None:
    told: list[str] = []
    watched = audit(
        policy,
        LabelJudge(failing=1.0, name="other"),
        on_look=lambda _, said: told.extend(said),
        settings={"then": "stop"},
    )
    asked = control()
    watched.on_train_begin(ARGUMENTS, state(0), asked)
    assert told == [
        "100% of the audit's judgements failed (other: unparseable: by chance), so that it sees little or "
        "nothing"
    ]
    assert not asked.should_training_stop
    assert not FIRST.blindness()


def test_why_a_second_judge_stopped_is_told(policy: Policy) -> None:
    class Stopping(LabelJudge):
        async def judge(self, items: Any, answers: Any) -> Any:
            raise JudgeStopped("the key is not accepted")

    told: list[str] = []
    watched = audit(policy, Stopping(name="other"), on_look=lambda _, said: told.extend(said))
    watched.on_train_begin(ARGUMENTS, state(0), control())
    assert told == [
        "100% of the audit's judgements failed (other: the key is not accepted), so that it sees little or "
        "nothing"
    ]
    (look,) = watched.looks
    assert look.second_reward is None
    assert look.reward is not None
    assert "audit/why" not in look.metrics(look)


def test_a_sharded_model_is_refused(policy: Policy) -> None:
    for sharded in (
        SimpleNamespace(fsdp=["full_shard"], deepspeed_plugin=None),
        SimpleNamespace(fsdp=[], deepspeed_plugin=SimpleNamespace(zero_stage=3)),
    ):
        with pytest.raises(ConfigError, match="audit: null"):
            audit(policy).on_train_begin(sharded, state(0), control())


def test_a_look_can_be_kept_as_a_line() -> None:
    whole = replace(FIRST, why="other: timeout: no reply", reward=None)
    assert read_look(json.dumps(asdict(whole))) == whole
    older = {name: value for name, value in asdict(FIRST).items() if name != "why"}
    assert read_look(json.dumps(older)) == FIRST
    nan = read_look(json.dumps(asdict(replace(FIRST, neutral_loss=math.nan))))
    assert math.isnan(nan.neutral_loss)


@pytest.mark.parametrize(
    "wrong",
    [
        {"reward": "high"},
        {"step": None},
        {"step": 1.5},
        {"why": ["x"]},
        {"failed": None},
        {"later": 1},
    ],
)
def test_a_line_that_is_no_look_is_found_when_it_is_read(wrong: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError)):
        read_look(json.dumps({**asdict(FIRST), **wrong}))


@pytest.mark.parametrize("fault", ["401", "500"])
def test_why_a_judge_failed_names_it_without_its_address_and_holds_no_key(
    policy: Policy, tmp_path: Path, fault: str
) -> None:
    key = "sk-secret-0123456789abcdef"
    told: list[str] = []
    with FakeAPI(faults=Faults({fault: 1.0})) as api:
        options: Any = {"max_attempts": 1, "api_key": key, "schema": "json_schema"}
        second = load_judge(f"chat:m@{api.base_url}", store=str(tmp_path / "v"), **options)
        watched = audit(policy, second, on_look=lambda _, said: told.extend(said))
        watched.on_train_begin(ARGUMENTS, state(0), control())
    (look,) = watched.looks
    assert (look.second_reward, look.failed) == (None, 1.0)
    (said,) = told
    assert "(chat:m: " in said
    for text in (said, json.dumps(asdict(look))):
        assert key not in text
