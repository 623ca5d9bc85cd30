"""`XYJudge`, a plugged judge of verifiers v1, against the real verifiers: `make test-adapters`."""

import asyncio
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("verifiers.v1", reason="verifiers is not installed: make test-adapters")

import verifiers.v1 as vf
from verifiers.v1.errors import TaskError
from verifiers.v1.graph import MessageNode
from verifiers.v1.trace import AgentInfo, TraceTask

from xyreward.testing import FakeAPI, make_item
from xyreward.verifiers_judge import XYJudge, XYJudgeConfig, item_of

# verifiers and what it imports; ours are tested by the main suite.
pytestmark = pytest.mark.filterwarnings("default")

ITEM = make_item(id="alarm")
LABELS = {
    "has_stated_solution": False,
    "has_intended_solution": True,
    "focus": "intended",
    "identifies_misconception": True,
}


class Data(vf.TaskData):
    item: Any = None


class XYTask(vf.Task[Data]):
    pass


@pytest.fixture
def judge(tmp_path: Path) -> str:
    lines = [
        {"answer": "good", "labels": LABELS},
        {"answer": "?", "failure": "timeout", "detail": "x"},
    ]
    path = tmp_path / "script.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return f"scripted:{path}"


@pytest.fixture
def plugged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An id under which verifiers finds the judge: a module of an environment, as docs show it."""
    (tmp_path / "xy_judge.py").write_text(
        'from xyreward.verifiers_judge import XYJudge\n\n__all__ = ["XYJudge"]\n'
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    return "xy-judge"


def trace_of(data: Data, reply: str) -> vf.Trace:
    node = MessageNode(message=vf.AssistantMessage(content=reply), sampled=True)
    return vf.Trace(
        task=TraceTask(type="XYTask", data=data),
        agent=AgentInfo(config=vf.AgentConfig()),
        nodes=[node],
    )


def scored(reply: str, item: Any = None, **judge: Any) -> vf.Trace:
    """A trace after verifiers has scored it with a plugged judge."""
    data = Data(prompt=ITEM.query_text, item=ITEM.model_dump(mode="json") if item is None else item)
    config = XYTask.config_type().model_validate({"judges": [judge]})
    trace = trace_of(data, reply)
    asyncio.run(XYTask(data, config).score(trace))
    return trace


def test_plugged_by_its_id_it_gives_a_weighted_reward_and_metrics(plugged: str, judge: str) -> None:
    trace = scored("good", id=plugged, judge=judge, weight=0.5)
    reward = trace.rewards["xy"]
    assert reward is not None
    assert (reward.score, reward.weight) == (1.0, 0.5)
    assert trace.metrics["xy_solution"] == 1.0
    assert trace.metrics["xy_has_stated_solution"] == 0.0
    (record,) = trace.info["xyreward"]
    assert record["judge"] == judge
    assert record["focus"] == "intended"
    assert trace.extra_usage == []
    # What is written to traces.jsonl can be read.
    assert json.loads(trace.model_dump_json())["rewards"]["xy"]["score"] == 1.0


@pytest.mark.parametrize("item", [ITEM.model_dump_json(), ITEM.model_dump(mode="json")])
def test_the_item_is_a_dict_or_json(item: str | Mapping[str, Any], judge: str) -> None:
    assert item_of(Data(item=item), "item") == ITEM


def test_a_failure_errs_the_rollout_and_is_no_reward(plugged: str, judge: str) -> None:
    data = Data(prompt="?", item=ITEM.model_dump(mode="json"))
    config = XYTask.config_type().model_validate({"judges": [{"id": plugged, "judge": judge}]})
    trace = trace_of(data, "?")
    with pytest.raises(TaskError, match="no verdict on a reply to item 'alarm': timeout: x"):
        asyncio.run(XYTask(data, config).score(trace))
    assert trace.rewards == {"xy": None}  # verifiers' word for "not scored"
    assert trace.info["xyreward"][0]["failure"] == "timeout"


def test_an_empty_reply_and_one_of_nothing_but_thinking_are_worth_nothing(
    plugged: str, judge: str
) -> None:
    for reply in ("", "<think>what if"):
        reward = scored(reply, id=plugged, judge=judge).rewards["xy"]
        assert reward is not None
        assert reward.score == 0.0


def test_a_task_without_an_item_is_told(plugged: str, judge: str) -> None:
    for wrong in (3, {"id": "x"}, "no JSON"):
        with pytest.raises(TaskError, match="the task's field 'item' is"):
            scored("good", wrong, id=plugged, judge=judge)


def test_a_paid_judge_is_on_the_bill_of_the_trace(plugged: str, tmp_path: Path) -> None:
    with FakeAPI() as api:
        options = {"store": str(tmp_path / "s"), "schema": "json_schema"}
        given = {"id": plugged, "judge": f"chat:qwen@{api.base_url}", "judge_options": options}
        first, second = (scored("Go to bed earlier.", **given) for _ in range(2))
        assert api.stats.billed == 1
    (usage,) = first.extra_usage
    assert usage.prompt_tokens > 0
    assert usage.cost is None  # nobody knows the price of this model
    assert second.extra_usage == []  # from the store
    assert second.info["xyreward"][0]["cached"] is True


def test_called_from_a_reward_of_a_task(judge: str) -> None:
    class Own(vf.Task[Data]):
        @vf.reward
        async def goal(self, trace: vf.Trace) -> float:
            return await XYJudge(XYJudgeConfig(judge=judge)).score(self.data, trace)

    data = Data(prompt="?", item=ITEM.model_dump(mode="json"))
    trace = trace_of(data, "good")
    asyncio.run(Own(data).score(trace))
    reward = trace.rewards["goal"]
    assert reward is not None
    assert math.isclose(reward.score, 1.0)
