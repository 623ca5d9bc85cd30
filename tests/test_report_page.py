"""report.html in a headless Chromium: figures and answers are there, and nothing in them runs or leaks."""

import html
import json
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from pair_sets import HOSTILE
from rows import DIRECT, GOAL, LITERAL, REFUSAL, evaluation, failed, row
from test_page import BROWSER, CONTRAST, NEEDS_AXE, Shown, axe, browser, trap  # noqa: F401  # two are fixtures

from xyreward.evaluation import Evaluation, Row
from xyreward.items import Item
from xyreward.policy import LogProb
from xyreward.report import build_report, to_markdown
from xyreward.report_page import MAX_TEXT, write_page
from xyreward.report_tables import tables
from xyreward.runs import RunFolder
from xyreward.testing import make_item
from xyreward.verdict import Labels

P = {
    "has_stated_solution": 0.25,
    "has_intended_solution": 0.5,
    "identifies_misconception": 0.125,
    "focus": {"stated": 0.4, "intended": 0.3, "balanced": 0.2, "neither": 0.1},
}


def items() -> list[Item]:
    """Six with a hidden goal, of two sources and languages, and two controls."""
    return [
        make_item(
            id=f"i{i}", query=f"query {i}", kind="control" if i > 5 else "xy",
            source="forum" if i % 2 else "mini", language="de" if i == 1 else "en",
        )
        for i in range(8)
    ]  # fmt: skip


def answered(item: Item, labels: Labels | None, text: str, **fields: Any) -> Row:
    known: dict[str, Any] = {"verdict": {**asdict(labels), "p": P}} if labels else {}
    return row(
        item.id, labels, item.kind,
        **{
            "source": item.source, "language": item.language, "answer": text,
            "answer_tokens": 3, "truncated": False, "reward": 0.0 if labels == LITERAL else 1.0,
            "soft_reward": 0.25 if labels == LITERAL else 0.75, "picked": 0.5, "picked_first": 0.5,
            "pick_margin": 0.1, "better": LogProb(-10, 10), "worse": LogProb(-12, 10), **known, **fields,
        },
    )  # fmt: skip


def two() -> dict[str, Evaluation]:
    """Before: all literal. After: i0 and i1 are goal-focused, i2 a refusal, i3 failed, i4 empty."""
    before = [
        answered(item, DIRECT if item.kind == "control" else LITERAL, f"old words of {item.id}")
        for item in items()
    ]
    labels = [GOAL, GOAL, REFUSAL, None, REFUSAL, LITERAL, DIRECT, DIRECT]
    after = [
        answered(item, one, f"new words of {item.id}")
        for item, one in zip(items(), labels, strict=True)
    ]
    quoted = [
        {"quote": "new “words”…i0", "serves": "intended", "reason": "It helps."},
        {"quote": "not there", "serves": "stated", "reason": ""},
    ]
    assert after[0].verdict is not None
    after[0] = replace(
        after[0], verdict={**after[0].verdict, "suggestions": quoted, "reason": "Why so."}
    )
    after[3] = failed("i3", source="forum", answer="new words of i3", better=None, worse=None)
    after[4] = replace(after[4], answer="")
    return {"before": evaluation(*before), "after": evaluation(*after, policy="q")}


def written(
    folder: Path,
    evaluations: Mapping[str, Evaluation] | None = None,
    known: Sequence[Item] | None = None,
    change: Callable[[dict[str, Any]], object] | None = None,
    **fields: Any,
) -> str:
    evaluations = two() if evaluations is None else evaluations
    first = {name: e for name, e in evaluations.items() if name in ("before", "after")}
    report = build_report(*first.values())
    if change:
        change(report)
    write_page(folder, report, evaluations, items() if known is None else known, **fields)
    return (folder / "report.html").read_bytes().decode()


def data_of(text: str, name: str = "data") -> Any:
    (found,) = re.findall(
        rf'<script type="application/json" id="{name}">(.*?)</script>', text, re.DOTALL
    )
    return json.loads(found)


# ---------------------------------------------------------------- the file


def test_the_page_is_one_file_that_asks_for_nothing(tmp_path: Path) -> None:
    text = written(tmp_path)
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    policy = html.unescape(policy)
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    assert "dynamic" not in policy
    assert "http" not in policy
    assert set(re.findall(r'(?:src|href)="([^"]*)"', text)) == {"data:,", "#answers"}
    assert "@import" not in text
    assert set(re.findall(r"url\(([^)]*)\)", text)) <= {"#goals-hatch", "#picking-hatch"}
    assert {p.name for p in tmp_path.iterdir()} == {"report.html", "figures"}


def test_the_same_run_gives_the_same_page(tmp_path: Path) -> None:
    assert written(tmp_path / "a") == written(tmp_path / "b")


def test_a_run_folder_gets_the_page_and_loses_data_of_an_earlier_one(tmp_path: Path) -> None:
    written(tmp_path, max_bytes=0)
    assert (tmp_path / "report_data/part-0.js").is_file()
    (tmp_path / "report_data/part-7.js").touch()
    (tmp_path / "report_data/notes.txt").touch()
    written(tmp_path, max_bytes=0)
    names = {p.name for p in (tmp_path / "report_data").iterdir()}
    assert names == {"part-0.js", "notes.txt"}
    (tmp_path / "report_data/notes.txt").unlink()
    report = build_report(two()["before"])
    files = write_page(RunFolder(tmp_path), report, {"before": two()["before"]})
    assert files[0] == tmp_path / "report.html"
    assert not (tmp_path / "report_data").exists()


def hostile() -> tuple[dict[str, Evaluation], list[Item]]:
    """Every hostile text in every place that data can reach."""
    known, rows = [], []
    for i, text in enumerate([*HOSTILE, "x" * 30_000, "word " * 3_000]):
        name = f"{text[:100]}{i}"
        known.append(
            make_item(
                id=name, query=text, source=text[:100], stated_request=text, misconception=text,
                stated_solutions=(text,),
            )
        )  # fmt: skip
        verdict = {
            **asdict(GOAL), "reason": text, "flags": [text[:100]],
            "suggestions": [{"quote": text, "serves": "both", "reason": text}],
        }  # fmt: skip
        fields: dict[str, Any] = {
            "source": text[:100],
            "domain": text[:100],
            "language": text[:20],
            "answer": text,
        }
        rows.append(row(name, GOAL, **fields, soft_reward=0.5))
        rows[-1] = replace(rows[-1], verdict=verdict)
        if i % 3 == 2:
            failure = {"kind": "unparseable", "detail": text, "raw_text": text}
            rows[-1] = replace(rows[-1], verdict=None, failure=failure)
    one = evaluation(*rows, policy="".join(HOSTILE), judge=HOSTILE[0], rubric_version=HOSTILE[1])
    again = [replace(r, answer=f"{r.answer} again") for r in rows]
    return {"before": one, "after": replace(one, rows=tuple(again))}, known


def poisoned(report: dict[str, Any]) -> None:
    report["facts"] = dict(zip(HOSTILE, HOSTILE, strict=True))
    report["notes"] = list(HOSTILE)


def test_texts_of_the_data_neither_open_nor_close_an_element(tmp_path: Path) -> None:
    text = written(tmp_path, *hostile(), change=poisoned)
    assert text.count("<script") == 3  # the index, the script, one part
    assert text.count("</script") == 3
    assert "<img" not in text
    assert "<!--" not in text
    assert all(c.isprintable() or c in "\n\t\u2028\u2029" for c in text)
    for figure in (tmp_path / "figures").glob("*.svg"):
        assert "<script" not in figure.read_text()


def test_half_a_surrogate_pair_is_no_obstacle(tmp_path: Path) -> None:
    one = evaluation(row("\ud800", GOAL, answer="\udfff"))
    assert "\\\\udfff" in written(tmp_path, {"before": one})


def test_rewards_of_0_and_1_answers_that_were_cut_and_missing_rows_survive(tmp_path: Path) -> None:
    evaluations = two()
    rows = list(evaluations["after"].rows)
    rows[0] = replace(rows[0], truncated=True)
    oracle = replace(evaluations["after"], rows=tuple(rows[:1]))
    text = written(tmp_path, {**evaluations, "after.oracle": oracle})
    entries = data_of(text, "part-0")
    assert entries[0]["answers"][0]["reward"] == 0
    assert entries[0]["answers"][1]["reward"] == 1
    assert entries[0]["answers"][2]["truncated"] is True
    assert entries[1]["answers"][2] is None
    assert data_of(text)["names"] == ["before", "after", "after, told the goal"]
    assert data_of(text)["codes"][2][1] == -1


def test_a_kind_of_failure_that_no_judge_has_is_shown_as_well(tmp_path: Path) -> None:
    one = replace(failed("i0"), failure={"kind": "policy_timeout", "detail": "late"})
    found = data_of(written(tmp_path, {"before": evaluation(one, failed("i1"), row("i2", GOAL))}))
    assert found["failures"] == ["policy_timeout", "timeout"]
    assert found["codes"][0][:2] == [-3, -4]


def test_intervals_over_few_clusters_are_named_below_the_figures(tmp_path: Path) -> None:
    text = written(tmp_path)
    assert (
        "fewer than 20 clusters (items with a hidden goal: 3 to 5, controls: 2, all items: 7 to 8)"
        in text
    )


def test_a_long_text_is_cut(tmp_path: Path) -> None:
    text = written(tmp_path, {"before": evaluation(row("i0", GOAL, answer="x" * 1_000_000))})
    assert len(data_of(text, "part-0")[0]["answers"][0]["text"]) == MAX_TEXT
    assert data_of(text)["lengths"] == [[1_000_000]]


@pytest.mark.parametrize(
    ("quote", "marked"),
    [
        ("Open the *Window* at night", ["Open the window\nat night"]),
        ("open … night", ["Open", "night"]),
        ("at night \U0001f319, then", ["at night \\u200b\U0001f319, then"]),
        ("then close", []),  # is not there in one piece
        ("never", []),
        ("...", []),
    ],
)
def test_a_quote_is_found_by_its_words_in_the_text_as_it_is_shown(
    tmp_path: Path, quote: str, marked: list[str]
) -> None:
    answer = "Open the window\nat night \u200b\U0001f319, then all day close it."
    one = row("i0", GOAL, answer=answer)
    assert one.verdict is not None
    suggestion = {"quote": quote, "serves": "both", "reason": ""}
    one = replace(one, verdict={**one.verdict, "suggestions": [suggestion]})
    cell = data_of(written(tmp_path, {"before": evaluation(one)}), "part-0")[0]["answers"][0]
    units = cell["text"].encode("utf-16-le")
    spans = cell["suggestions"][0]["spans"]
    assert [units[2 * a : 2 * b].decode("utf-16-le") for a, b in spans] == marked


# ---------------------------------------------------------------- in a browser


class Open(Shown):
    def listed(self) -> list[str]:
        found: list[str] = self.run(
            "return [...document.querySelectorAll('.entry')].sort((a, b) => a.ariaPosInSet - b.ariaPosInSet)"
            ".map((e) => e.querySelector('span').textContent)"
        )
        return found

    def current(self) -> str:
        return self.text("#answer h3")

    def until(self, script: str) -> None:
        from selenium.common.exceptions import JavascriptException
        from selenium.webdriver.support.wait import WebDriverWait

        # A page that is still loading does not have the elements that the script asks about.
        wait = WebDriverWait(self.browser, 20, 0.05, ignored_exceptions=[JavascriptException])
        wait.until(lambda _: self.run(f"return {script}"))

    def search(self, text: str) -> None:
        self.choose("search", text)
        self.until("!document.getElementById('list').hasAttribute('aria-busy')")


Show = Callable[..., Open]


@pytest.fixture
def show(browser: Any, tmp_path: Path) -> Iterator[Show]:  # noqa: F811
    shown: list[Open] = []

    def open_page(*arguments: Any, **fields: Any) -> Open:
        text = written(tmp_path, *arguments, **fields)
        shown.append(Open(browser, tmp_path / "report.html", text))
        shown[-1].until("document.querySelector('#answer h3, #answer p')")
        return shown[-1]

    yield open_page
    for one in shown:
        one.check_quiet()


@BROWSER
def test_two_answers_are_shown_side_by_side_with_labels_that_changed(show: Show) -> None:
    seen = show()
    assert seen.listed() == [f"i{i}" for i in range(8)]
    assert seen.current() == "i0"
    assert seen.text("#answer .prompt").strip() == "query 0"
    before, after = (f"#answer .side:nth-child({n})" for n in (1, 2))
    for words in (
        "before",
        "soft reward 0.25",
        "✓ stated solution",
        "focus: stated",
        "old words of i0",
    ):
        assert words in seen.text(before)
    for words in (
        "after", "soft reward 0.75", "✗ no stated solution (was yes)", "✓ intended solution (was no)",
        "focus: intended (was stated)", "✓ misconception identified (was no)", "new words of i0",
        "stated 0.25, intended 0.5, misconception 0.125, this focus 0.3", "Why so.",
        "in one of two orders, margin 0.1 nats", "the goal-focused answer by 0.2 nats per token",
    ):  # fmt: skip
        assert words in seen.text(after)
    seen.press("j", "j", "j")
    assert "No verdict, timeout: late" in seen.text(after)
    seen.press("j")
    assert "An empty answer." in seen.text(after)
    seen.press("j", "j")
    assert "✗ no misconception invented" in seen.text(after)  # of a control


@BROWSER
def test_suggestions_are_marked_by_what_they_serve(show: Show) -> None:
    seen = show()
    marks = seen.run(
        "return [...document.querySelectorAll('#answer .text mark')].map((e) => [e.className, e.textContent])"
    )
    assert marks == [["serves-intended", "new words"], ["serves-intended", "i0"]]
    listed = seen.text("#answer .suggestions")
    assert "serves the intended request It helps." in listed
    assert "serves the stated request “not there”" in listed
    assert seen.text("#answer .text sup") == "1"


@BROWSER
def test_filters_choose_answers_and_say_how_many(show: Show) -> None:
    seen = show()
    assert seen.text("#count") == "8 of 8"
    for name, value, expected in (
        ("source", "forum", "i1 i3 i5 i7"),
        ("language", "de", "i1"),
        ("kind", "control", "i6 i7"),
        ("state", "failed: timeout", "i3"),
        ("intended", "yes", "i0 i1 i6 i7"),
        ("stated", "no", "i0 i1 i2 i4"),
        ("focus", "neither", "i2 i4"),
        ("steers", "yes", "i0 i1"),
        ("change", "gains intended solution", "i0 i1"),
        ("change", "loses stated solution", "i0 i1 i2 i4"),
        ("change", "no label", "i5 i6 i7"),
        ("order", "lowest soft reward first", "i5 i0 i1 i2 i4 i6 i7 i3"),
        ("order", "shortest answer first", "i4 i0 i1 i2 i3 i5 i6 i7"),
    ):
        seen.choose(name, value)
        assert seen.listed() == expected.split(), (name, value)
        seen.run("document.getElementById('reset').click()")
        assert len(seen.listed()) == 8
    seen.choose("shown", "0")
    seen.choose("other", "-1")
    assert seen.count("#answer .side") == 1
    assert "old words" in seen.text("#answer .side")
    seen.choose("intended", "no")
    assert seen.listed() == ["i0", "i1", "i2", "i3", "i4", "i5"]
    # One value only: nothing to choose.
    assert seen.run("return document.querySelector('[for=filter-domain]').hidden")


@BROWSER
def test_the_search_reads_questions_answers_reasons_and_ids(show: Show) -> None:
    seen = show()
    for wanted, expected in (
        ("QUERY 3", "i3"), ("words of i2", "i2"), ("why so", "i0"), ("late", "i3"), ("I7", "i7"),
        ("nowhere", ""),
    ):  # fmt: skip
        seen.search(wanted)
        assert seen.listed() == expected.split(), wanted
    assert seen.text("#answer") == "No answer is left. Widen the choice above."
    assert seen.text("#count") == "0 of 8"


@BROWSER
def test_differences_are_marked_by_words_and_keep_the_texts(show: Show) -> None:
    seen = show()
    seen.press("d")
    seen.until("document.querySelector('#answer del')")
    assert seen.text("#answer del") == "old"
    assert seen.text("#answer ins") == "new"
    assert seen.text("#answer .side:nth-child(1) .text") == "old words of i0"
    assert seen.text("#answer .side:nth-child(2) .text") == "new words of i0"
    assert seen.run("return document.getElementById('differences').ariaPressed") == "true"
    seen.press("d")
    seen.until("!document.querySelector('#answer del')")


@BROWSER
def test_all_of_two_unlike_texts_is_different(show: Show) -> None:
    evaluations = two()
    rows = list(evaluations["after"].rows)
    texts = [" ".join(f"{word}{i}" for i in range(4_000)) for word in ("left", "right")]
    old = list(evaluations["before"].rows)
    old[0], rows[0] = (
        replace(old[0], answer=texts[0][:19_000]),
        replace(rows[0], answer=texts[1][:19_000]),
    )
    seen = show(
        {
            "before": replace(evaluations["before"], rows=tuple(old)),
            "after": replace(evaluations["after"], rows=tuple(rows)),
        }
    )
    seen.press("d")
    seen.until("document.querySelector('#answer del')")
    assert seen.text("#answer del") == texts[0][:19_000]
    assert seen.text("#answer ins") == texts[1][:19_000]


@BROWSER
def test_what_is_not_marked_as_different_is_the_same_in_both_texts(show: Show) -> None:
    rng = random.Random(0)

    def soup() -> str:
        return " ".join(
            rng.choices(["night air", "is dry,", "open", "windows.\n", "雨が", "😀"], k=9)
        )

    texts = [(soup(), soup()) for _ in range(25)]
    sides = [
        evaluation(*(row(f"i{i}", GOAL, answer=a) for i, a in enumerate(s)))
        for s in zip(*texts, strict=True)
    ]
    seen = show(dict(zip(("before", "after"), sides, strict=True)), [])
    seen.press("d")
    seen.until("document.querySelector('#answer del')")
    marked = 0
    for i, pair in enumerate(texts):
        seen.until(f"document.querySelector('#answer h3').textContent === 'i{i}'")
        whole, same = seen.run("""
            const boxes = [...document.querySelectorAll('#answer .side .text')];
            const same = boxes.map((box) => [...box.childNodes].filter((n) => n.nodeType === 3));
            const joined = same.map((nodes) => nodes.map((n) => n.data).join(''));
            return [boxes.map((box) => box.textContent), joined];
        """)
        assert tuple(whole) == pair
        assert same[0] == same[1]
        marked += same[0] != pair[0]
        seen.press("j")
    assert marked > 20


def many(n: int) -> dict[str, Evaluation]:
    return {"before": evaluation(*(row(f"i{i}", GOAL, answer=f"answer {i}") for i in range(n)))}


@BROWSER
def test_the_keyboard_goes_through_a_long_list_of_which_little_exists(show: Show) -> None:
    seen = show(many(5_000), [])
    assert "not in the run folder" in seen.text("#answer")
    assert seen.count(".entry") < 60
    seen.press("j", "j", "k", "j")
    assert seen.current() == "i2"
    seen.press("k", "k", "k", "k")
    assert seen.current() == "i0"
    seen.run("document.getElementById('list').focus()")
    seen.press("\ue010")  # end
    seen.until("document.querySelector('#answer h3').textContent === 'i4999'")
    assert seen.count(".entry") < 60
    active = "document.getElementById(document.getElementById('list').getAttribute('aria-activedescendant'))"
    assert seen.run(f"return {active}.ariaSelected") == "true"
    assert seen.run(f"return {active}.ariaPosInSet") == "5000"
    seen.press("\ue013")  # up
    assert seen.current() == "i4998"
    seen.press("\ue00e")  # page up
    assert seen.current() < "i4998"
    seen.press("\ue011")  # home
    assert seen.current() == "i0"
    seen.press("/", "j", "d")
    assert seen.run("return document.activeElement.id") == "filter-search"
    assert seen.run("return document.activeElement.value") == "jd"
    seen.until("document.getElementById('list').hidden")
    seen.press("\ue00c", "j")  # escape
    seen.until("!document.getElementById('list').hidden")
    assert seen.current() == "i1"
    seen.run("document.getElementById('list').scrollTop = 62 * 2500")
    seen.until(
        "[...document.querySelectorAll('.entry')].some((e) => e.textContent.includes('i2505'))"
    )


@BROWSER
def test_an_address_names_what_is_shown(show: Show, browser: Any) -> None:  # noqa: F811
    seen = show()
    seen.press("j", "j")
    seen.until("location.hash === '#item=i2'")
    browser.get("about:blank")
    browser.get(f"{seen.url}#item=i5")
    seen.until("document.querySelector('#answer h3').textContent === 'i5'")
    browser.get(f"{seen.url}#item=%3Cscript%3E")
    seen.until("document.querySelector('#answer h3').textContent === 'i5'")


@BROWSER
def test_answers_that_are_too_many_lie_beside_the_page_and_come_when_asked_for(
    browser: Any,  # noqa: F811
    tmp_path: Path,
) -> None:
    long = [row(f"i{i}", GOAL, answer=f"answer {i} {'x' * 15_000}") for i in range(200)]
    text = written(tmp_path, {"before": evaluation(*long)}, max_bytes=1_000_000)
    assert "answer 7 " + "x" * 200 not in text
    parts = sorted((tmp_path / "report_data").iterdir())
    assert len(parts) == 3
    seen = Open(browser, tmp_path / "report.html", text)
    seen.until("document.querySelector('#answer .text')")

    def asked() -> set[str]:
        events = [json.loads(e["message"])["message"] for e in browser.get_log("performance")]
        urls = [
            e["params"]["request"]["url"]
            for e in events
            if e["method"] == "Network.requestWillBeSent"
        ]
        return {Path(url.partition("#")[0]).name for url in urls}

    assert asked() == {"report.html", "part-0.js"}
    seen.run("document.getElementById('list').focus()")
    seen.press("\ue010")  # end
    seen.until("document.querySelector('#answer .text').textContent.startsWith('answer 199 ')")
    assert asked() == {"part-2.js"}
    seen.search("answer 99 ")
    assert seen.listed() == ["i99"]
    assert asked() == {"part-1.js"}
    assert browser.get_log("browser") == []
    # What is not there any more is said, and asked for again.
    parts[1].rename(tmp_path / "gone.js")
    browser.get("about:blank")
    browser.get(f"{seen.url}#item=i99")
    seen.until("document.querySelector('#answer .notice')")
    assert "report_data/part-1.js cannot be read. Keep the folder" in seen.text("#answer")
    (tmp_path / "gone.js").rename(parts[1])
    seen.press("j", "k")
    seen.until("document.querySelector('#answer .text')")
    assert seen.text("#answer .text").startswith("answer 99 ")
    browser.get_log("browser")


@BROWSER
def test_nothing_but_the_pages_own_script_loads_a_script(
    browser: Any,  # noqa: F811
    tmp_path: Path,
    trap: tuple[str, list[str]],  # noqa: F811
) -> None:
    url, calls = trap
    for size in (0, 10_000_000):
        text = written(tmp_path, max_bytes=size)
        leaky = text.replace(
            "</main>",
            f"<script>window.hacked=1</script><script src='{url}x'></script>"
            "<script src='report_data/part-9.js'></script></main>",
        )
        seen = Open(browser, tmp_path / "report.html", leaky)
        seen.until("document.querySelector('#answer .text')")
        assert seen.run("return window.hacked") is None
        assert calls == []
        assert len(browser.get_log("browser")) >= 3  # it tells of each that it refused


@BROWSER
def test_hostile_answers_run_nothing_ask_for_nothing_and_are_shown_as_they_are(show: Show) -> None:
    seen = show(*hostile(), change=poisoned)
    evaluations, _ = hostile()
    elements = "#answer :is(script, img, a, style, svg, iframe, link, base, form, b, meta)"
    for place, one in enumerate(evaluations["before"].rows):
        name = seen.current()
        assert name.endswith(str(place))
        assert one.answer is not None
        if place < 9:  # nothing in these that is shown as an escape
            shown = seen.run(
                "const text = document.querySelector('#answer .side .text').cloneNode(true);"
                "for (const number of text.querySelectorAll('sup')) number.remove();"
                "return text.textContent"
            )
            assert shown == one.answer
        assert seen.count(elements) == 0
        assert seen.run("return document.documentElement.scrollWidth - innerWidth") <= 0
        seen.press("d")
        assert seen.count(elements) == 0
        seen.press("d", "j")
        if place < len(evaluations["before"].rows) - 1:
            seen.until(f"document.querySelector('#answer h3').textContent !== {json.dumps(name)}")
    assert seen.count("body script") == 3
    assert seen.count("iframe, img, form, base, object, embed") == 0
    assert seen.count("a") == 1  # to the answers


@BROWSER
def test_marks_that_turn_the_direction_or_steer_a_terminal_are_shown_as_escapes(show: Show) -> None:
    seen = show(*hostile())
    seen.search("gpj.exe")
    assert "\\u202egpj.exe\\u2066 hidden \\u200b" in seen.text("#answer")
    seen.search("evil.example\\x07link")
    assert "\\x1b]8;;https://evil.example\\x07link\\x1b[31m\\x9b2J\\x00" in seen.text("#answer")


def rich() -> tuple[dict[str, Any], dict[str, Evaluation]]:
    """A report that has every table, and its evaluations."""
    rng = random.Random(4)

    def policy(good: float) -> Evaluation:
        rows = []
        for n in range(90):
            control = n >= 60
            labels = DIRECT if control else (GOAL if rng.random() < good else LITERAL)
            focus = {"stated": 1.0, "intended": 0.0, "balanced": 0.0, "neither": 0.0}
            p = {"has_stated_solution": 1.0, "identifies_misconception": 0.0, "focus": focus,
                 "has_intended_solution": rng.choice([0.0, 1 / 3, 1.0])}  # fmt: skip
            rows.append(
                row(
                    f"i{n}", labels, "control" if control else "xy", answer="words", truncated=False,
                    source=f"<b>forum {n % 2}</b>", domain="first" if n % 3 else "second", picked=1.0,
                    picked_first=0.9, pick_margin=0.1, soft_reward=rng.random(), better=LogProb(-9 * good, 9),
                    worse=LogProb(-9, 9), verdict={**asdict(labels), "p": p, "votes": 3},
                )
            )  # fmt: skip
        lost = failed("lost", answer="words", truncated=False, better=None, worse=None)
        return evaluation(*rows, lost)

    shown = {"before": policy(0.2), "after": policy(0.8)}
    told = replace(policy(0.9), parts=("writing",))
    conditions = {
        "before.oracle": told, "after.oracle": told,
        "reference.literal": replace(told, condition="reference:literal"),
    }  # fmt: skip
    facts = {"sources": ["a <i>file</i>"], "pairs left out": {"too long": 3}}
    report = build_report(*shown.values(), conditions=conditions, facts=facts)
    return report, {**shown, **conditions}


def cells_of(page: str) -> list[list[str]]:
    """The rows of all tables of a page, as texts; bounds below a figure as report.md has them."""
    page = re.sub(r'<br><span class="quiet">(.*?)</span>', r" (\1)", page)
    rows = re.findall(r"<tr[^>]*>(.*?)</tr>", page, re.DOTALL)
    found = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", one, re.DOTALL) for one in rows]
    return [[html.unescape(cell) for cell in one] for one in found]


def test_the_page_has_the_tables_of_the_markdown_cell_by_cell(tmp_path: Path) -> None:
    report, shown = rich()
    assert {table.key for table in tables(report)} == {
        "label-tests", "moved", "co-movement", "picking-writing", "source", "domain", "told", "references",
        "noise", "published",
    }  # fmt: skip
    write_page(tmp_path, report, shown)
    page = (tmp_path / "report.html").read_text()
    markdown = to_markdown(report)

    def plain(text: str) -> str:
        return html.unescape(text.strip().replace("`", "").replace("**", ""))

    lines = [line for line in markdown.splitlines() if re.match(r"\|(?!---)", line)]
    wanted = [[plain(cell) for cell in line[1:-1].split("|")] for line in lines]
    heads = {"xy": "items with a hidden goal", "control": "controls", "all": "all items"}.values()
    wanted = [row[:1] if row[0] in heads else row for row in wanted]
    there = cells_of(page)
    for one in there:
        one[0] = {"metric": ""}.get(one[0], one[0])
    assert sorted(wanted) == sorted(there)
    text = html.unescape(re.sub(r"<[^>]*>", "", page))
    for line in markdown.split("## Facts")[0].splitlines():
        if line.startswith(
            ("## ", "- without", "Intervals", "Answer A", "Not corrected", "For orient")
        ):
            said = plain(re.sub(r"^(## |- )", "", line))
            # What has not failed is no warning, which the page shows above its figures.
            assert (said in text) == (": 0 of" not in said) or said == "Notes", said
    assert "pairs left out" in text
    assert "too long 3" in text
    assert "<b>" not in page
    assert "<i>" not in page


@BROWSER
def test_headline_tables_and_figures_stand_above_the_answers(browser: Any, tmp_path: Path) -> None:  # noqa: F811
    report, shown = rich()
    write_page(tmp_path, report, shown)
    seen = Open(browser, tmp_path / "report.html", (tmp_path / "report.html").read_text())
    seen.until("document.querySelector('#answer h3')")
    assert seen.text("h1") == "What training changed"
    assert "before, items with a hidden goal: 1 of 61 answers (1.6 % [" in seen.text("main section")
    assert re.match(r"before\n[+-]\d\.\d\d\n\[", seen.text("dl.headline"))
    for name in ("goals", "picking", "changes"):
        height = "return document.querySelector(arguments[0]).getBoundingClientRect().height"
        assert seen.run(height, f"svg:has(#{name}-title)") > 80
    assert "intended solution, % ↑" in seen.text("[aria-labelledby=metrics] table")
    assert "with failures: " in seen.text("[aria-labelledby=metrics] table")
    for section, said in (
        ("source", "<b>forum 0</b>"), ("co-movement", "intended solution"), ("told", "focus intended"),
        ("references", "literal"), ("noise", "before, intended solution"), ("changes", "< 0.001"),
        ("picking", "change"), ("moved", "goal-focused against literal"),
    ):  # fmt: skip
        assert said in seen.text(f"[aria-labelledby={section}] table"), section
    seen.check_quiet()


def test_a_withheld_headline_says_why_in_place_of_a_number(tmp_path: Path) -> None:
    page = written(tmp_path)  # 1 of 6 judgements failed
    (told,) = re.findall(r'<dl class="headline">(.*?)</dl>', page, re.DOTALL)
    said = re.findall(r'<dd class="(\w+)">(.*?)</dd>', told)
    assert [css for css, _ in said] == ["big", "quiet", "quiet", "quiet"]
    assert said[1][1].startswith("[-")
    assert said[2][1].startswith("n/a: 16.7 % of judgements on items with a hidden goal failed")


def test_why_a_headline_is_withheld_is_told_to_its_end(tmp_path: Path) -> None:
    one = two()["before"]
    one = replace(one, rows=tuple(row for row in one.rows if row.kind == "xy"))
    why = "n/a: no controls; add {source: mini, kinds: [control]} to items"
    assert build_report(one)["headline"]["before"]["why"] == why
    assert f'<dd class="quiet">{why}</dd>' in written(tmp_path, {"before": one})


def test_a_policy_alone_is_never_called_before(tmp_path: Path) -> None:
    one, lost = two()["before"], failed("lost")
    one = replace(one, rows=(*one.rows, lost), remarks=("a note of all",))
    told = replace(one, condition="oracle", parts=("writing",), remarks=("a note of these",))
    report = build_report(one, conditions={"before.oracle": told})
    write_page(tmp_path, report, {"before": one, "before.oracle": told}, items())
    page = (tmp_path / "report.html").read_text()
    assert data_of(page)["names"] == ["the policy", "the policy, told the goal"]
    assert "without labels, the policy, items with a hidden goal: 1 of 7 answers" in page
    drawn = (tmp_path / "figures/goals.svg").read_text()
    assert "the policy, told the goal" in drawn
    told_in_words = to_markdown(report)
    assert "- the policy, told the goal: a note of these" in told_in_words
    for text in (told_in_words, re.sub(r"(?s)<(script|style).*?</\1>", "", page), drawn):
        assert not re.search(r"\bbefore\b", text)


@BROWSER
def test_a_policy_alone_has_neither_changes_nor_differences(show: Show) -> None:
    seen = show({"before": two()["before"]})
    assert seen.text("h1") == "What the policy does"
    assert seen.count("#changes-title, #differences") == 0
    assert seen.count("#goals-title") == 1
    for name in ("shown", "other", "change"):
        assert seen.run(
            "return document.querySelector(arguments[0]).hidden", f"[for=filter-{name}]"
        )


@BROWSER
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_stand_out_from_their_ground(browser: Any, show: Show, scheme: str) -> None:  # noqa: F811
    feature = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", feature)
    seen = show()
    ratios = seen.run(CONTRAST)
    seen.press("d")
    seen.until("document.querySelector('#answer del')")
    ratios += seen.run(CONTRAST)
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    assert len(ratios) > 200
    assert [r for r in ratios if r[0] < 4.5] == []  # WCAG 2.2, AA


@BROWSER
def test_every_control_has_a_label_and_every_part_a_name(show: Show) -> None:
    seen = show()
    unnamed = seen.run("""
        const all = (what, named) =>
          [...document.querySelectorAll(what)].filter((e) => !named(e)).length;
        return all("input, select", (e) => e.labels.length)
          + all("svg", (e) => e.getAttribute("aria-labelledby").split(" ")
            .every((id) => document.getElementById(id).textContent))
          + all("button", (e) => e.textContent.trim())
          + all("[tabindex='0']", (e) => e.getAttribute("aria-label"));
    """)
    assert unnamed == 0
    ids = seen.run("return [...document.querySelectorAll('[id]')].map((e) => e.id)")
    assert len(ids) == len(set(ids))


@BROWSER
@NEEDS_AXE
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(browser: Any, show: Show, scheme: str) -> None:  # noqa: F811
    feature = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", feature)
    seen = show()
    for press in ("", "d"):
        seen.press(*press)
        assert axe(browser) == []
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


@BROWSER
def test_a_printed_page_has_the_figures_and_no_controls(browser: Any, show: Show) -> None:  # noqa: F811
    seen = show()
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    visible = "return document.querySelector(arguments[0]).getClientRects().length > 0"
    try:
        assert not seen.run(visible, "#filters")
        assert not seen.run(visible, "#list")
        assert seen.run(visible, "svg.figure")
        assert seen.run(visible, "#answer .text")
    finally:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


@BROWSER
def test_a_narrow_window_has_no_sideways_scrolling(show: Show, browser: Any) -> None:  # noqa: F811
    seen = show(*hostile(), change=poisoned)
    browser.set_window_size(500, 900)
    try:
        assert seen.run("return document.documentElement.scrollWidth - innerWidth") <= 0
    finally:
        browser.set_window_size(1400, 1000)
