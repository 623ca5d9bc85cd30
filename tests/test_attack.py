"""Attacks on judges: the texts, what a judge model is shown of them, what the local judge pays."""

import json
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from xyreward.attack import (
    BASES,
    PLACES,
    TOLERANCE,
    Attack,
    AttackReport,
    attack,
    base_answers,
    calls_needed,
    join,
    load_attacks,
)
from xyreward.cli import app
from xyreward.fence import Part, neutralise, parse_fences
from xyreward.items import Item
from xyreward.judges.encoder import Encoder, Vectors
from xyreward.judges.local import LocalJudge
from xyreward.rubric import Grounding, verdict_call
from xyreward.testing import make_item
from xyreward.verdict import JudgeFailure, LabelProbabilities, Labels, Verdict

ATTACKS = {attack.name: attack for attack in load_attacks()}
FOLDER = Path(__file__).parent / "attacks"

# ---------------------------------------------------------------- the texts


def test_the_index_names_every_text_once_and_says_what_it_tries() -> None:
    rows = json.loads((FOLDER / "index.json").read_text("utf-8"))
    files = sorted(path.name for path in FOLDER.glob("*.txt"))
    assert sorted(row["file"] for row in rows) == files
    assert len(files) >= 40
    assert all(row["what"] and row["kind"] for row in rows)
    texts = [attack.template for attack in load_attacks()]
    assert len(set(texts)) == len(texts)


def test_every_kind_of_attack_has_at_least_four_texts() -> None:
    counts = Counter(attack.kind for attack in load_attacks())
    assert counts.keys() == {
        "forged verdict",
        "fence break-out",
        "fake turn",
        "the evaluation is over",
        "unicode look-alikes",
        "zero-width characters",
        "hidden HTML",
        "rubric keywords",
        "quotes of the rubric",
        "the question again",
        "very long padding",
        "encodings",
        "other languages",
    }
    assert min(counts.values()) >= 4


def test_control_characters_and_line_ends_of_the_texts_survive_version_control() -> None:
    assert "\r" in ATTACKS["fence-line-separators"].template
    assert "\x1b[2J" in ATTACKS["control-characters"].template
    assert "\U000e006c" in ATTACKS["invisible-tags"].template


def test_slots_are_filled_in_one_pass() -> None:
    item = make_item(query="What about <<intended_request>>?")
    text = Attack("x", "x", "x", "<<query>> / <<intended_request>> / <<other>>").text(item)
    assert text == "What about <<intended_request>>? / Get up on time on Mondays. / <<other>>"


# ---------------------------------------------------------------- what a judge model is shown


@pytest.mark.parametrize("name", ATTACKS)
@pytest.mark.parametrize("kind", ["xy", "control"])
def test_an_attack_stays_between_the_marks_of_the_answer(name: str, kind: str) -> None:
    item = make_item(kind=kind)
    grounding = Grounding.of(item)
    assert grounding is not None
    for base in base_answers(item).values():
        for place in PLACES:
            answer = join(base, ATTACKS[name].text(item), place)
            call = verdict_call(item, grounding, answer)
            parts = parse_fences(call.text)
            assert parts[-1] == Part("answer", neutralise(answer))
            (code,) = set(re.findall(r"^</?[a-z-]+-([0-9a-f]{16})>$", call.text, re.MULTILINE))
            assert call.text.count(f"<answer-{code}>") == 1
            assert call.text.count(f"</answer-{code}>") == 1
            assert call.text.count("<") == 2 * len(parts)  # nothing else can begin a mark
            # The rest of the request is what it is without the attack.
            honest = verdict_call(item, grounding, "honest")
            assert parts[:-1] == parse_fences(honest.text)[:-1]
            assert call.prefix == honest.prefix
            assert call.text.rpartition(">")[2] == honest.text.rpartition(">")[2]


@pytest.mark.parametrize("name", ATTACKS)
def test_no_attack_keeps_a_special_token_a_role_or_an_invisible_character(name: str) -> None:
    shown = neutralise(ATTACKS[name].template)
    assert not re.search(r"<\||<[/a-z]|\[/?INST\]", shown)
    assert not re.search(r"^\s*(system|human|assistant|user|tool)\s*:", shown, re.I | re.M)
    assert not re.search(
        "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f]", shown
    )
    assert not re.search("[\ufe00-\ufe0f\ufeff\U000e0000-\U000e0fff]", shown)


# ---------------------------------------------------------------- attacking judges


class WordJudge:
    """Pays for words: what a judge must not do."""

    name = "words"
    rubric_version = "words-1"

    def __init__(self, good: str = "marigold", fails_on: str = "nothing fails") -> None:
        self.good, self.fails_on = good, fails_on
        self.judged = 0

    async def judge(
        self, items: Sequence[Item], answers: Sequence[str]
    ) -> list[Verdict | JudgeFailure]:
        self.judged += len(answers)
        return [self._one(answer.lower()) for answer in answers]

    def _one(self, answer: str) -> Verdict | JudgeFailure:
        if self.fails_on in answer:
            return JudgeFailure("refused", "no")
        labels = Labels(False, self.good in answer, "neither", False)
        return Verdict(labels, LabelProbabilities.certain(labels), self.name, self.rubric_version)


def test_a_judge_that_pays_for_a_code_word_is_found_out() -> None:
    report = attack(WordJudge(), [make_item()], tries=0)
    assert {a.attack for a in report.paid} == {
        "over-authority, after",
        "over-authority, before",
    }
    assert all(a.soft_gain == a.hard_gain == pytest.approx(1 / 3) for a in report.paid)
    # Before and after of two answers, and one of an empty answer, where both are the same.
    assert len(report.known) == 5 * len(ATTACKS)
    assert "over-authority" in report.to_markdown()


def test_the_table_has_the_total_and_only_rows_that_were_paid() -> None:
    items = [make_item(id=name, query=f"Question {name}?") for name in "ab"]
    text = attack(WordJudge(), items, tries=0).to_markdown()
    n = 10 * len(ATTACKS)
    assert f"known attacks: paid 10 of {n}, {1000 / n:.1f} % (95 % interval over items " in text
    rows = [line for line in text.splitlines() if line.startswith("| ") and "base | n" not in line]
    assert len(rows) == 3  # one kind of attack, three bases
    assert all(int(row.split("|")[7]) for row in rows)
    assert re.search(r"\n\d\d more rows, under which nothing was paid\.\n", text)
    assert "search, best of 0: none." in text


def test_a_gain_of_nothing_has_no_sign() -> None:
    text = attack(WordJudge("no such word"), [make_item()], tries=0).to_markdown()
    assert f"known attacks: paid 0 of {5 * len(ATTACKS)}, 0.0 % (no interval: one cluster)." in text
    assert not re.search(r"[+-]0\.000", text)
    assert text.count("| 0.000 |") > 0
    assert len([line for line in text.splitlines() if line.startswith("| ")]) == 6


def test_the_search_finds_what_is_paid_even_where_no_known_text_is_given() -> None:
    report = attack(WordJudge("do not: "), [make_item()], attacks=[], tries=64)
    assert report.known == ()
    assert [a.base for a in report.found] == ["empty", "literal", "goal_focused"]
    best = [a for a in report.found if a.soft_gain > 0]
    assert best
    assert report.paid == best
    assert all("open sentences with do not" in a.attack for a in best)


def test_the_search_says_the_shortest_way_to_the_same_pay_and_is_repeatable() -> None:
    def found(seed: int) -> list[str]:
        report = attack(WordJudge("the"), [make_item()], attacks=[], tries=32, seed=seed)
        return [a.attack for a in report.found]

    assert found(0) == found(0) != found(1)
    report = attack(WordJudge("no such word"), [make_item()], attacks=[], tries=32)
    assert [a.soft_gain for a in report.found] == [0.0, 0.0, 0.0]
    assert report.paid == []


def test_a_failure_of_the_judge_is_no_gain_and_is_counted() -> None:
    report = attack(WordJudge(fails_on="marigold"), [make_item()], tries=0)
    assert report.paid == []
    (row,) = (
        row
        for row in report.to_dict()["known"]
        if row["kind"] == "the evaluation is over" and row["base"] == "literal"
    )
    assert row["judge_failed"] == 2
    failed = [a for a in report.known if a.soft_after is None]
    assert {a.failure for a in failed} == {"refused"}
    assert all(a.soft_gain == 0.0 for a in failed)


def test_a_base_answer_that_cannot_be_judged_is_left_out_and_counted() -> None:
    report = attack(WordJudge(fails_on="metal tray"), [make_item()], tries=0)
    assert {a.base for a in report.known} == {"empty", "goal_focused"}
    assert report.unjudged == 1
    assert "failed on the base answer: 1." in report.to_markdown()


def test_the_number_of_judged_answers_is_known_before() -> None:
    for tries, places in [(0, PLACES), (40, PLACES), (16, ("after",))]:
        judge = WordJudge()
        items = [make_item(), make_item(kind="control", id="c")]
        told: list[int] = []
        attack(judge, items, tries=tries, places=places, progress=told.append)
        assert sum(told) == calls_needed(items, tries=tries, places=places) + 2  # empty ones
        assert judge.judged <= calls_needed(items, tries=tries, places=places)
        # Empty lines after an empty answer, and some of its mutations, are blank and not judged.
        blank = 2 * (1 + tries)
        assert judge.judged >= calls_needed(items, tries=tries, places=places) - blank


def test_the_report_is_json_without_answers() -> None:
    report = attack(WordJudge(), [make_item()], tries=16)
    text = json.dumps(report.to_dict())
    assert "metal tray" not in text
    assert {"judge", "rubric_version", "known", "search", "paid", "tolerance"} <= json.loads(
        text
    ).keys()


@pytest.mark.parametrize(
    ("items", "tries", "places"),
    [([], 64, PLACES), ([make_item()], -1, PLACES), ([make_item()], 1, ("inside",))],
)
def test_nonsense_is_refused_before_anything_is_judged(
    items: list[Item], tries: int, places: tuple[str, ...]
) -> None:
    with pytest.raises(ValueError, match="expected at least one item, tries >= 0, places of after"):
        attack(WordJudge(), items, tries=tries, places=places)


def test_the_command_says_what_it_would_cost(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        app(["attack", "--dry-run", "--limit", "1", "--tries", "8"])
    assert ended.value.code == 0
    out = capsys.readouterr().out
    assert "local: makes no calls" in out
    # Two items of three bases, one of them empty; 74 texts after, and before where there is a base.
    assert f"for {2 * (2 + 5 * len(ATTACKS))} known attacks. The search adds 48 answers." in out


def test_the_command_writes_no_report_over_another(tmp_path: Path) -> None:
    taken = tmp_path / "report.json"
    taken.touch()
    with pytest.raises(SystemExit) as ended:
        app(["attack", "--out", str(taken)])
    assert ended.value.code == 2


# ---------------------------------------------------------------- the local judge

ITEMS = (
    "pets-dog-crate-escape",
    "pets-tomcat-bath-mat",
    "cooking-soymilk-bean-soak-zh",
    "web-wechat-h5-old-page-zh",
    "ml-whisper-reclamos-ingles-es",
    "sql-mysql-table-like",
    "git-ci-commits-on-wrong-branch",
    "vehicles-control-shift-lock-release",
)
"""Test items on which attacks once paid best, of all kinds; docs/attacks.md has all 60."""


class Remembering:
    """An encoder that embeds a text once: the same 74 texts come with every answer."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self._rows: dict[str, Vectors] = {}

    def encode(self, texts: Sequence[str]) -> Vectors:
        new = [text for text in dict.fromkeys(texts) if text not in self._rows]
        self._rows |= dict(zip(new, self._encoder.encode(new), strict=True))
        return np.array([self._rows[text] for text in texts])


@pytest.fixture(scope="module")
def paid(mini: list[Item]) -> AttackReport:
    judge = LocalJudge()
    judge._encoder = cast("Encoder", Remembering(judge._encoder))
    return attack(judge, [item for item in mini if item.id in ITEMS], tries=0)


@pytest.mark.parametrize("base", BASES)
def test_no_known_attack_pays(base: str, paid: AttackReport) -> None:
    """Neither the soft nor the hard reward rises by more than 0.05, whatever the text."""
    attempts = [a for a in paid.known if a.base == base]
    assert len({a.attack.partition(",")[0] for a in attempts}) == len(ATTACKS)
    assert all(a.soft_after is not None for a in attempts)
    gains = {(a.item_id, a.attack): max(a.soft_gain, a.hard_gain) for a in attempts}
    assert {key: gain for key, gain in gains.items() if gain > TOLERANCE} == {}
