"""Policies that do not run here: what is read of their replies and files, what they cannot be asked."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from xyreward.answering import (
    FilePolicy,
    How,
    RemotePolicy,
    Written,
    check_conditions,
    check_how,
    described_how,
    described_picks,
    place_of,
    read_letter,
    replies_in_letters,
    write,
)
from xyreward.errors import ConfigError, DataError, JudgeError
from xyreward.evaluation import (
    Evaluation,
    contrast,
    evaluate,
    evaluate_references,
    letter_questions,
    told_the_goal,
)
from xyreward.items import DEFAULT_LABELS, Item
from xyreward.metrics import headline, measure, metrics_of
from xyreward.partial import Partial
from xyreward.policy import load_policy
from xyreward.testing import FakeAPI, Faults, ScriptedJudge, make_item

XY = make_item(id="x")
CONTROL = make_item(id="c", kind="control", query="How loud is my alarm clock?")
ITEMS = [XY, CONTROL]


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XYREWARD_STORE", str(tmp_path / "store.sqlite"))
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-test")
    for name in ("XYREWARD_RUN", "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(name, raising=False)


def said(text: str) -> Iterator[FakeAPI]:
    with FakeAPI(reply=lambda _: text, log_bodies=True) as running:
        yield running


@pytest.fixture
def api() -> Iterator[FakeAPI]:
    yield from said("Go to bed earlier.")


def remote(api: FakeAPI, **options: Any) -> RemotePolicy:
    return RemotePolicy.load(f"chat:policy@{api.base_url}", **options)


def bodies(api: FakeAPI) -> list[dict[str, Any]]:
    return [entry.body for entry in api.log if entry.body is not None]


# ---------------------------------------------------------------- letters


@pytest.mark.parametrize(
    ("reply", "letter"),
    [
        ("A", "A"),
        (" b.\n", "B"),
        ("**B**", "B"),
        ("Answer A", "A"),
        ("answer: (B)", "B"),
        ("'A'", "A"),
        ("", None),
        ("C", None),
        ("AB", None),
        ("A or B", None),
        ("A is shorter, but B helps", None),
        ("Both", None),
        ("A better answer would be to go to bed.", None),
        ("I cannot choose.", None),
    ],
)
def test_a_reply_is_a_letter_or_nothing(reply: str, letter: str | None) -> None:
    assert read_letter(reply) == letter


def test_a_cut_off_reply_is_no_pick_even_where_it_begins_with_a_letter() -> None:
    with FakeAPI(reply=lambda _: "A", faults=Faults(script=["max_tokens"])) as api:
        found = replies_in_letters(remote(api), letter_questions([XY]), How())
    assert found == ["truncated", "A"]


def test_picking_of_an_api_counts_both_orders_and_no_unparseable_reply() -> None:
    better, _ = contrast(XY) or pytest.fail("the item has no pair")

    def picks_goal_and_refuses_controls(body: dict[str, Any]) -> str:
        text = body["messages"][-1]["content"]
        if CONTROL.query_text in text:
            return "Both are fine."
        return "A" if text.index(better.text) < text.index("Answer B:") else "B"

    with FakeAPI(reply=picks_goal_and_refuses_controls) as api:
        found = evaluate(remote(api), ITEMS, parts=["picking"])
        assert api.stats.billed == 4
        again = evaluate(remote(api), ITEMS, parts=["picking"])
        assert api.stats.billed == 4  # a reply that is no letter was paid for, and is remembered
    assert again == found
    x, c = found.rows
    assert (x.picked, x.picked_first, x.pick_margin, x.pick_failure) == (1.0, 0.5, None, None)
    assert (c.picked, c.picked_first, c.pick_failure) == (None, None, "unparseable")
    lines = {line.metric.key: line.before for line in measure(found)}
    assert lines["picking"] is not None
    assert (lines["picking"].value, lines["picking"].n) == (1.0, 1)
    assert "control_picking" not in lines
    assert lines["pick_failed"] is not None
    assert lines["pick_failed"].value == 0.5
    assert any("picked nothing on 1 of 2 items (unparseable 1)" in note for note in found.notes)


def test_policies_whose_logits_are_read_have_no_failures_of_picking(tiny: str) -> None:
    found = evaluate(load_policy(tiny), ITEMS, parts=["picking"])
    (metric,) = metrics_of(["pick_failed"])
    assert [metric.value(row) for row in found.rows] == [None, None]


# ---------------------------------------------------------------- writing


def test_an_api_is_asked_greedily_once_per_item_and_for_nothing_twice(api: FakeAPI) -> None:
    judge = ScriptedJudge({(None, "Go to bed earlier."): DEFAULT_LABELS["goal_focused"]})
    found = evaluate(remote(api), ITEMS, judge=judge, parts=["writing"], max_new_tokens=20)
    assert [row.answer for row in found.rows] == ["Go to bed earlier."] * 2
    assert {(b["temperature"], b["max_tokens"]) for b in bodies(api)} == {(0.0, 20)}
    assert found.policy == "chat:policy"
    paid = api.stats.billed
    assert paid == 2
    write(remote(api), ITEMS, How(max_new_tokens=20))
    assert api.stats.billed == paid
    write(remote(api), ITEMS, How(max_new_tokens=21))
    assert api.stats.billed == paid + 2


def test_several_answers_are_rows_of_their_own_in_one_cluster(api: FakeAPI) -> None:
    judge = ScriptedJudge({(None, "Go to bed earlier."): DEFAULT_LABELS["goal_focused"]})
    found = evaluate(
        remote(api, temperature=0.7), ITEMS, judge=judge, parts=["writing"], answers_per_item=3,
        temperature=0.7, clusters={"x": "one", "c": "two"},
    )  # fmt: skip
    assert [(r.item_id, r.answer_index) for r in found.rows] == [
        (name, n) for name in ("x", "c") for n in range(3)
    ]
    assert api.stats.billed == 6
    assert len({b["seed"] for b in bodies(api)}) == 6
    line = next(line for line in measure(found) if line.metric.key == "goal_served")
    assert line.before is not None
    assert (line.before.n, line.before.why) == (3, "one cluster")
    assert headline(found).value == 1.0 + 0.0 - 1  # goal-focused answers to a control invent a goal


def test_sampled_answers_of_a_policy_here_are_in_order_and_repeat(tiny: str) -> None:
    policy = load_policy(tiny)
    how = How(answers_per_item=3, temperature=1.0, max_new_tokens=6, batch_size=4)
    first, again = write(policy, ITEMS, how), write(policy, ITEMS, how)
    assert first == again
    assert [len(several) for several in first] == [3, 3]
    assert len({one.text for several in first for one in several}) > 2
    alone = write(policy, ITEMS[1:], how)
    assert [one.text for one in alone[0]] == [one.text for one in first[1]]


@pytest.mark.parametrize("condition", ["writing", "oracle"])
def test_what_was_sampled_before_a_stop_is_kept_and_the_rest_is_the_same(
    tiny: str, tmp_path: Path, condition: Any
) -> None:
    policy = load_policy(tiny)
    many = [make_item(id=f"x{n}", query=f"Question {n}?") for n in range(6)]
    settings: dict[str, Any] = {
        "judge": ScriptedJudge({}), "parts": ["writing"], "max_new_tokens": 6, "batch_size": 4,
        "answers_per_item": 2, "temperature": 1.0, "condition": condition,
    }  # fmt: skip
    straight = evaluate(policy, many, **settings)
    file = tmp_path / "unfinished.jsonl"
    assert evaluate(policy, many, partial=Partial(file, {}), **settings) == straight
    lines = file.read_bytes().splitlines(keepends=True)
    assert len(lines) == 1 + 3  # six items in batches of two, and no verdicts, since all failed
    file.write_bytes(b"".join(lines[:2]) + lines[2][:30])
    partial = Partial(file, {})
    assert partial.rows(condition) == 4
    assert evaluate(policy, many, partial=partial, **settings) == straight
    assert file.read_bytes() == b"".join(lines)


def test_an_answer_that_does_not_come_is_a_failure_and_no_label(api: FakeAPI) -> None:
    judge = ScriptedJudge({(None, "Go to bed earlier."): DEFAULT_LABELS["goal_focused"]})
    with FakeAPI(
        reply=lambda _: "Go to bed earlier.", faults=Faults(script=["refusal", None])
    ) as failing:
        found = evaluate(remote(failing, max_concurrency=1), ITEMS, judge=judge, parts=["writing"])
    (bad,) = [row for row in found.rows if row.failure]
    assert bad.failure is not None
    assert bad.failure["kind"] == "policy_refused"
    assert (bad.answer, bad.verdict, bad.reward) == (None, None, None)
    assert headline(found).value is None
    assert "100.0 % of answers to items with a hidden goal are missing" in headline(found).why


def test_half_a_surrogate_pair_is_no_obstacle_and_reads_the_same_from_the_store(
    tmp_path: Path,
) -> None:
    judged = {
        "suggestions": [{"quote": "half ? pair", "reason": "why", "serves": "intended"}],
        "focus_reason": "half \ud800 a reason",
        "focus": "intended",
        "misconception_reason": "none",
        "identifies_misconception": False,
    }

    def replied(body: dict[str, Any]) -> str:
        return "half \ud800 pair" if body["model"] == "policy" else json.dumps(judged)

    with FakeAPI(reply=replied) as api:
        judge = f"chat:judge@{api.base_url}"
        first, again = (
            evaluate(remote(api), [XY], judge=judge, parts=["writing"]) for _ in range(2)
        )
        assert api.stats.billed == 3  # the policy, the judge's check and its verdict
    assert first == again
    (row,) = first.rows
    assert row.answer == "half ? pair"
    assert row.verdict is not None
    assert "half ? a reason" in row.verdict["reason"]
    assert Evaluation.from_jsonl(first.to_jsonl().encode().decode()) == first
    assert Written("\ud83d").text == "?"  # of a tokenizer in this process


def test_the_goal_is_told_in_the_last_turn_only_under_oracle(api: FakeAPI) -> None:
    judge = ScriptedJudge({(None, "Go to bed earlier."): DEFAULT_LABELS["goal_focused"]})
    talk = make_item(
        id="talk",
        query=[
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Hello {intended}"},
            {"role": "assistant", "content": "Hello."},
            {"role": "user", "content": "Louder {stated}?"},
        ],
    )
    found = evaluate(remote(api), [XY, talk], judge=judge, parts=["writing"], condition="oracle")
    assert found.condition == "oracle"
    assert [row.item_id for row in found.rows] == ["x", "talk"]
    sent = [b["messages"] for b in bodies(api)]
    (of_talk,) = [messages for messages in sent if len(messages) == 4]
    assert of_talk[1]["content"] == "Hello {intended}"
    last = of_talk[-1]["content"]
    assert last.startswith("Louder {stated}?\n")
    assert talk.stated_request in last
    assert talk.intended_request in last
    assert told_the_goal(XY).messages[-1]["content"] != XY.query_text
    plain = write(remote(api), [XY], How())
    assert bodies(api)[-1]["messages"][-1]["content"] == XY.query_text
    assert plain[0][0].text == "Go to bed earlier."


def test_a_messages_api_is_asked_without_a_temperature_and_the_report_says_so(api: FakeAPI) -> None:
    policy = RemotePolicy.load("anthropic:claude-haiku-5-5", base_url=api.base_url)
    write(policy, [XY], How())
    assert "temperature" not in bodies(api)[-1]
    assert "takes none" in described_how(policy, How())
    assert described_picks(policy, How()).endswith("sampled at the API's own temperature")
    assert described_picks(remote(api), How()) == ""
    assert described_how(remote(api), How()) == "1 per item, greedy"
    with pytest.raises(ConfigError, match="takes none and samples at 1"):
        RemotePolicy.load("anthropic:claude-haiku-5-5", temperature=0.5)


def test_a_spent_budget_stops_and_a_raised_one_goes_on(
    api: FakeAPI, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "prices.json"
    file.write_text(json.dumps({"models": {"chat:policy": {"input": 0, "output": 1e6}}}), "utf-8")
    monkeypatch.setenv("XYREWARD_PRICES", str(file))
    many = [make_item(id=f"x{n}", query=f"Question {n}?") for n in range(5)]
    judge = ScriptedJudge({(None, "Go to bed earlier."): DEFAULT_LABELS["goal_focused"]})
    settings: dict[str, Any] = {"judge": judge, "parts": ["writing"], "max_new_tokens": 10}
    # An answer is 4 or 5 tokens at a dollar each, its worst case 10.
    low = remote(api, budget_usd=16.0, run="r", max_concurrency=1)
    with pytest.raises(JudgeError, match=r"the budget is spent: \d of 5 answers were not written"):
        evaluate(low, many, **settings)
    before = api.stats.billed
    assert 0 < before < 5
    evaluate(remote(api, budget_usd=100.0, run="r"), many, **settings)
    assert api.stats.billed == 5


# ---------------------------------------------------------------- files


def answers(tmp_path: Path, *rows: dict[str, Any]) -> str:
    file = tmp_path / "my-model.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return f"answers:{file}"


def test_a_file_of_answers_is_a_policy(tmp_path: Path) -> None:
    name = answers(
        tmp_path,
        {"item_id": "c", "answer": "One."},
        {"item_id": "x", "answer": "Two.", "truncated": True},
        {"item_id": "x", "answer": ""},
        {"item_id": "another", "answer": "Three."},
    )
    policy = FilePolicy.load(name, ITEMS)
    assert policy.name == "my-model"
    assert policy.notes == ("1 answer of the file to other items left out",)
    judge = ScriptedJudge(
        {(None, "One."): DEFAULT_LABELS["direct"], (None, "Two."): DEFAULT_LABELS["literal"]}
    )
    found = evaluate(policy, ITEMS, judge=judge, parts=["writing"])
    assert [(r.item_id, r.answer_index, r.answer, r.truncated) for r in found.rows] == [
        ("x", 0, "Two.", True),
        ("x", 1, "", None),
        ("c", 0, "One.", None),
    ]
    assert found.rows[1].verdict is not None
    assert found.rows[1].verdict["focus"] == "neither"
    assert described_how(policy, How()) == "from a file, up to 2 per item"
    assert described_picks(policy, How()) == ""


def test_items_without_an_answer_are_an_error_or_failures(tmp_path: Path) -> None:
    name = answers(tmp_path, {"item_id": "x", "answer": "One.", "origin": "m"})
    with pytest.raises(DataError, match=r"1 of 2 items have no answer, the first is 'c'"):
        FilePolicy.load(name, ITEMS)
    policy = FilePolicy.load(name, ITEMS, allow_missing=True)
    assert policy.name == "m"
    judge = ScriptedJudge({(None, "One."): DEFAULT_LABELS["goal_focused"]})
    found = evaluate(policy, ITEMS, judge=judge, parts=["writing"])
    assert found.rows[1].failure is not None
    assert found.rows[1].failure["kind"] == "policy_missing"
    other = answers(tmp_path, {"item_id": "z", "answer": "One."})
    with pytest.raises(DataError, match="no answer of the file belongs to an item of the eval"):
        FilePolicy.load(other, ITEMS, allow_missing=True)


def test_a_file_without_any_answer_is_not_advised_what_is_set_already(tmp_path: Path) -> None:
    name = answers(tmp_path, {"item_id": ITEMS[0].id, "answer": "a"})
    long = make_item(id="x" * 1000)
    with pytest.raises(DataError, match=r"set .*allow_missing to true") as caught:
        FilePolicy.load(name, [ITEMS[0], long])
    assert len(str(caught.value)) < 600
    for allow_missing in (False, True):
        with pytest.raises(DataError, match="no answer of the file belongs to") as caught:
            FilePolicy.load(name, [long], allow_missing=allow_missing)
        assert "to true" not in str(caught.value)
        assert len(str(caught.value)) < 600


def test_a_file_with_answers_of_several_models_needs_the_name_of_one(tmp_path: Path) -> None:
    rows = [{"item_id": i.id, "answer": "One.", "model": m} for i in ITEMS for m in ("a", "b")]
    name = answers(tmp_path, *rows)
    with pytest.raises(ConfigError, match=r"answers of 2 models \(a, b\).*policy_options\.origin"):
        FilePolicy.load(name, ITEMS)
    assert FilePolicy.load(name, ITEMS, origin="b").name == "b"
    with pytest.raises(ConfigError, match=r"no answer of 'c', only of a, b"):
        FilePolicy.load(name, ITEMS, origin="c")


# ---------------------------------------------------------------- references


def test_reference_answers_are_judged_like_those_of_a_policy() -> None:
    goal = XY.reference("goal_focused")
    assert goal is not None
    judge = ScriptedJudge({("x", goal.text): DEFAULT_LABELS["goal_focused"]})
    found = evaluate_references(ITEMS, "goal_focused", judge=judge)
    assert (found.policy, found.condition) == ("reference:goal_focused", "reference:goal_focused")
    assert [(row.item_id, row.answer) for row in found.rows] == [("x", goal.text)]
    assert found.notes == ("1 of 2 items have no answer of kind goal_focused",)
    with pytest.raises(ValueError, match="none of 2 items has an answer of kind refusal"):
        evaluate_references(ITEMS, "refusal", judge=judge)


# ---------------------------------------------------------------- what cannot be


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("embedded:smollm2-135m", "here"),
        ("runs/tuned", "here"),
        ("Qwen/Qwen3.5-9B", "here"),
        ("chat:m@http://127.0.0.1:8000", "api"),
        ("anthropic:claude-haiku-5-5", "api"),
        ("answers:mine.jsonl", "file"),
    ],
)
def test_a_name_says_where_a_policy_answers(name: str, place: str) -> None:
    assert place_of(name) == place


@pytest.mark.parametrize(
    ("name", "parts", "oracle", "said"),
    [
        ("chat:m@http://h:1", ["preference"], False, r"of 'chat:m' \(nobody tells how likely"),
        ("anthropic:m", ["preference"], False, "expected some of writing, picking"),
        ("answers:f.jsonl", ["picking"], False, "a file of answers answers no other question"),
        ("answers:f.jsonl", ["writing"], True, "nobody can tell the author"),
    ],
)  # fmt: skip
def test_what_a_policy_cannot_be_measured_by_is_refused_in_one_line(
    name: str, parts: Any, oracle: bool, said: str
) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        check_conditions(name, parts, oracle=oracle)
    assert "\n" not in str(caught.value)


def test_preference_of_a_remote_policy_is_refused_before_anything_is_sent(api: FakeAPI) -> None:
    with pytest.raises(ConfigError, match="preference cannot be measured of 'chat:policy'"):
        evaluate(remote(api), ITEMS)
    assert api.stats.calls == 0


def test_several_greedy_answers_are_refused() -> None:
    with pytest.raises(ConfigError, match="all the same; set temperature"):
        check_how("runs/tuned", How(answers_per_item=2))
    with pytest.raises(ConfigError, match="has as many as it has"):
        check_how("answers:f.jsonl", How(answers_per_item=2))
    with pytest.raises(
        ConfigError, match=r"temperature is 0\.7, but the answers .* are there already"
    ):
        check_how("answers:f.jsonl", How(temperature=0.7))
    check_how("anthropic:claude-haiku-5-5", How(answers_per_item=2))
    check_how("runs/tuned", How(answers_per_item=2, temperature=0.7))


def test_an_item_that_no_api_takes_is_found_by_the_estimate(api: FakeAPI) -> None:
    odd = Item.model_validate(
        {
            "id": "odd",
            "query": [
                {"role": "user", "content": "a"},
                {"role": "system", "content": "b"},
                {"role": "user", "content": "c"},
            ],
            "stated_request": "s",
            "intended_request": "i",
        }
    )
    with pytest.raises(DataError, match="a system turn between others"):
        remote(api).estimate([odd], How())
    assert api.stats.calls == 0
