"""audit.html in a headless Chromium: it shows the pairs, and nothing in them runs or leaves the page."""

import html
import http.server
import json
import os
import re
import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pair_sets import HOSTILE, META, hostile_set, items, judged, pair, pair_set, sampled

from xyreward.pairs import LeftOut, PairSet
from xyreward.pairs.audit import Shortcut, audit_pairs
from xyreward.pairs.page import MAX_TEXT, page
from xyreward.stats import Estimate

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
BROWSER = pytest.mark.skipif(
    not CHROMIUM or not DRIVER, reason="chromium and chromedriver are not installed"
)


AXE = os.environ.get("XYREWARD_AXE", "")
NEEDS_AXE = pytest.mark.skipif(
    not AXE, reason="XYREWARD_AXE does not name an axe.min.js (npm: axe-core)"
)


def axe(browser: Any) -> list[tuple[str, list[str]]]:
    """What axe finds wrong with the page that is open: rules, each with its elements."""
    browser.execute_script(Path(AXE).read_text("utf-8"))
    found = browser.execute_async_script(
        "const done = arguments[arguments.length - 1]; axe.run(document).then(done)"
    )
    return [(v["id"], [n["html"] for n in v["nodes"]]) for v in found["violations"]]


def paged(pairs: PairSet, **fields: Any) -> str:
    return page(pairs, audit_pairs(pairs), **{"meta": META, **fields})


def data_of(text: str) -> dict[str, Any]:
    (found,) = re.findall(
        r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL
    )
    data: dict[str, Any] = json.loads(found)
    return data


# ---------------------------------------------------------------- the file


def test_the_page_is_one_file_that_asks_for_nothing() -> None:
    text = paged(pair_set())
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    policy = html.unescape(policy)
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    assert "http" not in policy
    assert set(re.findall(r'(?:src|href)="([^"]*)"', text)) == {"data:,", "#pairs"}
    assert "@import" not in text
    assert "url(" not in text


def test_the_same_set_gives_the_same_page() -> None:
    assert paged(pair_set()) == paged(pair_set())


def test_texts_of_the_data_neither_open_nor_close_an_element() -> None:
    text = paged(hostile_set(), meta={**META, **dict(zip(HOSTILE, HOSTILE, strict=True))})
    assert text.count("<script") == 2
    assert text.count("</script") == 2
    assert "<img" not in text
    assert "<!--" not in text
    assert data_of(text)["pairs"]
    assert all(c.isprintable() or c in "\n\t\u2028\u2029" for c in text)


def test_half_a_surrogate_pair_is_no_obstacle() -> None:
    one = pair(items()[0], judged("\ud800", "goal_focused", 1.0), judged("\udfff", "literal"))
    paged(PairSet((one,), {}, candidates=1)).encode()


def test_what_fits_is_shown_whole_and_in_order() -> None:
    pairs = pair_set()
    found = data_of(paged(pairs))
    assert [p["id"] for p in found["pairs"] if not p["reason"]] == [p.id for p in pairs.pairs]
    assert [p["reason"] for p in found["pairs"] if p["reason"]] == ["tie", "different origins"]
    assert found["texts"].count("good 0") == 1  # though it is in two pairs
    assert "drawn at random" not in paged(pairs)


def test_a_rule_stands_out_where_it_is_beyond_what_the_audit_allows_it() -> None:
    pairs = pair_set(60)

    def row(name: str, value: float) -> str:
        found = Shortcut(name, "what", Estimate(value, value - 0.02, value + 0.02, 60), 0, "")
        audit = replace(audit_pairs(pairs), shortcuts=(found,))
        return re.search(
            r'<svg viewBox.*?<line class="half"', page(pairs, audit, meta=META), re.DOTALL
        )[0]  # type: ignore[index]

    for name, allowed in (("longer", 0.05), ("origin", 0.1), ("bag of words", 0.3)):
        inside, beyond = row(name, 0.5 + allowed - 0.01), row(name, 0.5 + allowed + 0.03)
        assert "away" not in inside
        assert "away" in beyond
        assert f'x="{500 - 1000 * allowed:.0f}" y="0" width="{2000 * allowed:.0f}"' in inside


def many(n: int) -> PairSet:
    pairs = pair_set(n)
    return replace(pairs, candidates=len(pairs.pairs) + 5)


def test_more_pairs_than_fit_are_sampled_by_the_seed_and_the_page_says_so() -> None:
    pairs = many(400)
    whole = len(paged(pairs))
    text = paged(pairs, max_bytes=60_000)
    assert len(text) < whole - 50_000
    shown = [p["id"] for p in data_of(text)["pairs"] if not p["reason"]]
    assert 0 < len(shown) < 400
    assert f"holds {len(shown)} of 401 pairs, drawn at random with seed 0" in text
    order = {p.id: i for i, p in enumerate(pairs.pairs)}
    places = [order[name] for name in shown]
    assert places == sorted(places)
    assert max(places) > 300  # not the first ones
    other = paged(pairs, max_bytes=60_000, meta={**META, "seed": 1})
    assert [p["id"] for p in data_of(other)["pairs"] if not p["reason"]] != shown


def test_plots_count_every_pair_also_those_that_are_not_in_the_page() -> None:
    found = data_of(paged(many(400), max_bytes=60_000))
    for counts in (*found["lengths"]["all"], *found["margins"]["all"]):
        assert sum(counts) == 401


def test_a_long_text_is_cut() -> None:
    long = pair(items()[0], judged("x" * 1_000_000, "goal_focused", 1.0), judged("y", "literal"))
    found = data_of(paged(PairSet((long,), {}, candidates=1)))
    assert max(map(len, found["texts"])) == MAX_TEXT
    assert found["pairs"][0]["chosen"]["length"] == 1_000_000


def test_why_a_pair_was_kept_is_said_in_words() -> None:
    why = [p["why"] for p in data_of(paged(pair_set()))["pairs"]]
    assert why[0] == (
        "Chosen is goal-focused; rejected has no intended solution, has its focus on the stated request and "
        "does not identify the misconception. The margin is 0.75."
    )
    assert why[1] == (
        "Chosen is goal-focused; rejected has its focus on neither request and does not identify the "
        "misconception. The margin is 0.67."
    )
    assert why[6].startswith("What is asked is what is wanted: chosen answers it")
    assert data_of(paged(sampled(items()[0])))["pairs"][0]["why"].startswith(
        "No answer to this item"
    )


def test_an_empty_set_has_a_page() -> None:
    text = paged(PairSet((), {"tie": 1}, candidates=1, examples=(LeftOut(None, "i", "tie"),)))
    assert "The audit failed" in text
    assert len(data_of(text)["pairs"]) == 1


# ---------------------------------------------------------------- in a browser


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM or ""
    for argument in (
        "headless", "no-sandbox", "disable-gpu", "disable-quic", "disable-dev-shm-usage", "no-first-run",
        "disable-background-networking", "disable-component-update", "disable-sync",
        "window-size=1400,1000", f"user-data-dir={tmp_path_factory.mktemp('chromium')}",
    ):  # fmt: skip
        options.add_argument(f"--{argument}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    # With a path of the driver selenium does not look for one, nor report that it did.
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


class Shown:
    """A page in the browser, with what it printed, asked for and holds."""

    def __init__(self, browser: Any, path: Path, text: str) -> None:
        self.browser = browser
        path.write_bytes(text.encode())
        browser.get("about:blank")
        for log in ("browser", "performance"):
            browser.get_log(log)  # of the page before
        self.url = path.as_uri()
        browser.get(self.url)

    def run(self, script: str, *arguments: Any) -> Any:
        return self.browser.execute_script(script, *arguments)

    def text(self, selector: str) -> str:
        found = self.run("return document.querySelector(arguments[0]).innerText", selector)
        assert isinstance(found, str)
        return found

    def count(self, selector: str) -> int:
        return int(self.run("return document.querySelectorAll(arguments[0]).length", selector))

    def press(self, *keys: str) -> None:
        from selenium.webdriver import ActionChains

        for key in keys:
            ActionChains(self.browser).send_keys(key).perform()

    def choose(self, name: str, value: str) -> None:
        self.run(
            "const c = document.getElementById('filter-' + arguments[0]); c.value = arguments[1];"
            "if (c.value !== arguments[1]) throw new Error('no such value');"
            "c.dispatchEvent(new Event('input'))",
            name, value,
        )  # fmt: skip

    def listed(self) -> list[str]:
        found: list[str] = self.run(
            "return [...document.querySelectorAll('#list .top span:first-child')].map(e => e.textContent)"
        )
        return found

    def check_quiet(self) -> None:
        """Nothing ran, was printed, or left the page."""
        assert self.browser.get_log("browser") == []
        assert self.run("return window.hacked") is None
        events = [json.loads(e["message"])["message"] for e in self.browser.get_log("performance")]
        asked = {
            e["params"]["request"]["url"]
            for e in events
            if e["method"] == "Network.requestWillBeSent"
        }
        assert asked == {self.url}
        assert self.browser.current_url.partition("#")[0] == self.url
        assert len(self.browser.window_handles) == 1


@pytest.fixture
def show(browser: Any, tmp_path: Path) -> Iterator[Any]:
    shown: list[Shown] = []

    def open_page(pairs: PairSet, **fields: Any) -> Shown:
        shown.append(Shown(browser, tmp_path / "audit.html", paged(pairs, **fields)))
        return shown[-1]

    yield open_page
    for one in shown:
        one.check_quiet()


@BROWSER
def test_a_pair_is_shown_side_by_side_with_labels_rewards_reason_and_why(show: Any) -> None:
    seen = show(pair_set())
    assert seen.text("h1") == "7 preference pairs"
    assert "Kept. Chosen is goal-focused" in seen.text("#pair .verdict")
    assert seen.text("#pair .prompt").strip() == "query 0"
    chosen, rejected = seen.text("#pair .is-chosen"), seen.text("#pair .is-rejected")
    for words in (
        "reward 1.00",
        "good 0",
        "intended solution",
        "focus: intended",
        "✓ misconception",
        "serves the goal 0",
        "goal_focused",
        "human",
    ):
        assert words in chosen
    for words in (
        "reward 0.25",
        "bad 0",
        "✗ no intended solution",
        "focus: stated",
        "✗ no misconception",
    ):
        assert words in rejected
    left, right = (seen.run("return document.querySelector(arguments[0]).getBoundingClientRect().left", s)
                   for s in (".is-chosen", ".is-rejected"))  # fmt: skip
    assert right > left + 200


@BROWSER
def test_filters_choose_pairs_and_say_how_many(show: Any) -> None:
    seen = show(pair_set())
    assert seen.text("#count") == "9 of 9 in this page"
    for name, value, expected in (
        ("source", "forum", ["i1", "i3", "i5"]),
        ("language", "de", ["i1"]),
        ("kind", "control", ["i4", "i5"]),
        ("rejected", "dump", ["i0"]),
        ("status", "left out", ["i0", "i1"]),
        ("reason", "tie", ["i0"]),
        ("low", "0.73", ["i0", "i1", "i2"]),
        ("high", "0.7", ["i0", "i5", "i0"]),
        ("search", "SERVES the goal 3", ["i3"]),
        ("search", "different orig", ["i1"]),
        ("search", "nowhere", []),
    ):
        seen.choose(name, value)
        assert seen.listed() == expected, (name, value)
        assert seen.text("#count") == f"{len(expected)} of 9 in this page"
        seen.run("document.getElementById('reset').click()")
        assert len(seen.listed()) == 9
    seen.choose("kind", "xy")
    seen.choose("source", "mini")
    seen.choose("order", "narrowest margin first")
    seen.choose("status", "kept")
    assert seen.listed() == ["i0", "i2", "i0"]
    assert seen.run("return document.querySelector('[for=filter-origin]').hidden")  # one value only


@BROWSER
def test_what_was_left_out_says_why(show: Any) -> None:
    seen = show(pair_set())
    seen.choose("reason", "different origins")
    assert "Left out: different origins." in seen.text("#pair")
    assert "no verdict" in seen.text("#pair")
    seen.choose("reason", "tie")
    assert "Left out: tie." in seen.text("#pair .verdict")
    assert seen.count("#pair .side") == 2
    assert "different origins\t3" in seen.text(".composition")


@BROWSER
def test_the_keyboard_goes_through_pairs_and_into_the_search(show: Any) -> None:
    seen = show(many(250))
    current = "return document.querySelector('[aria-current]').dataset.index"
    seen.press("j", "j", "k", "j")
    assert seen.run(current) == "2"
    seen.press("k", "k", "k", "k")
    assert seen.run(current) == "0"
    seen.press(*("j" * 101))
    assert seen.run(current) == "101"
    assert seen.text("#where") == "101 to 200"
    assert seen.count("#list li") == 100
    seen.press("/", "j", "j")
    assert seen.run("return document.activeElement.id") == "filter-search"
    assert seen.run("return document.activeElement.value") == "jj"
    assert seen.text("#pair") == "No pair is left. Widen the choice above."
    seen.press("\ue00c", "j")  # escape
    assert seen.run("return document.activeElement.tagName") == "BODY"
    assert seen.run(current) == "1"
    seen.run("document.getElementById('reset').click(); document.getElementById('later').click()")
    assert seen.run(current) == "100"
    seen.run("document.getElementById('later').click()")
    assert seen.text("#where") == "201 to 253"
    assert seen.run("return document.getElementById('later').disabled")


@BROWSER
def test_plots_are_drawn_from_the_pairs_that_are_chosen(show: Any) -> None:
    seen = show(many(100))
    assert seen.count("#lengths path.area") == 2
    assert seen.count("#margins path.area") == 1
    assert (
        seen.run("return document.querySelector('#lengths svg').getBoundingClientRect().height")
        > 100
    )
    whole = seen.run("return document.querySelector('#margins path.area').getAttribute('d')")
    assert "NaN" not in seen.run("return document.querySelector('.plots').innerHTML")
    title = seen.run("return document.querySelector('#lengths svg').getAttribute('aria-label')")
    assert title == "Lengths of 102 pairs; median of chosen 7 characters, of rejected 6"
    seen.choose("kind", "control")
    assert (
        seen.run("return document.querySelector('#margins path.area').getAttribute('d')") != whole
    )
    assert seen.count("#margins path.ghost") == 1
    seen.choose("search", "nowhere")
    assert seen.count("#margins path.area") == 0
    assert seen.count(".shortcuts svg") >= 5


@BROWSER
def test_problems_and_warnings_stand_on_top(show: Any) -> None:
    pairs = replace(pair_set(), candidates=99)  # which does not add up
    assert not audit_pairs(pairs).ok
    seen = show(pairs)
    assert seen.text("main section:first-child h2") == "The audit failed"
    assert audit_pairs(pairs).problems[0] in seen.text("main section:first-child")


class Trap(http.server.BaseHTTPRequestHandler):
    """A server that nobody should call."""

    calls: list[str]

    def do_GET(self) -> None:
        self.calls.append(self.path)
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def trap() -> Iterator[tuple[str, list[str]]]:
    calls: list[str] = []
    handler = type("OneTrap", (Trap,), {"calls": calls})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/", calls
    server.shutdown()
    thread.join()
    server.server_close()


@BROWSER
def test_hostile_answers_run_nothing_ask_for_nothing_and_are_shown_as_they_are(
    show: Any, trap: tuple[str, list[str]]
) -> None:
    url, calls = trap
    more = [
        f'<img src="{url}a"><link rel=stylesheet href="{url}b"><iframe src="{url}c"></iframe>',
        f"<script src={url}d></script><base href={url}><form action={url}e><button autofocus>",
        f"</title></style></textarea></noscript><script>fetch('{url}f')</script>",
        "x" * 1_000_000,
    ]
    pairs = hostile_set(*more)
    seen = show(pairs, meta={**META, **dict(zip(HOSTILE, HOSTILE, strict=True))})
    shown = len(pairs.pairs)
    for number in range(shown):
        text = seen.text("#pair .is-chosen .text")
        if number < 9:  # nothing in these that is shown as an escape
            assert text == pairs.pairs[number].chosen
        if number == shown - 1:
            assert text == "x" * MAX_TEXT
            assert "996,005 more characters are in pairs.jsonl" in seen.text("#pair")
        # Only elements of our own, whatever the text.
        assert (
            seen.count("#pair :is(script, img, a, style, svg, iframe, link, base, form, b, meta)")
            == 0
        )
        seen.press("j")
    assert seen.count("body script") == 2
    assert seen.count("iframe, img, form, base, object, embed") == 0
    assert seen.count("a") == 1  # to the pairs
    for select in ("source", "language", "reason"):
        for value in seen.run(
            f"return [...document.getElementById('filter-{select}').options].map(o => o.value)"
        )[1:4]:
            seen.choose(select, value)
    assert calls == []


@BROWSER
def test_marks_that_turn_the_direction_or_steer_a_terminal_are_shown_as_escapes(show: Any) -> None:
    seen = show(hostile_set())
    seen.choose("search", "gpj.exe")
    assert "\\u202egpj.exe\\u2066 hidden \\u200b" in seen.text("#pair .is-chosen .text")
    seen.choose("search", "evil.example\\x07link")
    assert "\\x1b]8;;https://evil.example\\x07link\\x1b[31m\\x9b2J\\x00" in seen.text(
        "#pair .is-chosen .text"
    )


@BROWSER
def test_the_checks_of_this_file_would_see_a_page_that_leaks_or_runs_something(
    browser: Any, tmp_path: Path, trap: tuple[str, list[str]]
) -> None:
    url, calls = trap
    bad = {
        "runs": "<body><script>window.hacked = 1</script>",
        "asks": f"<body><img src='{url}x'>",
        "prints": "<body><script>console.error('x')</script>",
    }
    for name, text in bad.items():
        seen = Shown(browser, tmp_path / f"{name}.html", text)
        with pytest.raises(AssertionError):
            seen.check_quiet()
    assert calls == ["/x"]
    # And the policy stops what gets into the page in spite of all.
    leaky = paged(pair_set()).replace(
        "</main>", f"<script>window.hacked=1</script><img src='{url}y'></main>"
    )
    seen = Shown(browser, tmp_path / "leaky.html", leaky)
    assert seen.run("return window.hacked") is None
    assert calls == ["/x"]


@BROWSER
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_stand_out_from_their_ground(browser: Any, tmp_path: Path, scheme: str) -> None:
    browser.execute_cdp_cmd(
        "Emulation.setEmulatedMedia",
        {"features": [{"name": "prefers-color-scheme", "value": scheme}]},
    )
    seen = Shown(browser, tmp_path / "audit.html", paged(replace(pair_set(), candidates=99)))
    dark = seen.run("return matchMedia('(prefers-color-scheme: dark)').matches")
    assert dark is (scheme == "dark")
    ratios = seen.run(CONTRAST)
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    assert len(ratios) > 80
    assert [r for r in ratios if r[0] < 4.5] == []  # WCAG 2.2, AA


@BROWSER
@NEEDS_AXE
def test_axe_finds_nothing(show: Any, browser: Any) -> None:
    show(pair_set())
    assert axe(browser) == []


CONTRAST = """
const lum = (c) => {
  const [r, g, b] = c.match(/[\\d.]+/g).slice(0, 3).map((v) => v / 255)
    .map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const ground = (e) => {
  for (; e; e = e.parentElement) {
    const c = getComputedStyle(e).backgroundColor;
    if (!/, 0\\)$/.test(c)) return c;
  }
  return "rgb(255, 255, 255)";
};
const out = [];
for (const e of document.querySelectorAll("body *")) {
  const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
  if (!own || !e.getClientRects().length || e.closest("svg, script, :disabled, option, .skip")) continue;
  const [a, b] = [lum(getComputedStyle(e).color), lum(ground(e))].sort((x, y) => y - x);
  out.push([(a + 0.05) / (b + 0.05), e.className + " " + e.textContent.slice(0, 30)]);
}
return out;
"""


@BROWSER
def test_every_control_has_a_label_and_every_part_a_name(show: Any) -> None:
    seen = show(pair_set())
    unnamed = seen.run("""
        const all = (what, named) =>
          [...document.querySelectorAll(what)].filter((e) => !named(e)).length;
        return all("input, select", (e) => e.labels.length)
          + all("svg:not([aria-hidden=true])", (e) => e.getAttribute("aria-label"))
          + all("button", (e) => e.textContent.trim())
          + all("[tabindex='0']", (e) => e.getAttribute("aria-label"));
    """)
    assert unnamed == 0
    assert seen.run("return document.documentElement.lang") == "en"
    ids = seen.run("return [...document.querySelectorAll('[id]')].map((e) => e.id)")
    assert len(ids) == len(set(ids))


@BROWSER
def test_a_narrow_window_has_no_sideways_scrolling(show: Any, browser: Any) -> None:
    seen = show(hostile_set("word" * 500))
    browser.set_window_size(500, 900)
    try:
        assert seen.run("return document.documentElement.scrollWidth - innerWidth") <= 0
    finally:
        browser.set_window_size(1400, 1000)
