"""construct/stages.py: each row has one outcome, the funnel adds up, replies are asked for once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from xyreward import rubric
from xyreward.construct.stages import (
    Dropped,
    Failed,
    Funnel,
    Kept,
    Stage,
    Step,
    prompt_version,
    values,
)
from xyreward.errors import JudgeError
from xyreward.fence import Part, fence, parse_fences
from xyreward.judges import load_asker
from xyreward.judges.calls import Call, Reply
from xyreward.reading import Unread, read_object, read_text
from xyreward.testing import FakeAPI, Faults

SCHEMA = rubric.object_schema({"colour": {"type": "string"}})


def call(row: str) -> Call:
    return Call(prefix="Which colour?", text=fence([Part("thing", row)]), schema=SCHEMA)


def read(row: str, reply: Reply) -> Any:
    try:
        return {"colour": read_text("colour", read_object(reply, ["colour"])["colour"])}
    except Unread as unread:
        return unread.problem


def decide(row: str, found: Any) -> Kept[str] | Dropped:
    return Dropped("grey") if found["colour"] == "grey" else Kept(f"{row} is {found['colour']}")


def stage(**changes: Any) -> Stage[str, str]:
    fields = {
        "name": "colours",
        "version": prompt_version("colour-1", [call("x")]),
        "call": call,
        "read": read,
        "decide": decide,
    }
    return Stage(**{**fields, **changes})


COLOURS = {"sky": "blue", "road": "grey", "grass": "green"}


def says(body: dict[str, Any]) -> Any:
    content = body["messages"][-1]["content"]
    text = content if isinstance(content, str) else "\n".join(b["text"] for b in content)
    things = parse_fences(text)  # none in the first small request, which asks what a server can do
    return {"colour": COLOURS.get(things[0].text, "pink")} if things else None


def asker(api: FakeAPI, folder: Path, **options: Any) -> Any:
    return load_asker(
        f"chat:painter@{api.base_url}", store=folder / "store.sqlite", max_concurrency=4, **options
    )


def test_each_row_is_kept_or_dropped_in_order_and_says_where_it_comes_from(tmp_path: Path) -> None:
    with FakeAPI(reply=says) as api:
        found = stage().run(["sky", "road", "grass"], asker(api, tmp_path))
    assert [type(one) for one in found] == [Kept, Dropped, Kept]
    assert list(values(found)) == ["sky is blue", "grass is green"]
    first = found[0]
    assert isinstance(first, Kept)
    assert first.provenance is not None
    assert first.provenance.stage == "colours"
    assert first.provenance.prompt.startswith("colour-1-")
    assert first.provenance.model == "chat:painter"


def test_a_second_run_asks_nothing_and_a_second_opinion_asks_again(tmp_path: Path) -> None:
    with FakeAPI(reply=says) as api:
        first = stage().run(["sky", "grass"], asker(api, tmp_path))
        assert stage().run(["sky", "grass"], asker(api, tmp_path)) == first
        later = asker(api, tmp_path)
        stage().run(["sky", "grass"], later)
        assert later.stats.calls == 0
        stage().run(["sky", "grass"], later, number=1)
    assert later.stats.from_store == 2
    assert later.store.counts()["completion"] == 4


def test_another_decision_about_the_same_replies_is_free(tmp_path: Path) -> None:
    with FakeAPI(reply=says) as api:
        stage().run(["sky"], asker(api, tmp_path))
        later = asker(api, tmp_path)
        found = stage(decide=lambda row, found: Dropped("all of them")).run(["sky"], later)
    assert found == [Dropped("all of them")]
    assert later.stats.calls == 0


def test_a_row_whose_replies_stay_useless_has_failed_and_hides_no_other(tmp_path: Path) -> None:
    def broken(body: dict[str, Any]) -> Any:
        return "no JSON" if "grass" in json.dumps(body) else says(body)

    with FakeAPI(reply=broken) as api:
        found = stage().run(["sky", "grass"], asker(api, tmp_path))
    assert isinstance(found[0], Kept)
    assert isinstance(found[1], Failed)
    assert found[1].reason == "unparseable"


def test_with_a_fifth_of_calls_failing_the_outcome_is_that_of_a_clean_run(tmp_path: Path) -> None:
    rows = [f"thing {n}" for n in range(60)]
    with FakeAPI(reply=says) as api:
        clean = stage().run(rows, asker(api, tmp_path / "clean"))
    with FakeAPI(reply=says, faults=Faults({"529": 0.1, "prose": 0.1})) as api:
        rough = stage().run(rows, asker(api, tmp_path / "rough"))
    assert list(values(rough)) == list(values(clean))


TOO_LITTLE = (
    r"2 of 2 rows were not asked about.*has spent 0\.0000.*of 1e-06 US dollars, and this call may cost "
    r"0\.\d+; raise budget_usd"
)


def test_a_spent_budget_stops_and_says_how_to_go_on(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "any")
    with FakeAPI(reply=says) as api:
        poor = load_asker(
            "anthropic:claude-sonnet-5-5",
            base_url=api.base_url,
            store=tmp_path / "store.sqlite",
            budget_usd=0.000001,
            run="poor",
        )
        with pytest.raises(JudgeError, match=TOO_LITTLE):
            stage().run(["sky", "grass"], poor)


def test_a_funnel_adds_up_or_says_so() -> None:
    funnel = Funnel()
    outcomes: list[Kept[str] | Dropped | Failed] = [
        Kept("a", "asked"),
        Kept("b"),
        Dropped("grey"),
        Failed("refused"),
        Dropped("grey"),
    ]
    step = funnel.add("first", outcomes)
    assert (step.rows, step.kept) == (5, 2)
    assert step.how == {"": 1, "asked": 1}
    assert step.dropped == {"grey": 2}
    with pytest.raises(AssertionError, match="kept 2 rows and second took 1"):
        funnel.add("second", [Kept("a")])
    funnel.add("second", values_as_kept(["a", "b"]))
    assert "| - grey | | | 2 | |" in funnel.to_markdown()
    assert [s["rows"] for s in funnel.to_dict()] == [5, 2]


def values_as_kept(rows: list[str]) -> list[Kept[str]]:
    return [Kept(row) for row in rows]


def test_a_changed_prompt_has_another_version() -> None:
    one = prompt_version("colour-1", [call("x")])
    assert one != prompt_version("colour-1", [Call("Which color?", call("x").text, SCHEMA)])


def test_a_row_may_become_several_and_only_where_it_is_said() -> None:
    funnel = Funnel()
    funnel.add("read", [Kept("a"), Kept("b"), Dropped("grey")])
    step = funnel.spread("cut", {"left": 3, "right": 2})
    assert (step.rows, step.kept, step.how) == (2, 5, {"left": 3, "right": 2})
    funnel.counted("next", {"": 5})
    assert "| cut | 2 | 5 | 0 | 0 |" in funnel.to_markdown()
    with pytest.raises(AssertionError, match="lost or counted twice"):
        Step("cut", 2, 5)
    with pytest.raises(AssertionError, match="lost or counted twice"):
        Step("cut", 2, 5, dropped={"grey": 1}, spread=True)


def test_what_is_known_of_each_row_is_told_without_asking(tmp_path: Path) -> None:
    with FakeAPI(reply=says) as api:
        one = asker(api, tmp_path)
        assert stage().known(["sky"], one) == [None]
        assert not (tmp_path / "store.sqlite").exists()
        ran = stage().run(["sky", "road"], one)
        asked = api.stats.requests
        assert stage().known(["grass", "road", "sky"], one) == [None, ran[1], ran[0]]
        assert stage().known(["sky"], one, number=1) == [None]
        assert api.stats.requests == asked
