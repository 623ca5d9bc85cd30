"""The review page in a headless Chromium, and decisions applied to just the items that were shown."""

import html
import json
import re
import resource
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pair_sets import HOSTILE
from test_annotate import BACKSPACE, ENTER, ESCAPE, data_of, show  # noqa: F401  # a fixture
from test_cli import run as run
from test_page import BROWSER, CONTRAST, NEEDS_AXE, axe, browser, trap  # noqa: F401  # fixtures

from xyreward import load_items
from xyreward.construct.job import write_items
from xyreward.construct.review import (
    CHANGED,
    DIFFERING,
    UNDECIDED,
    Decision,
    ReviewPage,
    apply,
    item_hash,
    read_decisions,
    review_page,
)
from xyreward.errors import DataError
from xyreward.items import Item, Reference
from xyreward.testing import make_item

CONTROL = "\ue009"

META = {
    "gates": {"inference": [{"goal": "gate-secret", "same": True}]},
    "provenance": [{"model": "model-secret"}],
    "attribution": {
        "question": {
            "id": "5",
            "author": "Ada",
            "licence": "CC BY-SA 4.0",
            "link": "https://f.example/5",
        },
        "answers": [{"id": "7", "author": "Bo", "licence": "CC BY-SA 3.0"}],
    },
    "evidence": {
        "intended_solutions": [{"answer": "7", "quote": "sleep on time", "text": "Go to bed."}],
        "misconception": [{"place": "step 3", "quote": "it will not help"}],
    },
}


def items(n: int = 4) -> list[Item]:
    """Items 0..n-1; number 3 is a control."""
    return [
        make_item(id=f"i{i}", query=f"query {i}", kind="control" if i == 3 else "xy", meta=META)
        for i in range(n)
    ]


def order_of(made: ReviewPage) -> list[str]:
    return [unit["id"] for unit in data_of(made.html)["units"]]


# ---------------------------------------------------------------- the file


def test_the_page_is_one_file_that_asks_for_nothing() -> None:
    text = review_page(items()).html
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    policy = html.unescape(policy)
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    assert "http" not in policy
    assert set(re.findall(r'(?:src|href)="([^"]*)"', text)) == {"data:,", "#labels"}
    assert "@import" not in text
    assert "url(" not in text
    assert "innerHTML" not in text


def test_what_gates_and_judges_said_is_not_in_it_and_sources_and_licences_are() -> None:
    text = review_page(items()).html
    assert "secret" not in text
    for told in ("Ada", "CC BY-SA 4.0", "https://f.example/5", "sleep on time", "step 3"):
        assert told in text


def test_the_order_is_drawn_by_the_seed_and_not_by_the_file() -> None:
    made = review_page(items(30))
    assert sorted(order_of(made)) == sorted(f"i{i}" for i in range(30))
    assert order_of(made) != [f"i{i}" for i in range(30)]
    assert review_page(items(30)[::-1]).html == made.html
    assert order_of(review_page(items(30), seed=1)) != order_of(made)
    assert order_of(review_page(items(30), limit=5)) == order_of(made)[:5]


def test_a_page_needs_items_and_ids_that_differ() -> None:
    with pytest.raises(DataError, match="no item to review"):
        review_page([])
    with pytest.raises(DataError, match="item 'i0' is there twice"):
        review_page([*items(), items()[0]])


def hostile(*more: str) -> list[Item]:
    found = []
    for i, text in enumerate([*HOSTILE, *more]):
        meta = {
            "attribution": {text: {"author": text}},
            "evidence": {text: [{"quote": text, "answer": text}]},
        }
        reference = Reference(text=f"{text} r", kind="literal", author=text, licence=text)
        found.append(
            make_item(
                id=f"{text[:100]}{i}", query=text, stated_request=text, intended_request=f"{text}!",
                misconception=text, stated_solutions=(text,), intended_solutions=(text, "other"),
                references=(reference,), meta=meta,
            )
        )  # fmt: skip
    return [*found, make_item(id="half", query="half a pair: \ud800")]


def test_texts_neither_open_nor_close_an_element() -> None:
    text = review_page(hostile()).html
    assert text.count("<script") == 2
    assert text.count("</script") == 2
    assert "<img" not in text
    assert "<!--" not in text
    text.encode()


def test_a_hash_is_of_what_is_decided_about() -> None:
    item = make_item()
    assert item_hash(item) == item_hash(item.model_copy(update={"meta": {"date": "later"}}))
    for change in ({"misconception": "m"}, {"references": ()}, {"query": "q"}):
        assert item_hash(item.model_copy(update=change)) != item_hash(item)


# ---------------------------------------------------------------- in a browser


@BROWSER
def test_an_item_is_kept_edited_or_rejected_by_keys_and_what_is_saved_is_applied(
    show: Any,  # noqa: F811
    tmp_path: Path,
) -> None:
    made = review_page(items())
    order = order_of(made)
    at = {name: n for n, name in enumerate(order)}
    seen = show(made)
    assert seen.text("#where") == "Item 1 of 4"
    seen.press("d")
    assert seen.text("#message").startswith("Write your name first: it tells your decisions")
    seen.press("A", "n", "n", ESCAPE)
    seen.press("d")
    assert seen.text("#message") == "There is no decision to save yet."

    for name in order:
        assert seen.text("#field-query") == f"query {name[1]}"
        if name == "i0":
            seen.press("y", ENTER)
        elif name == "i1":
            seen.press("e")
            assert seen.text("#lacks") == "Nothing is edited yet."
            assert seen.run("return document.activeElement.id") == "field-query"
            seen.press(" ", "j", "y")  # letters are a text here
            assert seen.text("#lacks") == ""
            seen.press(ESCAPE)
            area = seen.browser.find_element("id", "field-references.1")
            area.clear()
            area.send_keys("Another answer.")
            area.send_keys(CONTROL, ENTER)
        elif name == "i2":
            seen.press("r")
            assert seen.text("#lacks") == "Say why it is rejected."
            seen.press("n", "o", ENTER)
        else:
            assert seen.count("#field-intended_request") == 0
            seen.press("y", ENTER)
    assert seen.text("#count") == "4 of 4"
    seen.press("x")
    assert seen.text("#message") == "All items have their decisions. Save them to a file."
    saved = seen.saved()
    assert seen.text("#message") == "Saved decisions of 4 items."
    by_id = {row["item_id"]: row for row in saved}
    assert [row["item_id"] for row in saved] == order
    assert {row["annotator"] for row in saved} == {"Ann"}
    assert {row["decision"] for row in saved if row["item_id"] in ("i0", "i3")} == {"keep"}
    assert by_id["i1"]["edits"] == {"query": "query 1 jy", "references.1": "Another answer."}
    assert by_id["i2"]["reason"] == "no"
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", by_id["i0"]["date"])

    mine = tmp_path / "ann.jsonl"
    mine.write_text("".join(json.dumps(row) + "\n" for row in saved), "utf-8")
    done = apply(items(), read_decisions([mine]))
    assert done.counts == {"keep": 2, "edit": 1, "reject": 1}
    assert done.unsettled == 0
    assert [item.id for item in done.kept] == ["i0", "i1", "i3"]
    edited = done.kept[1]
    assert edited.query == "query 1 jy"
    assert edited.references[1].text == "Another answer."
    assert edited.references[1].labels is None
    [review] = edited.meta["review"]
    assert review["annotator"] == "Ann"
    assert review["before"]["query"] == "query 1"
    assert done.left_out[0].meta["review"][0]["reason"] == "no"

    seen.run("localStorage.clear()")
    again = show(made)
    assert again.text("#count") == "0 of 4"
    assert again.load(mine) == "Loaded decisions of 4 items."
    assert again.text("#count") == "4 of 4"
    assert again.saved() == saved
    again.press("k", "k", "k", "k")
    for _ in range(at["i1"]):
        again.press("j")
    assert again.run("return document.getElementById('field-query').value") == "query 1 jy"
    assert again.count("h3.edited") == 2


@BROWSER
def test_decisions_are_remembered_and_taken_back_and_edits_survive_a_change_of_mind(
    show: Any,  # noqa: F811
) -> None:
    made = review_page(items(3))
    seen = show(made)
    seen.name("Bo")
    seen.press("e", " ", "x", ESCAPE, "y")
    assert seen.text("#field-query") == f"query {order_of(made)[0][1]}"  # as it is
    seen.press("j", "r", ESCAPE)
    seen.browser.refresh()
    assert seen.text("#where") == "Item 2 of 3"
    assert seen.text("#count") == "1 of 3"
    assert seen.run("return document.getElementById('annotator').value") == "Bo"
    assert seen.run("return document.getElementById('decision-reject').checked")
    seen.press(BACKSPACE)
    assert seen.count("#decision input:checked") == 0
    seen.press("k", "e", ESCAPE)
    assert seen.run("return document.getElementById('field-query').value").endswith(" x")
    (saved,) = seen.saved()
    assert saved["decision"] == "edit"
    assert "2 are without one" in seen.text("#message")


@BROWSER
def test_an_edit_that_changes_nothing_or_leaves_nothing_is_none(show: Any) -> None:  # noqa: F811
    made = review_page([make_item(query="two\r\nlines")])
    seen = show(made)
    seen.name("Cy")
    seen.press("e", "x")
    assert seen.text("#lacks") == ""
    area = seen.browser.find_element("id", "field-query")
    area.send_keys(BACKSPACE)
    assert seen.text("#lacks") == "Nothing is edited yet."
    area.clear()
    assert seen.text("#lacks").startswith("A field is empty")
    seen.press(ESCAPE, "d")
    assert seen.text("#message") == "There is no decision to save yet."


@BROWSER
@pytest.mark.parametrize(
    "kept",
    [
        "{",
        "null",
        "[1]",
        '{"at": 99, "decisions": {"nobody": {"decision": "keep"}}, "annotator": 5}',
        '{"at": -1, "decisions": [1, null]}',
    ],
)
def test_what_is_kept_and_makes_no_sense_is_no_obstacle(show: Any, kept: str) -> None:  # noqa: F811
    made = review_page(items(3))
    seen = show(made)
    seen.run(
        "localStorage.setItem(arguments[0], arguments[1])", f"xyreward-sheet-{made.hash}", kept
    )
    seen.browser.refresh()
    assert seen.text("#where") == "Item 1 of 3"
    seen.press("y")
    assert seen.text("#count") == "1 of 3"


@BROWSER
def test_decisions_about_other_texts_are_not_taken_from_a_file(
    show: Any,  # noqa: F811
    tmp_path: Path,
) -> None:
    made = review_page(items(2))
    units = {unit["id"]: unit for unit in data_of(made.html)["units"]}
    seen = show(made)

    def load(*given: Any) -> str:
        path = tmp_path / "given.jsonl"
        path.write_text("\n".join(g if isinstance(g, str) else json.dumps(g) for g in given))
        return str(seen.load(path))

    def row(name: str, **more: Any) -> dict[str, Any]:
        unit = units[name]
        base = {"unit": unit["unit"], "item_hash": unit["hash"], "annotator": "Ann"}
        return {**base, "decision": "keep", **more}

    assert load("no json").startswith("Not loaded: this is no file of decisions")
    assert load(row("i0"), row("i1", annotator="Bo")).startswith(
        "Not loaded: these are the decisions of"
    )
    told = load(row("i0", item_hash="other"), row("i1"), {"unit": "other"})
    assert told == "Loaded decisions of 1 item; 2 rows are not of this sheet or without decisions."
    assert seen.text("#count") == "1 of 2"
    strange = {"query": 5, "references.99": "x", "kind": "control", "misconception": "Other."}
    assert load(row("i0", decision="edit", edits=strange)) == "Loaded decisions of 1 item."
    saved = {r["item_id"]: r for r in seen.saved()}
    assert saved["i0"]["edits"] == {"misconception": "Other."}
    load(row("i0", decision="perhaps"))
    assert {r["item_id"]: r for r in seen.saved()} == saved


@BROWSER
def test_hostile_items_run_nothing_and_ask_for_nothing(
    show: Any,  # noqa: F811
    trap: tuple[str, list[str]],  # noqa: F811
) -> None:
    url, calls = trap
    more = [
        f'<img src="{url}a"><link rel=stylesheet href="{url}b"><iframe src="{url}c"></iframe>',
        f"<script src={url}d></script><base href={url}><form action={url}e><button autofocus>",
        f"</title></style></textarea></noscript><script>fetch('{url}f')</script>",
    ]
    given = hostile(*more)
    made = review_page(given)
    seen = show(made)
    seen.name("<b>x</b>")
    for unit in data_of(made.html)["units"]:
        query = unit["fields"][0]
        found = seen.run("return document.getElementById('field-query').textContent")
        assert found == query.get("shown", query["text"])
        assert seen.count("main :is(script, img, a, style, svg, iframe, link, base, b, meta)") == 0
        assert seen.count("form") == 1
        seen.press("e", ESCAPE)
        # As JSON, which has half a surrogate pair as an escape: the driver takes no other.
        value = seen.run("return JSON.stringify(document.getElementById('field-query').value)")
        assert json.loads(value) == query["text"].replace("\r\n", "\n").replace("\r", "\n")
        seen.press("y", "j")
    assert {row["item_id"] for row in seen.saved()} == {item.id for item in given}
    assert seen.count("body script") == 2
    assert calls == []


@BROWSER
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_stand_out_from_their_ground_and_everything_has_a_name(
    show: Any,  # noqa: F811
    scheme: str,
) -> None:
    seen = show(review_page(items()))
    seen.browser.execute_cdp_cmd(
        "Emulation.setEmulatedMedia",
        {"features": [{"name": "prefers-color-scheme", "value": scheme}]},
    )
    ratios: list[Any] = []
    for key in ("y", "e", "r"):
        seen.press(key, ESCAPE)
        ratios += seen.run(CONTRAST)
        unnamed = seen.run("""
            const all = (what, named) =>
              [...document.querySelectorAll(what)].filter((e) => !named(e)).length;
            return all("input, progress", (e) => e.labels.length)
              + all("textarea", (e) => document.getElementById(e.getAttribute("aria-labelledby")))
              + all("button", (e) => e.textContent.trim())
              + all("fieldset", (e) => e.querySelector("legend").textContent.trim())
              + all("article, form", (e) => e.getAttribute("aria-label"));
        """)
        assert unnamed == 0
        ids = seen.run("return [...document.querySelectorAll('[id]')].map((e) => e.id)")
        assert len(ids) == len(set(ids))
        levels = seen.run(
            "return [...document.querySelectorAll('h1,h2,h3,h4')].map((e) => +e.tagName[1])"
        )
        assert levels[0] == 1
        assert all(b - a <= 1 for a, b in pairwise(levels))
    seen.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    assert len(ratios) > 30
    assert [r for r in ratios if r[0] < 4.5] == []  # WCAG 2.2, AA


@BROWSER
@NEEDS_AXE
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(show: Any, scheme: str) -> None:  # noqa: F811
    seen = show(review_page(items()))
    seen.browser.execute_cdp_cmd(
        "Emulation.setEmulatedMedia",
        {"features": [{"name": "prefers-color-scheme", "value": scheme}]},
    )
    try:
        assert axe(seen.browser) == []
        for key in ("y", "e", "r"):
            seen.press(key, ESCAPE)
            assert axe(seen.browser) == []
    finally:
        seen.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


@BROWSER
def test_a_narrow_window_has_no_sideways_scrolling(show: Any) -> None:  # noqa: F811
    seen = show(review_page(hostile("word" * 500)))
    seen.browser.set_window_size(500, 900)
    try:
        for key in ("y", "e"):
            seen.press(key, ESCAPE)
            assert seen.run("return document.documentElement.scrollWidth - innerWidth") <= 0
    finally:
        seen.browser.set_window_size(1400, 1000)


@BROWSER
def test_of_a_conversation_the_query_is_shown_and_not_edited(show: Any) -> None:  # noqa: F811
    query = [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Yes?"},
        {"role": "user", "content": "How?"},
    ]
    seen = show(review_page([make_item(query=query)]))
    assert seen.text("#field-query").split() == [
        "user",
        "Hello",
        "assistant",
        "Yes?",
        "user",
        "How?",
    ]
    seen.press("e", ESCAPE)
    assert seen.count("textarea#field-query") == 0
    assert seen.count("textarea#field-misconception") == 1


# ---------------------------------------------------------------- applying


def decision(item: Item, what: Any = "keep", **more: Any) -> Decision:
    more = {"reason": "no" if what == "reject" else "", **more}
    return Decision(item_id=item.id, item_hash=item_hash(item), decision=what, **more)


def test_nothing_is_lost_and_what_was_not_decided_about_this_text_is_left_as_it_is() -> None:
    given = items(5)
    changed = given[1].model_copy(update={"misconception": "Something else."})
    done = apply(
        given,
        [
            decision(given[0], annotator="ann"),
            decision(changed, "reject"),
            decision(given[3], annotator="ann"),
            decision(given[3], "reject", annotator="bo"),
            decision(given[4], annotator="ann"),
            decision(given[4], annotator="bo"),
            decision(make_item(id="gone")),
        ],
    )
    assert done.counts == {"keep": 2, CHANGED: 1, UNDECIDED: 1, DIFFERING: 1}
    assert done.unknown == ("gone",)
    assert done.unsettled == 4
    assert [item.id for item in done.kept] == ["i0", "i4"]
    assert [item.id for item in done.left_out] == ["i1", "i2", "i3"]
    assert len(done.kept) + len(done.left_out) == len(given)
    assert [one["annotator"] for one in done.kept[1].meta["review"]] == ["ann", "bo"]
    assert done.left_out[0].model_copy(update={"meta": META}) == given[1]
    assert [item.meta["review"][-1]["decision"] for item in done.left_out] == [
        CHANGED,
        UNDECIDED,
        "reject",
    ]


def test_a_decision_without_a_hash_is_about_the_item_as_it_is(tmp_path: Path) -> None:
    given = items()
    rows = [
        {"item_id": "i0", "decision": "keep"},
        {"item_id": "i1", "decision": "reject", "reason": "unclear"},
        {"item_id": "i2", "decision": "edit", "edits": {"query": "Other?"}, "annotator": "Ann"},
        {"item_id": "i3", "item_hash": "0" * 16, "decision": "keep"},
    ]
    path = tmp_path / "d.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = apply(given, read_decisions([path]))
    assert done.counts == {"keep": 1, "reject": 1, "edit": 1, CHANGED: 1}
    assert [item.query for item in done.kept] == ["query 0", "Other?"]
    # One with a hash and one without are about the same text.
    twice = [Decision(item_id="i0", decision="keep"), decision(given[0], "reject")]
    assert apply(given[:1], twice).counts == {DIFFERING: 1}


def test_an_edit_of_a_control_keeps_its_two_requests_one() -> None:
    item = items()[3]
    [edited] = apply([item], [decision(item, "edit", edits={"stated_request": "New."})]).kept
    assert edited.stated_request == edited.intended_request == "New."


@pytest.mark.parametrize(
    ("number", "edits", "says"),
    [
        (0, {"query": " "}, "query is blank"),
        (0, {"references.7": "x"}, "'references.7' is no field of it"),
        (0, {"kind": "control"}, "'kind' is no field of it"),
        (3, {"misconception": "x"}, "'misconception' is no field of it"),
        (0, {"stated_request": "x", "intended_request": " x"}, "no goal is hidden; reject it"),
    ],
)
def test_an_edit_that_makes_no_item_is_an_error(number: int, edits: Any, says: str) -> None:
    item = items()[number]
    with pytest.raises(DataError, match=f"item 'i{number}': .*{says}"):
        apply(items(), [decision(item, "edit", edits=edits)])


@pytest.mark.parametrize("decision", ["keep", "reject"])
def test_what_stands_where_earlier_decisions_do_and_is_none_is_named(decision: Any) -> None:
    one, *others = items(3)
    odd = one.model_copy(update={"meta": {"review": "by Ann"}})
    made = Decision(item_id="i0", decision=decision, reason="x")
    with pytest.raises(DataError, match=r"item 'i0': meta.review is 'by Ann', expected a list"):
        apply([odd, *others], [made])


def test_rows_that_are_no_decision_are_named_all_at_once(tmp_path: Path) -> None:
    good = decision(items()[0]).model_dump_json()
    bad = [
        "{",
        json.dumps({**json.loads(good), "decision": "perhaps"}),
        json.dumps({**json.loads(good), "mood": "good"}),
        json.dumps({**json.loads(good), "decision": "reject"}),
        json.dumps({**json.loads(good), "decision": "edit"}),
        json.dumps({**json.loads(good), "edits": {"query": "x"}}),
        json.dumps({**json.loads(good), "decision": "edit", "edits": {"query": "\ud83d"}}),
        "[]",
    ]
    path = tmp_path / "d.jsonl"
    path.write_text("\n".join([good, *bad]))
    with pytest.raises(DataError) as caught:
        read_decisions([path, tmp_path / "none.jsonl"])
    assert len(caught.value.problems) == len(bad) + 1
    for n, says in enumerate(
        [
            "no JSON",
            "decision: ",
            "mood: ",
            "reject without a reason",
            "edit with 0",
            "keep with 1",
            "has half a surrogate pair",
        ],
        2,
    ):
        assert any(f"line {n}: {says}" in one for one in caught.value.problems), says


# ---------------------------------------------------------------- the command


def test_the_commands_make_a_page_and_apply_and_never_overwrite(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given = items()
    write_items(Path("items.jsonl"), given)
    made = run("build", "review", "items.jsonl", "--out", "pages/review.html")
    assert (made.status, made.out[:17]) == (0, "4 items to review"), made.err
    units = data_of(Path("pages/review.html").read_text("utf-8"))["units"]
    again = run("build", "review", "items.jsonl", "--out", "pages/review.html")
    assert (again.status, "pages/review.html" in again.err) == (2, True)

    rows = [
        {"item_id": u["id"], "item_hash": u["hash"], "decision": "keep", "annotator": "Ann"}
        for u in units[:3]
    ]
    Path("d.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = run("build", "apply", "items.jsonl", "d.jsonl", "--out", "reviewed.jsonl")
    assert done.status == 1  # one has no decision
    assert "3 items in reviewed.jsonl, 1 in reviewed.left_out.jsonl" in done.out
    assert "no decision: 1" in done.out
    kept, left = load_items("reviewed.jsonl"), load_items("reviewed.left_out.jsonl")
    assert {item.id for item in [*kept, *left]} == {item.id for item in given}
    before = Path("reviewed.jsonl").read_bytes()
    second = run("build", "apply", "items.jsonl", "d.jsonl", "--out", "reviewed.jsonl")
    assert (second.status, "reviewed.jsonl" in second.err) == (2, True)
    assert Path("reviewed.jsonl").read_bytes() == before

    Path("d.jsonl").write_text('{"item_id": "i0"}\n')
    wrong = run("build", "apply", "items.jsonl", "d.jsonl", "--out", "other.jsonl")
    assert (wrong.status, "d.jsonl line 1: " in wrong.err) == (2, True)
    assert not Path("other.jsonl").exists()


def test_a_start_that_is_stopped_between_its_two_files_is_gone_on_with(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_items(Path("items.jsonl"), items(3))
    rows = [{"item_id": f"i{n}", "decision": "keep"} for n in (0, 2)]
    Path("d.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    apply_to = ("build", "apply", "items.jsonl", "d.jsonl", "--out")
    assert run(*apply_to, "whole.jsonl").status == 1  # one has no decision
    # What cannot be written ends it as a kill would: the second file is longer than the first.
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(
        resource.RLIMIT_FSIZE, (Path("whole.left_out.jsonl").stat().st_size, limit[1])
    )
    try:
        full = run(*apply_to, "part.jsonl")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert full.status not in (0, 1)
    assert len(full.err.splitlines()) == 1
    assert not list(Path().glob(".*"))
    assert Path("part.left_out.jsonl").exists()
    assert not Path("part.jsonl").exists()
    again = run(*apply_to, "part.jsonl")
    assert "2 items in part.jsonl, 1 in part.left_out.jsonl" in again.out
    for name in ("", ".left_out"):
        same = Path(f"whole{name}.jsonl").read_bytes()
        assert Path(f"part{name}.jsonl").read_bytes() == same
    # What another command has left there stays.
    Path("part.jsonl").unlink()
    Path("d.jsonl").write_text(json.dumps(rows[0]) + "\n")
    other = run(*apply_to, "part.jsonl")
    assert (other.status, "part.left_out.jsonl: exists" in other.err) == (2, True)
    assert not Path("part.jsonl").exists()
