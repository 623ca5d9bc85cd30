"""Agreement: right by hand, equal to scikit-learn's kappa and krippendorff's alpha, honest intervals."""

import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import krippendorff
import numpy as np
import pytest
from scipy.stats import bootstrap
from sklearn.metrics import cohen_kappa_score

from xyreward.agreement import (
    Cell,
    Gap,
    LabelFigures,
    Rater,
    Ratings,
    Role,
    figures,
    to_dict,
    to_markdown,
)
from xyreward.ratings import read_columns
from xyreward.stats import of_sums

M, F = Gap.MISSING, Gap.FAILED


def rated(
    people: Sequence[Sequence[Cell]],
    judges: Sequence[Sequence[Cell]] = (),
    clusters: Sequence[str] | None = None,
) -> LabelFigures:
    rows: list[tuple[str, Role, Sequence[Cell]]] = [
        *((f"p{i}", "human", cells) for i, cells in enumerate(people)),
        *((f"j{i}", "judge", cells) for i, cells in enumerate(judges)),
    ]
    raters = [Rater(*row) for row in rows]
    n = len(raters[0].cells)
    return figures(Ratings("x", raters, clusters or [str(i) for i in range(n)]))


def value(estimate: Any) -> float:
    assert estimate is not None
    return float(estimate.value)


def table(yes_yes: int, yes_no: int, no_yes: int, no_no: int) -> tuple[list[Cell], list[Cell]]:
    pairs = [("yes", "yes")] * yes_yes + [("yes", "no")] * yes_no
    pairs += [("no", "yes")] * no_yes + [("no", "no")] * no_no
    return [a for a, _ in pairs], [b for _, b in pairs]


# ---------------------------------------------------------------- by hand


def test_agreement_kappa_and_alpha_of_a_table_worked_out_by_hand() -> None:
    first, second = table(45, 15, 25, 15)
    (pair,) = rated([first, second]).people
    assert pair.n == 100
    assert pair.confusion == ((15, 25), (15, 45))  # no, yes
    assert value(pair.agreement) == pytest.approx(0.6)
    # 60 and 70 of 100 said yes.
    by_chance = 0.6 * 0.7 + 0.4 * 0.3
    assert value(pair.kappa) == pytest.approx((0.6 - by_chance) / (1 - by_chance))
    # 200 labels, 130 of them yes; 40 rows differ, each in two ordered pairs.
    assert value(pair.alpha) == pytest.approx(1 - 199 * 80 / (200**2 - 130**2 - 70**2))


def test_alpha_of_krippendorffs_own_example_with_missing_labels() -> None:
    # Krippendorff 2011, "Computing Krippendorff's Alpha-Reliability", C: nominal alpha 0.743.
    observers = [
        "1 2 3 3 2 1 4 1 2 . . .",
        "1 2 3 3 2 2 4 1 2 5 . 3",
        ". 3 3 3 2 3 4 2 2 5 1 .",
        "1 2 3 3 2 4 4 1 2 5 1 .",
    ]
    cells = [[M if c == "." else c for c in row.split()] for row in observers]
    assert value(rated(cells).people_alpha) == pytest.approx(0.743, abs=5e-4)


def test_the_mean_over_annotators_is_the_mean_of_the_judges_agreement_with_each() -> None:
    judge: list[Cell] = ["a", "a", "b", "b"]
    people: list[list[Cell]] = [["a", "a", "b", "a"], ["a", "b", "b", M], ["b", "b", "a", "a"]]
    (against,) = rated(people, [judge]).judges
    # 3 of 4, 2 of 3, 0 of 4: each person counts alike, however many rows they labelled.
    assert [value(p.agreement) for p in against.pairs] == pytest.approx([3 / 4, 2 / 3, 0])
    assert value(against.mean) == pytest.approx((3 / 4 + 2 / 3 + 0) / 3)
    assert value(against.kappa) == pytest.approx(sum(value(p.kappa) for p in against.pairs) / 3)
    found = rated(people, [judge])
    assert value(found.people_mean) == pytest.approx((2 / 3 + 1 / 4 + 1 / 3) / 3)


def test_failures_are_left_out_and_counted_and_their_worst_is_told() -> None:
    person: list[Cell] = ["a", "b", "a", "b", M]
    judge: list[Cell] = ["a", "b", F, "a", F]
    found = rated([person], [judge])
    (against,) = found.judges
    assert value(against.mean) == pytest.approx(2 / 3)
    assert against.if_failures_disagree == pytest.approx(2 / 4)  # the fifth row has no label
    told = found.raters[1]
    assert (told["labelled"], told["failed"], told["missing"]) == (3, 2, 0)
    assert found.raters[0]["missing"] == 1
    assert "failed on 2" in to_markdown([found])


def test_what_nobody_asked_is_no_failure() -> None:
    (against,) = rated([["a", "b", "a"]], [["a", M, "b"]]).judges
    assert against.if_failures_disagree == value(against.mean) == 0.5


def test_the_majority_is_more_than_half_of_those_who_labelled() -> None:
    people: list[list[Cell]] = [
        ["a", "a", "a", M, M],
        ["a", "b", "b", "b", M],
        ["b", "b", M, "b", M],
    ]
    (against,) = rated(people, [["a", "b", "a", "a", "a"]]).judges
    assert against.majority is not None
    assert against.majority.n == 3  # the third is tied, the fifth has no label
    assert value(against.majority.agreement) == pytest.approx(2 / 3)
    assert against.no_majority == 1


def test_where_all_say_one_thing_chance_explains_it_and_kappa_is_undefined() -> None:
    (pair,) = rated([["a"] * 5, ["a"] * 5]).people
    assert pair.kappa is None
    assert pair.alpha is None
    assert value(pair.agreement) == 1
    found = rated([["a"] * 5, ["a"] * 5], [["a"] * 5])
    table = [line for line in to_markdown([found]).splitlines() if "n/a" in line]
    # the two people, each with the judge, their mean, all three together, the majority
    assert [line.count("n/a: one label only") for line in table] == [2, 2, 2, 1, 1, 2]
    assert all("| 5 |" in line for line in table)
    for labels in (["a", "b", "a", "a", "a"], [M] * 5):
        assert "one label only" not in to_markdown([rated([["a"] * 4 + ["b"], labels])])


def test_raters_without_a_common_row_have_no_figure() -> None:
    (pair,) = rated([["a", M], [M, "a"]]).people
    assert (pair.n, pair.agreement, pair.kappa, pair.alpha) == (0, None, None, None)


def test_two_judges_without_people() -> None:
    found = rated([], [["a", "b"], ["a", "a"]])
    assert found.judges == ()
    assert value(found.judge_pairs[0].agreement) == 0.5


# ---------------------------------------------------------------- oracles


def oracle_alpha(columns: Sequence[Sequence[Cell]], categories: Sequence[str]) -> float:
    codes = {c: float(i) for i, c in enumerate(categories)}
    data = [
        [codes.get(str(c), math.nan) if isinstance(c, str) else math.nan for c in col]
        for col in columns
    ]
    return float(
        krippendorff.alpha(
            reliability_data=np.array(data),
            level_of_measurement="nominal",
            value_domain=[*codes.values()],
        )
    )


def both(a: Sequence[Cell], b: Sequence[Cell]) -> tuple[list[str], list[str]]:
    pairs = [(x, y) for x, y in zip(a, b, strict=True) if isinstance(x, str) and isinstance(y, str)]
    return [x for x, _ in pairs], [y for _, y in pairs]


@pytest.mark.parametrize("seed", range(8))
def test_kappa_and_alpha_are_those_of_the_libraries(seed: int) -> None:
    rng = random.Random(seed)
    categories = "abcd"[: 2 + seed % 3]
    truth = [rng.choice(categories) for _ in range(60)]

    def column(noise: float, gap: Gap) -> list[Cell]:
        return [
            gap if rng.random() < 0.1 else rng.choice(categories) if rng.random() < noise else t
            for t in truth
        ]

    people = [column(0.3, M) for _ in range(3)]
    judge = column(0.5, F)
    found = rated(people, [judge])
    for pair, (i, j) in zip(found.people, [(0, 1), (0, 2), (1, 2)], strict=True):
        kappa = cohen_kappa_score(*both(people[i], people[j]))
        assert value(pair.kappa) == pytest.approx(kappa, abs=1e-9)
    (against,) = found.judges
    kappas = [cohen_kappa_score(*both(person, judge)) for person in people]
    assert value(against.kappa) == pytest.approx(np.mean(kappas), abs=1e-9)
    assert value(found.people_alpha) == pytest.approx(oracle_alpha(people, categories), abs=1e-9)
    assert value(against.alpha) == pytest.approx(
        oracle_alpha([*people, judge], categories), abs=1e-9
    )


def test_on_real_labels_kappa_and_alpha_are_those_of_the_libraries(external_data: Path) -> None:
    names = ["annotator1", "annotator2", "annotator3"]
    ratings, notes = read_columns(
        external_data / "pandalm_annotators.jsonl",
        humans=names,
        judges=["judge_gpt35", "judge_pandalm"],
        failure_labels=["garbage"],
        mapping={"Tie": "0"},
    )
    assert notes == []
    found = figures(ratings)
    assert found.categories == ("0", "1", "2")
    cells = {rater.name: rater.cells for rater in ratings.raters}
    assert [(r["labelled"], r["failed"], r["missing"]) for r in found.raters] == [
        *[(999, 0, 0)] * 3,
        (974, 25, 0),
        (999, 0, 0),
    ]
    pairs = [*found.people, *found.judge_pairs, *(p for a in found.judges for p in a.pairs)]
    assert len(pairs) == 3 + 1 + 6
    for pair in pairs:
        first, second = both(cells[pair.first], cells[pair.second])
        assert pair.n == len(first)
        assert value(pair.agreement) == pytest.approx(np.mean(np.array(first) == second), abs=1e-12)
        assert value(pair.kappa) == pytest.approx(cohen_kappa_score(first, second), abs=1e-9)
        alpha = oracle_alpha([cells[pair.first], cells[pair.second]], found.categories)
        assert value(pair.alpha) == pytest.approx(alpha, abs=1e-9)
    people = [cells[name] for name in names]
    assert value(found.people_alpha) == pytest.approx(oracle_alpha(people, "012"), abs=1e-9)
    for against in found.judges:
        alpha = oracle_alpha([*people, cells[against.judge]], "012")
        assert value(against.alpha) == pytest.approx(alpha, abs=1e-9)


# ---------------------------------------------------------------- intervals


def test_the_interval_of_kappa_is_scipys_bca_interval() -> None:
    first, second = table(40, 6, 9, 25)
    a, b = np.array([c == "yes" for c in first]), np.array([c == "yes" for c in second])

    def kappa(x: Any, y: Any, axis: int = -1) -> Any:
        agree = (x == y).mean(axis=axis)
        p, q = x.mean(axis=axis), y.mean(axis=axis)
        by_chance = p * q + (1 - p) * (1 - q)
        return (agree - by_chance) / (1 - by_chance)

    theirs = bootstrap(
        (a, b), kappa, paired=True, vectorized=True, n_resamples=50_000, method="BCa",
        rng=np.random.default_rng(1),
    ).confidence_interval  # fmt: skip
    ours = rated([first, second]).people[0].kappa
    assert ours is not None
    assert ours.low is not None
    assert ours.high is not None
    width = theirs.high - theirs.low
    assert ours.low == pytest.approx(theirs.low, abs=0.04 * width)
    assert ours.high == pytest.approx(theirs.high, abs=0.04 * width)


def test_rows_of_a_cluster_are_resampled_together() -> None:
    first, second = table(20, 5, 4, 11)
    once = rated([first, second]).people[0]
    twice = [f"c{i}" for i in range(40)] * 2
    together = rated([first * 2, second * 2], clusters=twice).people[0]
    apart = rated([first * 2, second * 2]).people[0]
    for one, both_, alone in (
        (once.kappa, together.kappa, apart.kappa),
        (once.agreement, together.agreement, apart.agreement),
    ):
        assert one is not None
        assert both_ is not None
        assert alone is not None
        # Every row twice brings nothing new where the two are one cluster.
        assert (both_.low, both_.high) == pytest.approx((one.low, one.high))
        assert alone.high - alone.low < 0.85 * (one.high - one.low)  # type: ignore[operator]


def test_clusters_that_all_agree_leave_room_for_those_that_were_not_seen() -> None:
    (pair,) = rated([["a", "b"] * 10, ["a", "b"] * 10]).people
    assert pair.agreement is not None
    assert pair.agreement.low == pytest.approx(0.05 ** (1 / 20))
    assert pair.agreement.high == 1
    assert pair.kappa is not None
    assert (pair.kappa.value, pair.kappa.low) == (1, None)


def test_a_number_that_is_often_undefined_has_no_interval() -> None:
    # Without the one row that differs kappa is 0 / 0, which happens in (1 - 1/20)^20 = 36 % of resamples.
    (pair,) = rated([["a"] * 20, ["a"] * 19 + ["b"]]).people
    found = of_sums(
        np.array([[1.0, 0.0]] * 19 + [[1.0, 1.0]]),
        lambda s: s[:, 1] / np.where(s[:, 1], s[:, 1], 0),
        n=20,
    )
    assert found is not None
    assert (found.value, found.low, found.high) == (1, None, None)
    assert pair.kappa is not None
    assert pair.kappa.value == 0


def test_the_same_labels_give_the_same_figures_in_any_order_of_rows() -> None:
    first, second = table(12, 5, 4, 9)
    order = list(range(30))
    random.Random(3).shuffle(order)
    shuffled = [[column[i] for i in order] for column in (first, second)]
    assert rated(shuffled).people == rated([first, second]).people


# ---------------------------------------------------------------- what is printed


def test_the_json_has_everything_and_no_infinity() -> None:
    import json

    found = rated([["a", "b", "a"], ["a", "a", "a"]], [["a", F, "b"]])
    data = json.loads(json.dumps(to_dict([found], notes=["n"]), allow_nan=False))
    assert data["schema"] == 1
    one = data["labels"]["x"]
    assert one["judges"][0]["judge"] == "j0"
    assert one["judges"][0]["mean"]["value"] == pytest.approx((1 / 2 + 1 / 2) / 2)
    assert one["people"][0]["confusion"] == [[2, 0], [1, 0]]


def test_names_and_labels_from_files_are_no_markdown() -> None:
    evil = "<b>|x|</b>\n# [a](http://e) \x1b[2J"
    raters = [Rater(evil, "human", [evil, "b"]), Rater("p", "human", [evil, evil])]
    text = to_markdown([figures(Ratings(evil, raters, ["1", "2"]))], notes=[evil])
    assert "\x1b" not in text
    assert "<b>" not in text
    for line in text.split("\n"):
        assert not line.startswith("# ")
        if line.startswith("|") and "---" not in line:
            assert line.count("|") in (5, 6, 4), line
