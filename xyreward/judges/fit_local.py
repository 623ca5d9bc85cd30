"""Fit the local judge's head on the bundled items, and measure it on items that it has not seen.

    python -m xyreward.judges.fit_local            fits, writes local_head.json, prints the table
    python -m xyreward.judges.fit_local --check    fits and measures; exit 1 if the file says
    otherwise

Takes about two minutes on two cores, nearly all of it embedding. Two runs on one machine write the same
bytes.

The shipped head is fitted on the train and dev items; the test items stay unseen by it. The weights
below were chosen by out-of-fold agreement on train and dev. `C` was chosen so at first; when attempts
came, 1.0 was a little better out of fold, lost a ranking aim on the test items (two of 18 pairs), and
was put back to 0.3: the test figures are that far from untouched. The out-of-fold figures cover all
items: each is predicted by a head that saw no item of its cluster.

Besides the references the head learns from answers that are made here and left out of the figures:
answers to other items, the question said again, and literal answers that add the goal or the
misconception. They are what a policy under training might try.

Not here: what the features are (`features.py`), inference (`local.py`).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from xyreward.items import DEFAULT_LABELS, AnswerKind, Item, ItemKind, Reference, items_hash
from xyreward.judges.encoder import Encoder, Vectors, chunks
from xyreward.judges.features import (
    Encode,
    Floats,
    Grounding,
    features,
    ground,
    grounding_texts,
)
from xyreward.judges.local import LABEL_COLUMNS, VERSION, Head, labels_of, to_probabilities
from xyreward.loading import bundled_splits, load_items
from xyreward.reward import Reward
from xyreward.splits import Splits
from xyreward.stats import Estimate, mean
from xyreward.verdict import FOCUS_VALUES, Labels, Verdict

HEAD_FILE = Path(__file__).with_name("local_head.json")
FIT_COMMAND = "python -m xyreward.judges.fit_local"

C = 0.3
"""Inverse strength of the ridge penalty, in scikit-learn's unit."""
MADE_WEIGHT: Mapping[ItemKind, float] = {"xy": 0.4, "control": 0.2}
"""Of an answer that is not a reference to the item, beside 1 for one that is. For controls four of
five answers are made."""
CLASS_WEIGHT = {"attempt_stated": 2.0, "attempt_neither": 2.0, "overcorrecting": 2.0}
"""Classes that are hard to tell apart and rarer among the references than among answers."""
FOLDS = 8
TOLERANCE = 0.01
"""By which a number of the head may differ between two fits (`--check`), absolute or relative:
another CPU adds in another order. Weights are per standard deviation of a feature, so this moves no
probability by more than a percent or so."""
DIGITS = 6
"""Significant digits of a parameter in the file."""

OFF_TOPIC = "off_topic"
"""Class of answers that have nothing to offer to this item."""
OFF_TOPIC_LABELS = Labels(False, False, "neither", False)
ECHO = "echo"
"""Class of answers that only say the question or the requests again."""
ECHO_LABELS = OFF_TOPIC_LABELS
WHY = "why"
"""Class of answers that only say why the stated request misses the goal, without a way to it."""
WHY_LABELS = Labels(False, False, "neither", True)
LITERAL_WHY = "literal_why"
"""Class of literal answers that add it: the goal is still not served."""
LITERAL_WHY_LABELS = Labels(True, False, "stated", True)

AS_CONTROL: Mapping[AnswerKind, tuple[str, Labels]] = {
    "literal": ("direct", DEFAULT_LABELS["direct"]),
    "passing_mention": ("direct", DEFAULT_LABELS["direct"]),
    "goal_focused": ("other_goal", DEFAULT_LABELS["overcorrecting"]),
    "wrong_goal": ("other_goal", DEFAULT_LABELS["overcorrecting"]),
    "balanced": ("balanced", Labels(True, True, "balanced", True)),
    "dump": ("dump", Labels(True, True, "neither", False)),
    "clarify_only": (OFF_TOPIC, OFF_TOPIC_LABELS),
    "refusal": (OFF_TOPIC, OFF_TOPIC_LABELS),
}
"""What an answer to an xy item is to somebody who truly wants what is asked: class and labels.

Controls bring direct and overcorrecting answers and attempts only, and a head that knows no others
would call every refusal one of these. So the control head also learns from xy items read as
controls. (An attempt at what is asked is the same for both; see `_class_of`.)
"""


@dataclass(frozen=True, slots=True)
class Row:
    """One answer to one item, as the head sees it."""

    item_id: str
    kind: ItemKind
    """Of the item: which head learns from it."""
    answer_kind: str
    """Of the answer, as figures name it."""
    learned: str
    """Class that the head learns."""
    labels: Labels
    features: Mapping[str, float]
    clusters: frozenset[str]
    """Clusters of the items that the row draws on; it may be learned from only where all may."""
    cluster: str
    """Cluster of the item."""
    made: bool = False
    """Not a reference answer to this item: learned from, and left out of the figures."""


# ---------------------------------------------------------------- rows


def build_rows(items: Sequence[Item], splits: Splits, encode: Encode) -> list[Row]:
    """All labelled references, and for each item what the head has to know besides."""
    as_controls = {item.id: _read_as_control(item) for item in items if item.kind == "xy"}
    encode = _remembered(encode, [*items, *as_controls.values()])
    cluster = {item.id: splits.placements[item.content_hash].cluster for item in items}
    donors = _donors(items)
    rows: list[Row] = []
    for item in items:
        grounding = ground(item, encode)
        home = cluster[item.id]

        def row(
            kind: str,
            learned: str,
            labels: Labels,
            text: str,
            *,
            made: bool = True,
            donor: str = home,
            item: Item = item,
            grounding: Grounding = grounding,
            home: str = home,
        ) -> Row:
            named = _answer_features(grounding, text, encode)
            clusters = frozenset({home, donor})
            return Row(item.id, item.kind, kind, learned, labels, named, clusters, home, made)

        for reference in item.references:
            if reference.labels is None or reference.kind is None:
                continue
            labels = reference.labels.as_labels()
            name = _class_of(reference.kind, labels)
            rows.append(row(reference.kind, name, labels, reference.text, made=False))
        for donor in donors[item.id]:
            text = donor.references[0].text
            rows.append(row(OFF_TOPIC, OFF_TOPIC, OFF_TOPIC_LABELS, text, donor=cluster[donor.id]))
        rows += [row(ECHO, ECHO, ECHO_LABELS, text) for text in echoes(item)]
        if item.misconception:
            rows.append(row(WHY, WHY, WHY_LABELS, item.misconception))
        if literal := item.reference("literal"):
            plain = DEFAULT_LABELS["literal"]
            rows += [row("literal", "literal", plain, text) for text in extended(item, literal)]
            text = f"{literal.text}\n\n{item.misconception}"
            rows.append(row(LITERAL_WHY, LITERAL_WHY, LITERAL_WHY_LABELS, text))
        if item.kind == "xy":
            rows += _rows_as_control(item, as_controls[item.id], home, encode)
    return rows


def _class_of(kind: AnswerKind, labels: Labels) -> str:
    """The class that a reference teaches: its kind, and for an attempt its focus as well.

    An attempt at what is asked and one that wanders differ in all that a head can see.
    """
    return f"{kind}_{labels.focus}" if kind == "attempt" else kind


def _made_texts(item: Item) -> list[str]:
    """Texts of which made answers consist, besides references."""
    return [
        *echoes(item),
        item.query_text,
        f"Your goal: {item.intended_request}",
        item.misconception,
    ]


def echoes(item: Item) -> list[str]:
    """Answers that only say the question again, in its order and backwards, or what is wanted."""
    return [
        item.query_text,
        " ".join(chunks(item.query_text)[::-1] * 2),
        f"{item.stated_request} {item.intended_request}",
    ]


def extended(item: Item, answer: Reference) -> list[str]:
    """The answer with the question, or with the goal, said after it: worth no more."""
    return [
        f"{answer.text}\n\n{item.query_text}",
        f"{answer.text}\n\nYour goal: {item.intended_request}",
    ]


def _answer_features(grounding: Grounding, text: str, encode: Encode) -> dict[str, float]:
    texts = chunks(text)
    return features(grounding, texts, encode(texts))


def _remembered(encode: Encode, items: Sequence[Item]) -> Encode:
    """Embed everything in one go, in batches of alike lengths, and look vectors up from then on."""
    texts = {
        text
        for item in items
        for text in (
            *(t for named in grounding_texts(item).values() for t in named),
            *(t for reference in item.references for t in chunks(reference.text)),
            *(t for text in _made_texts(item) for t in chunks(text)),
        )
    }
    ordered = sorted(texts)
    known = dict(zip(ordered, encode(ordered), strict=True))

    def look_up(wanted: Sequence[str]) -> Vectors:
        return np.stack([known[text] for text in wanted])

    return look_up


def _donors(items: Sequence[Item]) -> dict[str, list[Item]]:
    """For each item the two that follow it in its domain (by content hash, in a circle)."""
    domains: dict[str, list[Item]] = defaultdict(list)
    for item in sorted(items, key=lambda item: item.content_hash):
        if item.references:
            domains[f"{item.language} {item.domain}"].append(item)
    donors: dict[str, list[Item]] = {item.id: [] for item in items}
    for members in domains.values():
        for i, item in enumerate(members):
            following = [members[(i + k) % len(members)] for k in (1, 2)]
            donors[item.id] = [d for d in following if d.content_hash != item.content_hash]
    return donors


def _read_as_control(item: Item) -> Item:
    return Item(
        id=item.id,
        query=item.query,
        kind="control",
        language=item.language,
        stated_request=item.stated_request,
        intended_request=item.stated_request,
        stated_solutions=item.stated_solutions,
    )


def _rows_as_control(item: Item, as_control: Item, cluster: str, encode: Encode) -> Iterator[Row]:
    grounding = ground(as_control, encode)
    for reference in item.references:
        if reference.kind is None or reference.labels is None:
            continue
        labels = reference.labels.as_labels()
        if reference.kind == "attempt":
            if labels.focus == "intended" or labels.identifies_misconception:
                continue
            name = _class_of(reference.kind, labels)
        elif labels != DEFAULT_LABELS[reference.kind]:
            continue  # its text departs from its kind, so the table does not say what it is
        else:
            name, labels = AS_CONTROL[reference.kind]
        yield Row(
            item.id,
            "control",
            name,
            name,
            labels,
            _answer_features(grounding, reference.text, encode),
            frozenset({cluster}),
            cluster,
            made=True,
        )


# ---------------------------------------------------------------- fitting


def label_row(labels: Labels) -> list[float]:
    """Labels as 7 numbers, 0 or 1; columns as `LABEL_COLUMNS`."""
    return [
        float(labels.has_stated_solution),
        float(labels.has_intended_solution),
        *(float(labels.focus == focus) for focus in FOCUS_VALUES),
        float(labels.identifies_misconception),
    ]


def fit_head(rows: Sequence[Row]) -> Head:
    """A head from rows of one kind of item.

    Rare classes count more than their number, by the square root: most items bring only two kinds
    of answer, which says what was cheap to write and not what a policy will answer.
    """
    from sklearn.linear_model import LogisticRegression

    names = tuple(rows[0].features)
    classes = sorted({row.learned for row in rows})
    values = np.array([[row.features[name] for name in names] for row in rows])
    center = _rounded(values.mean(axis=0))
    scale = _rounded(np.maximum(values.std(axis=0), 1e-3))
    kinds = [row.learned for row in rows]
    counts = Counter(kinds)
    weights = [
        _weight(row) * (len(rows) / len(classes) / counts[row.learned]) ** 0.5 for row in rows
    ]
    model = LogisticRegression(C=C, max_iter=5000, tol=1e-8)
    model.fit((values - center) / scale, kinds, sample_weight=weights)
    shares = np.array(
        [
            np.mean([label_row(row.labels) for row in rows if row.learned == name], axis=0)
            for name in classes
        ]
    )
    return Head(
        features=names,
        classes=tuple(classes),
        mean=center,
        scale=scale,
        weights=_rounded(model.coef_),
        bias=_rounded(model.intercept_),
        labels=_rounded(shares),
    )


def _weight(row: Row) -> float:
    weight = MADE_WEIGHT[row.kind] if row.made else 1.0
    return weight * CLASS_WEIGHT.get(row.learned, 1.0)


def _rounded(values: Floats) -> Floats:
    """To the digits in the file, so that a head from the file and one from memory are the same."""
    return np.array([float(f"{v:.{DIGITS}g}") for v in np.ravel(values)]).reshape(np.shape(values))


def fit_heads(rows: Sequence[Row], clusters: set[str]) -> dict[str, Head]:
    """Both heads, from the rows that draw on these clusters only."""
    return {
        kind: fit_head([row for row in rows if row.kind == kind and row.clusters <= clusters])
        for kind in ("xy", "control")
    }


def predict(heads: Mapping[str, Head], rows: Sequence[Row]) -> list[Verdict]:
    """A verdict per row, as LocalJudge would give it."""
    verdicts = []
    for row in rows:
        head = heads[row.kind]
        values = np.array([[row.features[name] for name in head.features]])
        p = to_probabilities(head.label_probabilities(values)[0], row.kind)
        verdicts.append(Verdict(labels_of(p), p, "local", "fitting"))
    return verdicts


def out_of_fold(rows: Sequence[Row]) -> list[Verdict]:
    """Predict every row with heads that saw no row of its cluster.

    Folds are dealt by cluster name.
    """
    clusters = sorted({row.cluster for row in rows})
    fold = {name: i % FOLDS for i, name in enumerate(clusters)}
    verdicts: dict[int, Verdict] = {}
    for k in range(FOLDS):
        held_out = [i for i, row in enumerate(rows) if fold[row.cluster] == k]
        heads = fit_heads(rows, {name for name in clusters if fold[name] != k})
        predicted = predict(heads, [rows[i] for i in held_out])
        verdicts.update(zip(held_out, predicted, strict=True))
    return [verdicts[i] for i in range(len(rows))]


# ---------------------------------------------------------------- figures


def figures(rows: Sequence[Row], verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """Agreement with the references' labels, and ranking by soft reward within an item.

    Agreement is a share of answers, in [0, 1]. Ranking is the share of pairs in which the better
    answer (goal_focused, or direct for a control) has the higher soft reward; ties count half.
    """
    judged = [(row, verdict) for row, verdict in zip(rows, verdicts, strict=True) if not row.made]
    made = [
        (row, verdict)
        for row, verdict in zip(rows, verdicts, strict=True)
        if row.made and row.answer_kind == OFF_TOPIC
    ]
    named = [(_shown(row), (row, verdict)) for row, verdict in judged]
    kinds = sorted({name for name, _ in named})
    return {
        "agreement": {
            "all": _agreement(judged),
            "xy": _agreement([pair for pair in judged if pair[0].kind == "xy"]),
            "control": _agreement([pair for pair in judged if pair[0].kind == "control"]),
        },
        "agreement_by_kind": {
            kind: _shares([pair for name, pair in named if name == kind]) for kind in kinds
        }
        | {OFF_TOPIC: _shares(made)},
        "ranking": _ranking(judged),
    }


def _shown(row: Row) -> str:
    """Kind of an answer in the figures; attempts at either kind of item are told apart."""
    return f"attempt_{row.kind}" if row.answer_kind == "attempt" else row.answer_kind


def _hits(row: Row, verdict: Verdict) -> dict[str, float]:
    names = ("has_stated_solution", "has_intended_solution", "focus", "identifies_misconception")
    return {name: float(getattr(row.labels, name) == getattr(verdict, name)) for name in names}


def _agreement(pairs: Sequence[tuple[Row, Verdict]]) -> dict[str, Any]:
    hits = [_hits(row, verdict) for row, verdict in pairs]
    clusters = [row.cluster for row, _ in pairs]
    return {
        name: _as_dict(mean([hit[name] for hit in hits], clusters, bounds=(0, 1)))
        for name in (hits[0] if hits else ())
    }


def _shares(pairs: Sequence[tuple[Row, Verdict]]) -> dict[str, Any]:
    hits = [_hits(row, verdict) for row, verdict in pairs]
    return {name: round(float(np.mean([hit[name] for hit in hits])), 4) for name in hits[0]} | {
        "n": len(hits)
    }


def _ranking(pairs: Sequence[tuple[Row, Verdict]]) -> dict[str, Any]:
    soft = Reward(soft=True)
    rewards: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    clusters = {}
    for row, verdict in pairs:
        rewards[row.item_id][row.answer_kind].append(soft(verdict, row.kind))
        clusters[row.item_id] = row.cluster
    wins: dict[str, list[tuple[float, str]]] = defaultdict(list)
    for item_id, by_kind in rewards.items():
        best = next((kind for kind in ("goal_focused", "direct") if kind in by_kind), None)
        for kind, others in by_kind.items():
            if best is not None and kind != best:
                good = by_kind[best][0]
                won = [
                    ((good > other) + 0.5 * (good == other), clusters[item_id]) for other in others
                ]
                wins[f"{best} above {kind}"] += won
    return {
        name: _as_dict(mean([w for w, _ in won], [c for _, c in won], bounds=(0, 1)))
        for name, won in sorted(wins.items())
    }


def _as_dict(estimate: Estimate | None) -> dict[str, Any]:
    if estimate is None:
        return {"value": None, "low": None, "high": None, "n": 0}
    low, high = (None if v is None else round(v, 4) for v in (estimate.low, estimate.high))
    return {"value": round(estimate.value, 4), "low": low, "high": high, "n": estimate.n}


def fit(items: Sequence[Item], splits: Splits, encode: Encode) -> dict[str, Any]:
    """Everything that goes into local_head.json."""
    rows = build_rows(items, splits, encode)
    seen = {splits.placements[i.content_hash].cluster for i in items if splits.side(i) != "test"}
    heads = fit_heads(rows, seen)
    unseen = [row for row in rows if row.cluster not in seen]
    return {
        "version": VERSION,
        "fit": FIT_COMMAND,
        "items": len(items),
        "items_hash": items_hash(list(items)),
        "splits_hash": splits.hash,
        "label_columns": list(LABEL_COLUMNS),
        "figures": {
            "out_of_fold": figures(rows, out_of_fold(rows)),
            "test": figures(unseen, predict(heads, unseen)),
        },
        "heads": {kind: head.to_dict() for kind, head in heads.items()},
    }


# ---------------------------------------------------------------- command


def table(data: Mapping[str, Any]) -> str:
    """The figures as text: out of fold over all items, and on the test items."""
    lines = [f"{'':36}{'out of fold, all items':34}test items"]
    out_of_fold_figures, test = (data["figures"][name] for name in ("out_of_fold", "test"))

    def add(label: str, one: Mapping[str, Any], two: Mapping[str, Any] | None) -> None:
        cells = [_cell(one), _cell(two) if two else "-"]
        lines.append(f"{label:36}{cells[0]:34}{cells[1]}")

    for group in ("all", "xy", "control"):
        lines.append(f"agreement, {group}")
        for name, value in out_of_fold_figures["agreement"][group].items():
            add(f"  {name}", value, test["agreement"][group].get(name))
    lines.append("ranking by soft reward")
    for name, value in out_of_fold_figures["ranking"].items():
        add(f"  {name}", value, test["ranking"].get(name))
    lines.append(
        "agreement by kind of answer, out of fold: stated, intended, focus, misconception, n"
    )
    for kind, shares in out_of_fold_figures["agreement_by_kind"].items():
        cells = "  ".join(f"{v:.3f}" for name, v in shares.items() if name != "n")
        lines.append(f"  {kind:32}{cells}  {shares['n']}")
    return "\n".join(lines)


def _cell(value: Mapping[str, Any]) -> str:
    if value["value"] is None:
        return "-"
    interval = "" if value["low"] is None else f" [{value['low']:.3f}, {value['high']:.3f}]"
    return f"{value['value']:.3f}{interval} n={value['n']}"


def to_text(data: Mapping[str, Any]) -> str:
    """JSON, one list of numbers per line, so that a diff shows what moved."""
    text = json.dumps(data, indent=1, ensure_ascii=False)
    out: list[str] = []
    for line in text.split("\n"):
        inside = line.strip()
        number = inside.rstrip(",").lstrip("-")[:1].isdigit()
        if out and (number or (inside in ("]", "],") and out[-1][-1:].isdigit())):
            out[-1] += inside if inside[0] == "]" or out[-1].endswith("[") else f" {inside}"
        else:
            out.append(line)
    return "\n".join(out) + "\n"


def same_head(shipped: Mapping[str, Any], kind: str, head: Mapping[str, Any]) -> bool:
    """Whether the file has this head: the same names, and every number within `TOLERANCE`."""
    other = shipped.get("heads", {}).get(kind)
    if other is None or any(other.get(n) != head[n] for n in ("features", "classes")):
        return False
    numbers = ("mean", "scale", "weights", "bias", "labels")
    pairs = [(np.array(other.get(name, [])), np.array(head[name])) for name in numbers]
    return all(
        a.shape == b.shape and bool(np.allclose(a, b, rtol=TOLERANCE, atol=TOLERANCE))
        for a, b in pairs
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns the exit status."""
    parser = argparse.ArgumentParser(prog=FIT_COMMAND, description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit 1 if the shipped file differs"
    )
    options = parser.parse_args(arguments)
    data = fit(load_items("mini"), bundled_splits(), Encoder().encode)
    sys.stdout.write(table(data) + "\n")
    if not options.check:
        HEAD_FILE.write_text(to_text(data), "utf-8")
        sys.stdout.write(f"wrote {HEAD_FILE}\n")
        return 0
    shipped = json.loads(HEAD_FILE.read_text("utf-8"))
    differing = [
        name for name in ("items_hash", "splits_hash", "figures") if shipped.get(name) != data[name]
    ]
    differing += [
        f"heads.{kind}"
        for kind, head in data["heads"].items()
        if not same_head(shipped, kind, head)
    ]
    for name in differing:
        sys.stderr.write(f"{HEAD_FILE.name}: {name} differs from this fit; run {FIT_COMMAND}\n")
    return 1 if differing else 0


if __name__ == "__main__":
    raise SystemExit(main())
