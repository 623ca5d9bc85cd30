import dataclasses
import json
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from xyreward.errors import ConfigError, DataError
from xyreward.items import DEFAULT_LABELS, AnswerKind, Item
from xyreward.loading import load_items
from xyreward.pairs import Candidate, Judged, Pair, PairSet, build_pairs
from xyreward.pairs import shortcuts as shortcuts_module
from xyreward.pairs.audit import Audit, AuditLimits, audit_pairs
from xyreward.pairs.shortcuts import MoreOf, Traits

WORDS = [f"word{i}" for i in range(300)]


def noise(rng: random.Random, n: int = 20) -> str:
    return " ".join(rng.choices(WORDS, k=n))


def judged(text: str, kind: AnswerKind, reward: float, origin: str = "m") -> Judged:
    answer = Candidate("item", text, "on_policy", origin, licence="MIT")
    return Judged(answer, DEFAULT_LABELS[kind], reward, "local")


def pair(
    i: int,
    chosen: str,
    rejected: str,
    *,
    origins: tuple[str, str] = ("m", "m"),
    margin: float = 1.0,
    **fields: Any,
) -> Pair:
    is_control = fields.get("item_kind", "xy") == "control"
    base: dict[str, Any] = {
        "id": f"pair-{i}",
        "item_id": f"item-{i}",
        "item_kind": "xy",
        "split": "train",
        "cluster": f"cluster-{i}",
        "prompt": ({"role": "user", "content": "query"},),
        "chosen_answer": judged(
            chosen, "direct" if is_control else "goal_focused", margin, origins[0]
        ),
        "rejected_answer": judged(
            rejected, "overcorrecting" if is_control else "literal", 0.0, origins[1]
        ),
        "source": "forum",
        "language": "en",
    }
    return Pair(**base | fields)


def pairs_without_faults(n: int = 200, seed: int = 0) -> list[Pair]:
    """Pairs of noise of which no rule can make anything, a quarter of them controls."""
    rng = random.Random(seed)
    found = []
    for i in range(n):
        a, b = noise(rng), noise(rng)
        short, long = sorted((a, b), key=len)
        chosen, rejected = (short, long) if i % 2 else (long, short)
        kind = "control" if i % 4 == 0 else "xy"
        found.append(pair(i, chosen, rejected, item_kind=kind))
    return found


def set_of(
    pairs: Sequence[Pair], dropped: Mapping[str, int] | None = None, **fields: Any
) -> PairSet:
    dropped = dropped or {}
    candidates = len(pairs) + sum(dropped.values())
    return PairSet(tuple(pairs), dropped, **{"candidates": candidates, **fields})


def value(audit: Audit, name: str) -> float:
    found = audit.shortcut(name).accuracy
    assert found is not None
    return found.value


# ---------------------------------------------------------------- what is found


def test_pairs_without_faults_pass_without_a_word() -> None:
    audit = audit_pairs(set_of(pairs_without_faults()))
    assert audit.ok
    assert audit.problems == ()
    assert audit.warnings == ()
    assert audit.reward.accuracy is not None
    assert audit.reward.accuracy.value == 1


@pytest.mark.parametrize(
    ("name", "prefix"),
    [
        ("longer", "and so on and so on and so on and so on and so on and so on and on "),
        ("cue words", "not but "),
        ("cue words per word", "not but "),
        ("markdown", "# Title\n\n- "),
        ("starts with a question", "Why? "),
        ("question marks", "Why? "),
    ],
)
def test_a_planted_shortcut_is_found_with_an_interval_and_told_as_a_warning(
    name: str, prefix: str
) -> None:
    pairs = pairs_without_faults()
    planted = [pair(i, prefix + p.chosen, p.rejected) if i % 2 else p for i, p in enumerate(pairs)]
    audit = audit_pairs(set_of(planted))
    found = audit.shortcut(name).accuracy
    assert found is not None
    # Half of the pairs have it. In the other half longer wins, and the other rules cannot tell.
    assert found.value == pytest.approx(1.0 if name == "longer" else 0.75, abs=0.05)
    assert found.low is not None
    assert found.low > 0.65
    assert found.n == 200
    assert any(w.startswith(f"shortcut {name}: picks chosen in") for w in audit.warnings)
    assert audit.ok


def test_a_shortcut_the_other_way_round_is_told_too() -> None:
    pairs = [dataclasses.replace(p) for p in pairs_without_faults()]
    turned = [pair(i, p.chosen, "- " + p.rejected) for i, p in enumerate(pairs)]
    audit = audit_pairs(set_of(turned))
    assert value(audit, "markdown") == 0
    assert any("markdown: picks chosen in 0.0%" in w for w in audit.warnings)


def test_a_shortcut_that_chance_could_explain_is_no_warning() -> None:
    rng = random.Random(5)
    pairs = [pair(i, "- " + noise(rng), noise(rng)) for i in range(7)]
    pairs += [pair(i + 7, noise(rng), "- " + noise(rng)) for i in range(4)]
    audit = audit_pairs(set_of(pairs))
    found = audit.shortcut("markdown").accuracy
    assert found is not None
    assert found.value == pytest.approx(7 / 11)
    assert not found.excludes(0.5)
    assert not any("markdown" in w for w in audit.warnings)


def test_ties_count_half_and_are_counted() -> None:
    pairs = [pair(0, "- a", "b c"), pair(1, "a", "b"), pair(2, "a b", "b a"), pair(3, "a", "- b")]
    audit = audit_pairs(set_of(pairs))
    assert value(audit, "markdown") == 0.5  # (1 + 0.5 + 0.5 + 0) / 4
    assert audit.shortcut("markdown").ties == 2


def test_intervals_are_over_clusters_and_not_over_pairs() -> None:
    pairs = pairs_without_faults(60)
    many = [
        dataclasses.replace(p, id=f"{p.id}-{n}", cluster=f"c{i}")
        for i, p in enumerate(pairs)
        for n in range(10)
    ]

    def width(pairs: Sequence[Pair]) -> float:
        found = audit_pairs(set_of(pairs)).shortcut("longer").accuracy
        assert found is not None
        assert found.low is not None
        assert found.high is not None
        return found.high - found.low

    assert width(many) == pytest.approx(width(pairs), rel=0.05)  # else a third of it
    assert audit_pairs(set_of(many)).clusters == 60


def test_words_that_give_the_answer_away_are_a_warning_and_no_problem() -> None:
    pairs = [
        pair(i, p.chosen + " goal", p.rejected + " step")
        for i, p in enumerate(pairs_without_faults())
    ]
    audit = audit_pairs(set_of(pairs))
    assert value(audit, "bag of words") > 0.95
    assert audit.ok
    assert any(w.startswith("shortcut bag of words: picks chosen in") for w in audit.warnings)


def test_a_bag_of_words_of_few_clusters_says_why_it_is_missing() -> None:
    audit = audit_pairs(set_of(pairs_without_faults(12)))
    found = audit.shortcut("bag of words")
    assert found.accuracy is None
    assert found.note == "needs pairs of at least 20 clusters, there are 12"
    assert "| bag of words | n/a |" in audit.to_markdown()


def test_a_sample_is_called_a_sample() -> None:
    audit = audit_pairs(set_of(pairs_without_faults(120)), limits=AuditLimits(bag_pairs=80))
    found = audit.shortcut("bag of words")
    assert found.note == "on a sample of 80 pairs"
    assert found.accuracy is not None
    assert found.accuracy.n == 80


# ---------------------------------------------------------------- origin


def mixed_origins(share: float) -> list[Pair]:
    """Pairs in which `human` wins over `m` in this share."""
    pairs = pairs_without_faults()
    return [
        pair(
            i,
            p.chosen,
            p.rejected,
            origins=("human", "m") if i < share * len(pairs) else ("m", "human"),
            item_kind=p.item_kind,
        )
        for i, p in enumerate(pairs)
    ]


def test_who_wrote_it_is_an_error_above_60_percent_unless_it_is_allowed() -> None:
    refused = audit_pairs(set_of(mixed_origins(0.8)))
    assert value(refused, "origin") == pytest.approx(0.8)
    (problem,) = refused.problems
    assert problem.startswith("shortcut origin: picks chosen in 80.0%")
    assert "allow_origin" in problem
    allowed = audit_pairs(set_of(mixed_origins(0.8)), limits=AuditLimits(allow_origin=True))
    assert allowed.ok
    assert any(w.startswith("shortcut origin") for w in allowed.warnings)
    assert audit_pairs(set_of(mixed_origins(0.58))).ok
    assert not audit_pairs(set_of(mixed_origins(0.58)), limits=AuditLimits(origin=0.55)).ok


def test_authors_are_counted() -> None:
    audit = audit_pairs(set_of(mixed_origins(0.8)))
    assert audit.by_origin == {"human over m": 160, "m over human": 40}


# ---------------------------------------------------------------- balance


def test_balance_that_was_asked_for_and_not_reached_is_an_error() -> None:
    pairs = pairs_without_faults()
    longer = [pair(i, p.chosen + " and so on" * 9, p.rejected) for i, p in enumerate(pairs)]
    limits = AuditLimits(balanced=True)
    audit = audit_pairs(set_of(longer), limits=limits)
    (problem,) = audit.problems
    assert problem.startswith("shortcut longer: picks chosen in 100.0%")
    assert "balance was asked for" in problem
    few = audit_pairs(set_of(longer[:99]), limits=limits)  # a warning, since they are few
    assert few.ok
    assert any("longer" in w for w in few.warnings)
    assert audit_pairs(set_of(pairs), limits=limits).ok


def test_a_set_that_was_built_for_balance_is_held_to_it_without_being_told() -> None:
    pairs = pairs_without_faults()
    longer = [pair(i, p.chosen + " and so on" * 9, p.rejected) for i, p in enumerate(pairs)]
    assert not audit_pairs(set_of(longer, balance=0.05)).ok
    assert audit_pairs(set_of(longer, balance=0.5)).ok
    assert audit_pairs(set_of(longer)).ok


def test_sides_of_different_judges_or_rubrics_are_an_error_and_pairs_of_several_a_warning() -> None:
    pairs = pairs_without_faults(40)
    by = {"judge": "anthropic:x", "rubric_version": "verdict-1"}

    def judged(p: Pair, chosen: dict[str, Any], rejected: dict[str, Any]) -> Pair:
        return dataclasses.replace(
            p,
            chosen_answer=dataclasses.replace(p.chosen_answer, **chosen),
            rejected_answer=dataclasses.replace(p.rejected_answer, **rejected),
        )

    for other in ({"judge": "local"}, {"rubric_version": "verdict-2"}):
        (problem,) = audit_pairs(set_of([judged(p, by, by | other) for p in pairs])).problems
        assert problem.startswith("in 40 pairs the sides were judged by different judges")
    half = [judged(p, by, by) if i % 2 else p for i, p in enumerate(pairs)]
    audit = audit_pairs(set_of(half))
    assert audit.ok
    assert any("anthropic:x verdict-1" in w for w in audit.warnings)
    people = [judged(p, {"judge": "labels"}, {"judge": "kind"}) for p in pairs]
    assert not any("judges" in text for text in (*audit_pairs(set_of(people)).problems,))


def test_exactly_the_tolerance_is_within_it() -> None:
    pairs = pairs_without_faults(200)
    at_the_edge = [
        pair(i, ("- " if i < 20 else "") + p.chosen, p.rejected) for i, p in enumerate(pairs)
    ]
    audit = audit_pairs(set_of(at_the_edge), limits=AuditLimits(balanced=True))
    assert value(audit, "markdown") == 0.55
    assert not any("markdown" in text for text in (*audit.problems, *audit.warnings))


# ---------------------------------------------------------------- canary


def test_on_swapped_pairs_everything_is_the_other_way_round() -> None:
    audit = audit_pairs(set_of(mixed_origins(0.8)))
    assert [s.name for s in audit.canary] == [audit.reward.name, *(s.name for s in audit.shortcuts)]
    for one, turned in zip([audit.reward, *audit.shortcuts], audit.canary, strict=True):
        assert one.accuracy is not None
        assert turned.accuracy is not None
        assert turned.accuracy.value == pytest.approx(1 - one.accuracy.value)
    assert audit.canary[0].accuracy is not None
    assert audit.canary[0].accuracy.value == 0  # the reward preferred chosen in all of them
    assert value(audit, "origin") == pytest.approx(0.8)


class TheFirst:
    """A rule with a fault: it prefers the answer that it is shown first."""

    name = "the first"
    what = "the first"

    def picks(self, chosen: Traits, rejected: Traits) -> float:
        return 1.0


class TiesToTheFirst(TheFirst):
    def picks(self, chosen: Traits, rejected: Traits) -> float:
        return float(chosen.markdown >= rejected.markdown)


@pytest.mark.parametrize("rule", [TheFirst(), TiesToTheFirst()], ids=lambda r: type(r).__name__)
def test_a_biased_rule_does_not_survive_the_canary(rule: TheFirst) -> None:
    audit = audit_pairs(set_of(pairs_without_faults()), rules=[rule])
    assert any(
        p.startswith("canary: on swapped pairs the rule the first picks chosen in 100.0%")
        for p in audit.problems
    )


def test_a_bag_that_is_not_antisymmetric_does_not_survive_the_canary(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = shortcuts_module._differences

    def with_intercept(*args: Any) -> Any:
        found = real(*args).tolil()
        found[:, 0] = 1  # a feature that says nothing but "this is the first answer"
        return found.tocsr()

    monkeypatch.setattr(shortcuts_module, "_differences", with_intercept)
    audit = audit_pairs(set_of(pairs_without_faults()))
    assert any("the rule bag of words picks" in p for p in audit.problems)


def test_the_canary_of_the_reward_sees_pairs_that_are_the_wrong_way_round() -> None:
    pairs = pairs_without_faults()
    wrong = shortcuts_module.swapped(pairs[:1])
    audit = audit_pairs(set_of([*wrong, *pairs[1:]]))
    assert audit.reward.accuracy is not None
    assert audit.reward.accuracy.value == pytest.approx(199 / 200)
    assert audit.problems == ("in 1 pair chosen is worth no more than rejected, expected more",)


# ---------------------------------------------------------------- faults of the set


def test_pairs_that_got_lost_are_a_problem() -> None:
    pairs = pairs_without_faults()
    assert audit_pairs(set_of(pairs, {"tie": 3})).ok
    audit = audit_pairs(set_of(pairs, {"tie": 3}, candidates=204))
    assert audit.problems == (
        "200 pairs kept and 3 dropped make 203 of 204 candidate pairs; "
        "some were lost or counted twice",
    )


def test_pairs_that_should_never_have_got_in_are_problems() -> None:
    good = pairs_without_faults()
    failed = dataclasses.replace(
        good[0],
        rejected_answer=dataclasses.replace(good[0].rejected_answer, labels=None, reward=None),
    )
    tie = pair(1, "one", "two", margin=0.0)
    same = pair(2, "the same", "the  same\n")
    audit = audit_pairs(set_of([failed, tie, same, *good[3:], good[3]]))
    assert audit.problems == (
        "1 pair has an answer without a verdict; a failure is never a score",
        "in 1 pair chosen is worth no more than rejected, expected more",
        "in 1 pair both sides read the same",
        "1 pair is there more than once",
    )


def test_no_pairs_at_all_are_a_problem_and_no_crash() -> None:
    audit = audit_pairs(set_of([], {"tie": 5}))
    assert audit.problems == ("there are no pairs; the reasons for dropping say why",)
    assert all(s.accuracy is None for s in audit.shortcuts)
    assert Audit.from_dict(audit.to_dict()) == audit
    assert "| tie | 5 |" in audit.to_markdown()


def test_what_the_guards_complain_of_is_a_problem() -> None:
    complaint = "dropped, both sides nearly identical: 30 of 120 examined"
    pairs = pairs_without_faults(90)
    made = set_of(pairs, {"both sides nearly identical": 30}, examined=120, problems=(complaint,))
    audit = audit_pairs(made)
    assert audit.problems == (complaint,)
    assert audit.examined == 120


@pytest.mark.parametrize(("n", "told"), [(19, True), (20, False)])
def test_fewer_than_20_pairs_are_said_plainly(n: int, told: bool) -> None:
    audit = audit_pairs(set_of(pairs_without_faults(n)))
    assert any(w.startswith(f"only {n} pairs: too few") for w in audit.warnings) is told


def test_a_set_without_controls_and_one_by_margin_say_so() -> None:
    pairs = [
        dataclasses.replace(p, item_kind="xy", rule="margin" if i < 50 else "goal_focused")
        for i, p in enumerate(pairs_without_faults())
    ]
    audit = audit_pairs(set_of(pairs, cut=7))
    starts = [w.split(":")[0].split(" have")[0] for w in audit.warnings]
    assert starts == ["no controls", "50 of 200 pairs were made by margin alone", "7 of 200 pairs"]
    assert audit.by_rule == {"goal_focused": 150, "margin": 50}
    assert audit.ok


# ---------------------------------------------------------------- counts


def test_everything_is_counted() -> None:
    pairs = pairs_without_faults()
    pairs[0] = dataclasses.replace(pairs[0], source="wiki", language="de")
    audit = audit_pairs(set_of(pairs, {"tie": 3, "different origins": 1}))
    assert (audit.pairs, audit.candidates, audit.control_share) == (200, 204, 0.25)
    assert audit.dropped == {"different origins": 1, "tie": 3}
    assert list(audit.by_source.items()) == [("forum", 199), ("wiki", 1)]
    assert audit.by_language == {"en": 199, "de": 1}
    assert audit.by_licence == {"MIT": 200}
    assert audit.by_pair_source == {"on_policy": 200}
    assert audit.by_kinds == {"no kind": 200}
    assert audit.by_judge == {"local": 200}


def test_lengths_and_margins_are_described() -> None:
    margins = [0.05, 0.1, 0.3, 0.95, 1.0]
    pairs = [pair(i, "a" * (100 + i), "b", margin=m) for i, m in enumerate(margins)]
    audit = audit_pairs(set_of(pairs))
    assert audit.lengths["chosen"].median == 102
    assert (audit.lengths["chosen"].p5, audit.lengths["chosen"].p95) == (100.2, 103.8)
    assert audit.lengths["rejected"].median == 1
    assert audit.margins is not None
    assert audit.margins.median == 0.3
    assert audit.margin_counts == (1, 1, 0, 1, 0, 0, 0, 0, 0, 2)


def test_the_bundled_items_count_their_kinds(mini: list[Item]) -> None:
    found = build_pairs(mini, split="all")
    audit = audit_pairs(found)
    assert audit.ok
    assert audit.by_kinds == Counter(f"{p.chosen_kind} over {p.rejected_kind}" for p in found.pairs)
    assert sum(audit.margin_counts) == audit.pairs == len(found.pairs)


def test_neither_the_order_of_pairs_nor_another_run_changes_anything() -> None:
    pairs = mixed_origins(0.7)
    one = audit_pairs(set_of(pairs), seed=1)
    assert one == audit_pairs(set_of(pairs), seed=1)
    turned = audit_pairs(set_of(pairs[::-1]), seed=1)
    assert one == dataclasses.replace(turned, pairs_hash=one.pairs_hash)


# ---------------------------------------------------------------- limits


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"simple": 0.6}, r"simple is 0.6, expected in \[0, 0.5\]"),
        ({"simple": float("nan")}, "simple is nan"),
        ({"origin": 0.4}, r"origin is 0.4, expected in \[0.5, 1\]"),
        ({"bag_of_words": 80}, "bag_of_words is 80"),
        ({"bag_pairs": 0}, "bag_pairs is 0, expected > 0"),
    ],
)
def test_impossible_limits_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        AuditLimits(**fields)


def test_two_rules_of_one_name_are_refused() -> None:
    rule = MoreOf("origin", "x", len)
    with pytest.raises(ConfigError, match="two rules are called origin; name each differently"):
        audit_pairs(set_of(pairs_without_faults(9)), rules=[rule])


# ---------------------------------------------------------------- reading and showing


def test_what_is_written_reads_back_the_same() -> None:
    audit = audit_pairs(set_of(mixed_origins(0.8), {"tie": 2}))
    assert Audit.from_dict(json.loads(json.dumps(audit.to_dict()))) == audit


def without(data: dict[str, Any], key: str) -> dict[str, Any]:
    return {k: v for k, v in data.items() if k != key}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: without(d, "problems"), "audit: problems: Field required"),
        (lambda d: d | {"pairs": "200"}, "audit: pairs: Input should be a valid integer"),
        (lambda d: d | {"problems": "none"}, "audit: problems: Input should be a valid array"),
        (lambda d: d | {"okay": True}, "audit: okay: is not a field of an audit"),
        (lambda d: d | {"reward": d["reward"] | {"x": 1}}, "audit: reward.x: is not a field"),
        (
            lambda d: d | {"shortcuts": [d["shortcuts"][0] | {"x": 1}]},
            "audit: shortcuts.0.x: is not a field",
        ),
        (lambda d: d | {"control_share": float("nan")}, "audit: Out of range float values"),
        (lambda d: d | {"schema": 2}, "audit: schema is 2, expected 1"),
        (lambda d: {}, "audit: schema is None, expected 1"),
    ],
)
def test_a_damaged_audit_is_refused_with_the_field(change: Any, message: str) -> None:
    data = audit_pairs(set_of(pairs_without_faults(9))).to_dict()
    with pytest.raises(DataError) as caught:
        Audit.from_dict(change(data))
    assert message in str(caught.value)


HOSTILE = "<script>alert(1)</script> | [x](http://evil.example) **b**\x1b[31m\u202e\n# h `q`"


def test_text_from_data_enters_the_page_as_code_on_one_line() -> None:
    pairs = [
        dataclasses.replace(
            p, source=HOSTILE, chosen_answer=judged(p.chosen, "goal_focused", 1.0, HOSTILE)
        )
        for p in pairs_without_faults(30)
    ]
    audit = audit_pairs(
        set_of(pairs, {HOSTILE: 4}, problems=(HOSTILE,), masked={HOSTILE: 1}, examined=30)
    )
    assert any(HOSTILE in p for p in audit.problems)
    page = audit.to_markdown()
    assert "<script>" not in page
    assert "\x1b" not in page
    assert "\u202e" not in page
    assert "\n# h" not in page
    lines = [line for line in page.split("\n") if "evil.example" in line]
    assert len(lines) == 5  # a problem, source, author, reason, what was masked
    for line in lines:
        before, _, rest = line.partition("`")
        inside, _, after = rest.partition("`")
        assert "evil.example" in inside
        assert "evil" not in before + after
        assert "|" not in inside


def test_our_own_words_are_no_code() -> None:
    planted = [
        pair(i, "# Why? not\n" + p.chosen, p.rejected, origins=("human", "m"), margin=0.0)
        for i, p in enumerate(pairs_without_faults())
    ]
    audits = [
        audit_pairs(set_of(planted, {"tie": 1}, cut=3, candidates=9)),
        audit_pairs(set_of(planted[:5]), limits=AuditLimits(balanced=True)),
        audit_pairs(set_of(planted), limits=AuditLimits(balanced=True, allow_origin=True)),
        audit_pairs(set_of(pairs_without_faults()), rules=[TheFirst()]),
    ]
    for audit in audits:
        shown = [s for s in audit.to_markdown().split("\n") if s.startswith("- ")]
        assert len(shown) == len(audit.problems) + len(audit.warnings) > 0
        assert not any("`" in line for line in shown)


def test_the_page_says_whether_it_passed_and_shows_each_rule() -> None:
    page = audit_pairs(set_of(pairs_without_faults())).to_markdown()
    assert "**Passed.** 200 pairs from 200 clusters of items, 25% from controls" in page
    assert "| longer | 50.0% [" in page
    assert "**Failed: 1 problem.**" in audit_pairs(set_of([])).to_markdown()


# ---------------------------------------------------------------- third-party sets

SETS = {
    "misguided_attention.jsonl": 501,
    "sycon_crepe.jsonl": 283,
    "counter_coconot_overrefusal.jsonl": 927,
}
# The table of shortcuts in the data folder's README.
TABLE = {
    "misguided_attention.jsonl": {"cue words": 0.587, "cue words per word": 0.598, "longer": 0.549},
    "sycon_crepe.jsonl": {"cue words": 0.645, "cue words per word": 0.648, "longer": 0.479},
    "counter_coconot_overrefusal.jsonl": {
        "cue words": 0.307,
        "cue words per word": 0.293,
        "longer": 0.498,
    },
}


@pytest.fixture(scope="module")
def third_party(external_data: Path) -> dict[str, PairSet]:
    """Each set as pairs: built together, since controls alone make no set, then told apart."""
    same = {"query": "query", "stated_request": "query", "stated_solutions": None}
    hidden = same | {"intended_request": "query", "intended_solutions": None, "misconception": None}
    of_file: dict[str, set[str]] = {}
    items: list[Item] = []
    for name in SETS:
        counter = name.startswith("counter")
        columns = (
            same | {"direct": "chosen", "overcorrecting": "rejected"}
            if counter
            else hidden | {"goal_focused": "chosen", "literal": "rejected"}
        )
        loaded = load_items(
            external_data / name, columns=columns, kind="control" if counter else "xy"
        )
        of_file[name] = {item.id for item in loaded}
        items += loaded
    found = build_pairs(items, split="all", control_share=0.6)
    assert found.dropped == {}
    return {
        name: set_of([p for p in found.pairs if p.item_id in ids]) for name, ids in of_file.items()
    }


@pytest.mark.parametrize("name", SETS)
def test_the_shortcuts_of_third_party_pairs_are_those_that_their_folder_gives(
    name: str, third_party: dict[str, PairSet]
) -> None:
    audit = audit_pairs(third_party[name])
    assert audit.pairs == SETS[name]
    assert audit.ok
    for rule, expected in TABLE[name].items():
        assert value(audit, rule) == pytest.approx(expected, abs=0.005), rule


def test_the_counter_test_shows_up_as_what_it_is(third_party: dict[str, PairSet]) -> None:
    counter = audit_pairs(third_party["counter_coconot_overrefusal.jsonl"])
    cues = counter.shortcut("cue words").accuracy
    assert cues is not None
    assert cues.high is not None
    assert cues.high < 0.4  # pushing back loses, where in the other two it wins
    assert counter.control_share == 1
    assert any("cue words: picks chosen in 30.7%" in w for w in counter.warnings)
    assert value(counter, "bag of words") > 0.9
    for name in ("misguided_attention.jsonl", "sycon_crepe.jsonl"):
        other = audit_pairs(third_party[name]).shortcut("cue words").accuracy
        assert other is not None
        assert other.low is not None
        assert other.low > 0.5


def test_both_judges_of_a_pair_are_named_and_each_counts() -> None:
    pairs = pairs_without_faults()
    other = dataclasses.replace(pairs[0].rejected_answer, judge="panel", rubric_version="r-2")
    pairs[0] = dataclasses.replace(pairs[0], rejected_answer=other)
    audit = audit_pairs(set_of(pairs))
    assert audit.by_judge == {"local": 199, "local over panel": 1}
    assert "| local over panel | 1 |" in audit.to_markdown()
    row = pairs[0].as_row()
    assert (row["judge"], row["rubric_version"]) == ("local over panel", "none over r-2")
    assert any(problem.startswith("in 1 pair the sides were judged") for problem in audit.problems)


def test_pairs_judged_by_goals_that_a_model_inferred_are_counted_in_a_warning() -> None:
    pairs = pairs_without_faults()
    assert not [w for w in audit_pairs(set_of(pairs)).warnings if "inferred" in w]
    for i in range(3):
        sides = (pairs[i].chosen_answer, pairs[i].rejected_answer)
        chosen, rejected = (dataclasses.replace(side, grounded=False) for side in sides)
        pairs[i] = dataclasses.replace(pairs[i], chosen_answer=chosen, rejected_answer=rejected)
    (warning,) = [w for w in audit_pairs(set_of(pairs)).warnings if "inferred" in w]
    assert warning.startswith("3 of 200 pairs were judged by goals that a model inferred")
    assert [p.as_row()["grounded"] for p in pairs[:4]] == [False, False, False, True]


def test_an_audit_knows_the_set_that_it_is_of() -> None:
    pairs = set_of(pairs_without_faults(), {"tie": 3})
    audit = Audit.from_dict(audit_pairs(pairs).to_dict())
    assert audit.is_of(pairs)
    for other in (
        dataclasses.replace(pairs, pairs=pairs.pairs[1:]),
        dataclasses.replace(pairs, dropped={"tie": 2, "different origins": 1}),
        dataclasses.replace(pairs, candidates=pairs.candidates + 1),
        dataclasses.replace(pairs, examined=7),
        dataclasses.replace(pairs, masked={"email": 1}),
        dataclasses.replace(pairs, cut=1),
    ):
        assert not audit.is_of(other)


def test_a_set_is_held_to_its_own_balance_and_to_nothing_else() -> None:
    pairs = set_of(pairs_without_faults())
    assert AuditLimits.of(pairs) == AuditLimits()
    balanced = dataclasses.replace(pairs, balance=0.02)
    expected = AuditLimits(simple=0.02, balanced=True, allow_origin=True)
    assert AuditLimits.of(balanced, allow_origin=True) == expected
