"""The labelling sheet in a headless Chromium: blind, by keyboard, remembered, saved, loaded, and inert."""

import html
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pair_sets import HOSTILE
from test_page import BROWSER, CONTRAST, NEEDS_AXE, Shown, axe, browser, trap  # noqa: F401  # two are fixtures

from xyreward.agreement import figures
from xyreward.annotate import Sheet, sheet
from xyreward.errors import DataError
from xyreward.items import Item
from xyreward.ratings import LABELS, read_answers
from xyreward.testing import make_item

Row = tuple[Mapping[str, Any], Item]
ENTER, BACKSPACE, ESCAPE = "\ue007", "\ue003", "\ue00c"


def rows(n: int = 6) -> list[Row]:
    """Answers 0..n-1, each to an item of its own; number 5 to a control."""
    found: list[Row] = []
    for i in range(n):
        kind = "control" if i == 5 else "xy"
        item = make_item(id=f"i{i}", query=f"query {i}", kind=kind)
        secret = {
            "policy": "model-secret",
            "judge": "judge-secret",
            "verdict": {"reason": "why-secret"},
        }
        found.append(({"item_id": f"i{i}", "answer": f"answer {i}", **secret}, item))
    return found


def data_of(text: str) -> dict[str, Any]:
    (found,) = re.findall(
        r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL
    )
    data: dict[str, Any] = json.loads(found)
    return data


def answers_of(made: Sheet) -> list[str]:
    return [unit["answer"] for unit in data_of(made.html)["units"]]


# ---------------------------------------------------------------- the file


def test_the_page_is_one_file_that_asks_for_nothing() -> None:
    text = sheet(rows()).html
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    policy = html.unescape(policy)
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    assert "http" not in policy
    assert set(re.findall(r'(?:src|href)="([^"]*)"', text)) == {"data:,", "#labels"}
    assert "@import" not in text
    assert "url(" not in text
    assert "innerHTML" not in text


def test_who_wrote_an_answer_and_what_a_judge_said_are_not_in_the_file() -> None:
    text = sheet(rows()).html
    assert "secret" not in text
    assert '"kind"' not in text
    assert "references" not in text


def test_the_order_is_drawn_by_the_seed_and_not_by_the_file() -> None:
    made = sheet(rows(40))
    order = answers_of(made)
    assert sorted(order) == sorted(f"answer {i}" for i in range(40))
    assert order != [f"answer {i}" for i in range(40)]
    assert sheet(rows(40)[::-1]).html == made.html
    other = sheet(rows(40), seed=1)
    assert answers_of(other) != order
    assert other.hash != made.hash


def test_answers_given_twice_are_there_once_and_empty_ones_not_at_all() -> None:
    some = rows()
    more: list[Row] = [some[0], ({"item_id": "i1", "answer": " \u200b\n"}, some[1][1])]
    made = sheet([*some, *more])
    assert (made.answers, made.repeated, made.empty) == (6, 1, 1)
    with pytest.raises(DataError, match="no answer to label"):
        sheet(more[1:])


def test_a_limit_draws_at_random_and_the_same_for_the_same_seed() -> None:
    some = answers_of(sheet(rows(40), limit=5))
    assert len(some) == 5
    assert some == answers_of(sheet(rows(40)))[:5]


def test_notes_can_be_left_out_and_then_nothing_tells_a_control() -> None:
    units = data_of(sheet(rows(), notes=False).html)["units"]
    assert all(unit["ask"] == list(LABELS) and unit["notes"] is None for unit in units)
    assert "metal tray" not in sheet(rows(), notes=False).html


def test_a_bare_query_is_saved_as_it_came() -> None:
    query = [{"role": "user", "content": "how?"}]
    made = sheet([({"query": query, "answer": "so"}, Item.of_query(query))])
    (unit,) = data_of(made.html)["units"]
    assert unit["row"] == {"query": query}
    assert unit["notes"] is None


def test_texts_neither_open_nor_close_an_element() -> None:
    text = sheet(hostile()).html
    assert text.count("<script") == 2
    assert text.count("</script") == 2
    assert "<img" not in text
    assert "<!--" not in text
    text.encode()


def hostile(*more: str) -> list[Row]:
    found: list[Row] = []
    for i, text in enumerate([*HOSTILE, *more]):
        item = make_item(
            id=f"{text[:100]}{i}", query=text, stated_request=text, intended_request=f"{text}!",
            misconception=text, stated_solutions=(text,), intended_solutions=(text, "other"),
        )  # fmt: skip
        found.append(({"item_id": item.id, "answer": f"{text} {i}"}, item))
    half = make_item(id="half")
    return [*found, ({"item_id": "half", "answer": "half a pair: \ud800"}, half)]


# ---------------------------------------------------------------- in a browser


class Open(Shown):
    """A sheet in the browser; it may hand a file to the user, which is a request to itself."""

    downloads: Path

    def label(self, keys: str) -> None:
        self.press(*keys)

    def saved(self) -> list[dict[str, Any]]:
        for old in self.downloads.glob("*"):
            old.unlink()
        self.press("d")
        end = time.monotonic() + 20
        while time.monotonic() < end:
            done = [f for f in self.downloads.glob("*.jsonl") if f.stat().st_size]
            if done:
                return [json.loads(line) for line in done[0].read_text("utf-8").split("\n") if line]
            time.sleep(0.05)
        raise AssertionError(f"nothing was saved: {self.text('#message')}")

    def load(self, path: Path) -> str:
        before = self.text("#message")
        self.browser.find_element("id", "load").send_keys(str(path))
        end = time.monotonic() + 10
        while self.text("#message") == before and time.monotonic() < end:
            time.sleep(0.05)
        return self.text("#message")

    def name(self, name: str) -> None:
        self.browser.find_element("id", "annotator").send_keys(name, ESCAPE)

    def check_quiet(self) -> None:
        assert self.browser.get_log("browser") == []
        assert self.run("return window.hacked") is None
        events = [json.loads(e["message"])["message"] for e in self.browser.get_log("performance")]
        asked = {
            e["params"]["request"]["url"]
            for e in events
            if e["method"] == "Network.requestWillBeSent"
        }
        assert {url for url in asked if not url.startswith("blob:")} <= {self.url}
        assert len(self.browser.window_handles) == 1


@pytest.fixture
def show(browser: Any, tmp_path: Path) -> Iterator[Callable[..., Open]]:  # noqa: F811
    shown: list[Open] = []
    downloads = tmp_path / "downloads"
    downloads.mkdir()
    browser.execute_cdp_cmd(
        "Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(downloads)}
    )

    def open_sheet(made: Sheet) -> Open:
        shown.append(Open(browser, tmp_path / "sheet.html", made.html))
        shown[-1].downloads = downloads
        return shown[-1]

    yield open_sheet
    for one in shown:
        one.check_quiet()
    browser.execute_script("localStorage.clear()")


def order_of(made: Sheet) -> list[int]:
    return [int(answer.split()[-1]) for answer in answers_of(made)]


@BROWSER
def test_an_answer_is_labelled_with_four_keys_and_enter_goes_on(show: Any) -> None:
    made = sheet(rows(5))
    seen = show(made)
    order = order_of(made)
    assert seen.text("#where") == "Answer 1 of 5"
    assert seen.text("#answer") == f"answer {order[0]}"
    assert seen.text("#query") == f"query {order[0]}"
    assert "Get up on time on Mondays." in seen.text("#notes")
    assert seen.text("fieldset[aria-current] legend") == "Stated solution"
    seen.label("yn")
    assert seen.text("fieldset[aria-current] legend") == "Focus"
    seen.label("nn")
    assert seen.count("fieldset[aria-current]") == 0
    assert seen.run("return [...document.querySelectorAll('input:checked')].map((e) => e.id)") == [
        "has_stated_solution-yes",
        "has_intended_solution-no",
        "focus-neither",
        "identifies_misconception-no",
    ]
    assert seen.text("#count") == "1 of 5"
    seen.press("y")  # all are set: a slip changes nothing
    assert seen.run("return document.getElementById('identifies_misconception-no').checked")
    seen.press(ENTER)
    assert seen.text("#answer") == f"answer {order[1]}"
    seen.press("j", "j", "j", "j", "j")
    assert seen.text("#where") == "Answer 5 of 5"
    seen.press("k")
    assert seen.text("#where") == "Answer 4 of 5"
    seen.press("x", "x")
    assert seen.text("#where") == "Answer 2 of 5"  # the first is done


@BROWSER
def test_the_last_label_can_be_taken_back_and_any_changed(show: Any) -> None:
    seen = show(sheet(rows(2)))
    seen.label("yyi")
    seen.press(BACKSPACE, BACKSPACE)
    assert seen.text("fieldset[aria-current] legend") == "Intended solution"
    seen.label("nb")
    seen.run("document.getElementById('has_stated_solution-no').click()")
    seen.label("y")
    seen.name("Ann")
    assert seen.saved()[0]["labels"] == {
        "has_stated_solution": False,
        "has_intended_solution": False,
        "focus": "balanced",
        "identifies_misconception": True,
    }


@BROWSER
def test_what_is_saved_goes_into_agree_and_can_be_loaded_elsewhere(
    show: Any, tmp_path: Path
) -> None:
    made = sheet(rows(6))
    order = order_of(made)
    seen = show(made)
    seen.press("d")
    assert seen.text("#message").startswith("Write your name first")
    assert seen.run("return document.activeElement.id") == "annotator"
    seen.press("A", "n", "n", ESCAPE)  # letters are a name here and no labels
    seen.press("d")
    assert seen.text("#message") == "There is no label to save yet."
    for number in order:
        seen.label("ysn" if number == 5 else "ynsn")  # the control has three questions
        seen.press(ENTER)
    saved = seen.saved()
    assert seen.text("#message") == "Saved labels of 6 answers."
    assert [row["item_id"] for row in saved] == [f"i{i}" for i in order]
    assert {row["annotator"] for row in saved} == {"Ann"}
    assert all(list(row["labels"]) == list(LABELS) for row in saved)
    control = next(row for row in saved if row["item_id"] == "i5")
    assert control["labels"]["has_intended_solution"] is True  # one request: its solution is both

    mine = tmp_path / "ann.jsonl"
    mine.write_text("".join(json.dumps(row) + "\n" for row in saved), "utf-8")
    judged = [
        {
            "item_id": f"i{i}",
            "answer": f"answer {i}",
            "judge": "j",
            "rubric_version": "r",
            "verdict": {
                "has_stated_solution": True,
                "has_intended_solution": i == 5,
                "focus": "stated" if i else "intended",
                "identifies_misconception": False,
            },
            "failure": None,
        }
        for i in range(6)
    ]
    verdicts = tmp_path / "v.jsonl"
    verdicts.write_text("".join(json.dumps(row) + "\n" for row in judged), "utf-8")
    found = {r.label: figures(r) for r in read_answers([mine, verdicts]).ratings()}
    for label, expected in zip(LABELS, (1, 1, 5 / 6, 1), strict=True):
        agreement = found[label].judges[0].mean
        assert agreement is not None
        assert agreement.value == pytest.approx(expected)
        assert agreement.n == 6

    seen.run("localStorage.clear()")
    again = show(made)
    assert again.text("#count") == "0 of 6"
    assert again.load(mine) == "Loaded labels of 6 answers."
    assert again.text("#count") == "6 of 6"
    assert again.run("return document.getElementById('annotator').value") == "Ann"
    assert again.saved() == saved


@BROWSER
def test_progress_is_remembered_by_sheet(show: Any) -> None:
    made = sheet(rows(4))
    seen = show(made)
    seen.name("Bo")
    seen.label("ynsn")
    seen.press(ENTER)
    seen.label("y")
    seen.press("g")
    seen.browser.refresh()
    assert seen.text("#where") == "Answer 2 of 4"
    assert seen.text("#count") == "1 of 4"
    assert seen.run("return document.getElementById('has_stated_solution-yes').checked")
    assert seen.run("return document.getElementById('notes').hidden")
    assert seen.run("return document.getElementById('annotator').value") == "Bo"
    saved = seen.saved()
    assert [len(row["labels"]) for row in saved] == [4, 1]
    assert "3 are without all of theirs" in seen.text("#message")
    other = show(sheet(rows(4), seed=9))
    assert other.text("#count") == "0 of 4"


@BROWSER
@pytest.mark.parametrize(
    "kept",
    [
        "{",
        "null",
        '"x"',
        "[1]",
        '{"at": 99, "labels": {"nobody": {"focus": "stated"}}, "annotator": 5}',
        '{"at": -1, "labels": [1, null]}',
    ],
)
def test_what_is_kept_and_makes_no_sense_is_no_obstacle(show: Any, kept: str) -> None:
    made = sheet(rows(3))
    seen = show(made)
    seen.run(
        "localStorage.setItem(arguments[0], arguments[1])", f"xyreward-sheet-{made.hash}", kept
    )
    seen.browser.refresh()
    assert seen.text("#where") == "Answer 1 of 3"
    assert seen.text("#count") == "0 of 3"
    seen.label("ynsn")
    assert seen.text("#count") == "1 of 3"


@BROWSER
def test_labels_off_the_menu_are_not_taken_from_a_file(show: Any, tmp_path: Path) -> None:
    made = sheet(rows(6))
    units = {unit["answer"]: unit["unit"] for unit in data_of(made.html)["units"]}
    seen = show(made)

    def load(*given: Any) -> str:
        path = tmp_path / "given.jsonl"
        path.write_text("\n".join(g if isinstance(g, str) else json.dumps(g) for g in given))
        return str(seen.load(path))

    def row(n: int, labels: Any, annotator: str = "Ann") -> dict[str, Any]:
        return {"unit": units[f"answer {n}"], "labels": labels, "annotator": annotator}

    assert load("no json").startswith("Not loaded: this is no file of labels")
    assert load({"unit": "other"}, 5).startswith("Not loaded: no row of this file is of this sheet")
    assert load(row(0, {}), row(1, {}, "Bo")) == (
        "Not loaded: these are the labels of Ann, Bo. Everybody has a file of their own."
    )
    bad = {"focus": "both", "has_stated_solution": "yes", "emphasis": True}
    good = {"focus": "neither", "has_stated_solution": 1, "identifies_misconception": False}
    control = {"focus": "intended", "has_intended_solution": True}
    told = load(row(0, bad), row(1, good), row(5, control), {"unit": "other"})
    assert told == "Loaded labels of 1 answer; 3 rows are not of this sheet or without labels."
    (saved,) = seen.saved()
    assert saved["labels"] == {"focus": "neither", "identifies_misconception": False}
    seen.run("document.getElementById('annotator').value = 'Cy'")
    assert "labels of Ann" in load(row(0, good))


@BROWSER
def test_a_control_offers_no_other_goal(show: Any) -> None:
    made = sheet(rows(6)[5:])
    seen = show(made)
    assert seen.count("fieldset") == 3
    assert seen.count("#focus-intended") == 0
    assert "What is asked, and wanted" in seen.text("#notes")
    seen.label("y")
    seen.press("i")  # not on the menu
    assert seen.text("fieldset[aria-current] legend") == "Focus"


@BROWSER
def test_hostile_answers_run_nothing_ask_for_nothing_and_are_saved_as_they_are(
    show: Any,
    trap: tuple[str, list[str]],  # noqa: F811
) -> None:
    url, calls = trap
    more = [
        f'<img src="{url}a"><link rel=stylesheet href="{url}b"><iframe src="{url}c"></iframe>',
        f"<script src={url}d></script><base href={url}><form action={url}e><button autofocus>",
        f"</title></style></textarea></noscript><script>fetch('{url}f')</script>",
    ]
    given = hostile(*more)
    made = sheet(given)
    seen = show(made)
    seen.name("<b>x</b>")
    texts: list[str] = []
    for unit in data_of(made.html)["units"]:
        texts.append(seen.run("return document.getElementById('answer').textContent"))
        assert texts[-1] == unit.get("shown", unit["answer"])
        assert seen.count("main :is(script, img, a, style, svg, iframe, link, base, b, meta)") == 0
        assert seen.count("form") == 1
        seen.label("y")
        seen.press("j")
    assert any("\\u202egpj.exe" in text for text in texts)
    assert any("\\x1b]8;;" in text for text in texts)
    assert not any("\u202e" in text or "\x1b" in text for text in texts)
    saved = seen.saved()
    assert sorted(row["answer"] for row in saved) == sorted(row["answer"] for row, _ in given)
    assert {row["annotator"] for row in saved} == {"<b>x</b>"}
    assert seen.count("body script") == 2
    assert calls == []


@BROWSER
def test_the_policy_stops_what_gets_into_the_page_in_spite_of_all(
    browser: Any,  # noqa: F811
    tmp_path: Path,
    trap: tuple[str, list[str]],  # noqa: F811
) -> None:
    url, calls = trap
    leaky = sheet(rows()).html.replace(
        "</main>", f"<script>window.hacked=1</script><img src='{url}y'></main>"
    )
    seen = Shown(browser, tmp_path / "leaky.html", leaky)
    assert seen.run("return window.hacked") is None
    assert calls == []
    with pytest.raises(AssertionError):
        seen.check_quiet()


@BROWSER
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_stand_out_from_their_ground(show: Any, scheme: str) -> None:
    seen = show(sheet(rows()))
    seen.browser.execute_cdp_cmd(
        "Emulation.setEmulatedMedia",
        {"features": [{"name": "prefers-color-scheme", "value": scheme}]},
    )
    dark = seen.run("return matchMedia('(prefers-color-scheme: dark)').matches")
    seen.label("yn")
    seen.run("document.getElementById('message').className = 'bad'")
    seen.run("document.getElementById('message').textContent = 'something'")
    ratios: Sequence[Any] = seen.run(CONTRAST)
    seen.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    assert dark is (scheme == "dark")
    assert len(ratios) > 30
    assert [r for r in ratios if r[0] < 4.5] == []  # WCAG 2.2, AA


@BROWSER
@NEEDS_AXE
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(show: Any, scheme: str) -> None:
    seen = show(sheet(rows()))
    seen.browser.execute_cdp_cmd(
        "Emulation.setEmulatedMedia",
        {"features": [{"name": "prefers-color-scheme", "value": scheme}]},
    )
    try:
        assert axe(seen.browser) == []
        seen.label("yn")
        assert axe(seen.browser) == []
    finally:
        seen.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


@BROWSER
def test_every_control_has_a_label_and_every_part_a_name(show: Any) -> None:
    seen = show(sheet(rows()))
    unnamed = seen.run("""
        const all = (what, named) =>
          [...document.querySelectorAll(what)].filter((e) => !named(e)).length;
        return all("input, progress", (e) => e.labels.length)
          + all("button", (e) => e.textContent.trim())
          + all("fieldset", (e) => e.querySelector("legend").textContent.trim())
          + all("[tabindex='0'], article, form", (e) => e.getAttribute("aria-label"));
    """)
    assert unnamed == 0
    ids = seen.run("return [...document.querySelectorAll('[id]')].map((e) => e.id)")
    assert len(ids) == len(set(ids))
    levels = seen.run(
        "return [...document.querySelectorAll('h1,h2,h3,h4')].map((e) => +e.tagName[1])"
    )
    assert levels[0] == 1
    assert all(b - a <= 1 for a, b in pairwise(levels))


@BROWSER
def test_a_narrow_window_has_no_sideways_scrolling(show: Any) -> None:
    seen = show(sheet(hostile("word" * 500)))
    seen.browser.set_window_size(500, 900)
    try:
        assert seen.run("return document.documentElement.scrollWidth - innerWidth") <= 0
    finally:
        seen.browser.set_window_size(1400, 1000)
