"""Held-out evaluation of a policy: writing, preference, picking.

    writing      the policy answers, a judge labels the answers (one answer per item, greedy, or several)
    preference   which of two reference answers the policy itself finds likelier, per token: the
                 goal-focused or the literal one (controls: the direct or the overcorrecting one)
    picking      both answers are shown and the policy is asked which is better, in both orders
    oracle       writing, where the prompt also says what is asked and what is really wanted
    reference    no policy: the items' own answers of one kind, judged like those of a policy

Not here: what is made of the rows (`metrics.py`), intervals (`stats.py`), tables (`report.py`).
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from functools import partial as partially
from typing import Any, Literal, TypeVar

from xyreward.answering import (
    PARTS,
    Evaluated,
    EvaluationPart,
    FilePolicy,
    How,
    RemotePolicy,
    Written,
    check_conditions,
    check_how,
    replies_in_letters,
    write,
)
from xyreward.errors import ConfigError
from xyreward.items import AnswerKind, Item, ItemKind, Reference
from xyreward.judges import Judge, check_gives_labels, load_judge
from xyreward.judges.panel import model_judges
from xyreward.kept_rows import SCHEMA, read_lines
from xyreward.partial import Partial
from xyreward.policy import Answer, LogProb
from xyreward.prices import without_url
from xyreward.reward import Reward
from xyreward.scoring import Score, score, stop_over_budget

OPTIONS = ("A", "B")
REPLIED = ("unparseable", "truncated")
"""Failures of picking where a reply came: it is in the store, and would be the same."""

PICKING_PROMPT = """Someone asked an assistant:

{query}

Answer A:

{a}

Answer B:

{b}

Which answer is better for this person? Reply with one letter, A or B."""
"""The question says nothing of goals: whether the policy thinks of them is what is measured."""

ORACLE_PROMPT = """{query}

---
What I literally ask for here: {stated}
What I am really after: {intended}"""
"""The last turn where the goal is told. Of a control both lines say the same."""

Condition = Literal["writing", "oracle"]
"""What the policy is told: the query alone, or also what is behind it."""

Decider = Literal["judge", "rubric_version"]
"""What decides labels."""
_DECIDERS: tuple[tuple[Decider, str, str], ...] = (
    ("judge", "judge", "judges"),
    ("rubric_version", "version of the rubric", "versions of the rubric"),
)
"""Each, and what one and several are called."""

T = TypeVar("T")

Progress = Callable[[str, int, int], object]
"""Called with what is being done, how much was just done, and how much there is in all."""


@dataclass(frozen=True)
class Row:
    """What was measured on one answer to an item.

    Fields of a part that was not run, or not possible, are None. What is of the item and of none of its
    answers (preference, picking) stands with the first one.
    """

    item_id: str
    kind: ItemKind
    source: str
    domain: str
    language: str
    cluster: str
    answer_index: int = 0
    """Which of the answers to the item, from 0."""
    comparable: bool = False
    """It has the two reference answers that preference and picking compare."""
    answer: str | None = None
    answer_tokens: int | None = None
    truncated: bool | None = None
    """The answer reached max_new_tokens."""
    verdict: dict[str, Any] | None = None
    """Labels, probabilities, judge and rubric version, the judge's reason and the suggestions that it
    found; None where the judge failed."""
    failure: dict[str, Any] | None = None
    """Why there are no labels: the judge's failure; or the policy's, whose kind begins with `policy_`: an
    API gave no answer, a file has none."""
    reward: float | None = None
    """Hard-label reward, in [0, 1], higher is better."""
    soft_reward: float | None = None
    """Expected reward under the judge's probabilities, in [0, 1], higher is better."""
    better: LogProb | None = None
    """Of the goal-focused answer (control: direct)."""
    worse: LogProb | None = None
    """Of the literal answer (control: overcorrecting)."""
    picked: float | None = None
    """Share of the two orders in which the better answer was picked: 0, 0.5 or 1 (ties count half)."""
    picked_first: float | None = None
    """Share of the two orders in which answer A was picked: 0.5 shows no preference for a position."""
    pick_margin: float | None = None
    """Logit of the better answer's letter minus the other's, mean over both orders, in nats. A preference
    for a position cancels out, so its sign tells what a policy that always says A would hide. None where
    an API was asked, which gives no logits."""
    pick_failure: str | None = None
    """Why an API picked nothing, in one order at least: `unparseable`, or a kind of `JudgeFailure`."""


@dataclass(frozen=True)
class Evaluation:
    """Rows of one policy, and who judged them."""

    policy: str
    rows: tuple[Row, ...]
    judge: str | None
    rubric_version: str | None
    parts: tuple[EvaluationPart, ...]
    condition: str = "writing"
    """`writing`, `oracle`, or `reference:<kind of answer>`."""
    remarks: tuple[str, ...] = ()
    """What whoever ran it has to say of it, in sentences; they come first in `notes`."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the figures must know, in sentences."""
        notes = list(self.remarks)
        for of, one, several in _DECIDERS:
            found, said = self.decided_by(of), getattr(self, of)
            if len(found) > 1:
                notes.append(f"verdicts of several {several} are pooled here: {', '.join(found)}")
            elif found and said not in found:
                notes.append(
                    f"verdicts are of another {one} than the evaluation says: {found[0]}, not {said}"
                )
        if not {"preference", "picking"} & set(self.parts):
            return tuple(notes)
        rows = [row for row in self.rows if not row.answer_index]
        total = len(rows)
        if bare := sum(not row.comparable for row in rows):
            notes.append(
                f"{bare} of {total} items have no pair of reference answers: no preference and no "
                "picking on those"
            )
        diverged = [
            row
            for row in rows
            if row.comparable
            and row.pick_failure is None
            and (
                ("preference" in self.parts and row.better is None)
                or ("picking" in self.parts and row.picked is None)
            )
        ]
        if diverged:
            notes.append(
                f"{self.policy} gave numbers that are not finite on {len(diverged)} of {total} items "
                "(training diverged?); they are left out of preference and picking"
            )
        if kinds := Counter(row.pick_failure for row in rows if row.pick_failure):
            notes.append(
                f"{self.policy} picked nothing on {kinds.total()} of {total} items ("
                + ", ".join(f"{kind} {n}" for kind, n in sorted(kinds.items()))
                + "); they are no picks and in no figure of picking but its failures"
            )
        return tuple(notes)

    def decided_by(self, what: Decider) -> tuple[str, ...]:
        """Judges, or versions of the rubric, that the verdicts themselves name, each once and sorted.

        What the evaluation says where verdicts name none; empty where nothing was judged.
        """
        said = getattr(self, what)
        found = {
            without_url((row.verdict.get(what) or said) or "") for row in self.rows if row.verdict
        } - {""}
        return tuple(sorted(found)) or ((said,) if said else ())

    def to_jsonl(self) -> str:
        """A line that describes the evaluation, then a line per row; docs/evaluate.md has their keys."""
        head = {
            "schema": SCHEMA,
            "policy": self.policy,
            "judge": self.judge,
            "rubric_version": self.rubric_version,
            "parts": self.parts,
            "condition": self.condition,
            "remarks": self.remarks,
        }
        lines = [head, *(asdict(row) for row in self.rows)]
        return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)

    @classmethod
    def from_jsonl(cls, text: str) -> Evaluation:
        """What `to_jsonl` wrote.

        Raises:
            OtherVersion: of a later schema, or with a field that this version does not know.
            ValueError: it is something else; says which line, which field.
        """
        head, lines = read_lines(text)
        rows = []
        for line in lines:
            for name in ("better", "worse"):
                line[name] = LogProb(**line[name]) if line.get(name) else None
            rows.append(Row(**line))
        return cls(
            policy=head["policy"],
            rows=tuple(rows),
            judge=head["judge"],
            rubric_version=head["rubric_version"],
            parts=tuple(head["parts"]),
            condition=head.get("condition", "writing"),
            remarks=tuple(head.get("remarks", ())),
        )


def evaluate(
    policy: Evaluated,
    items: Sequence[Item],
    *,
    judge: str | Judge = "local",
    parts: Sequence[EvaluationPart] = PARTS,
    clusters: Mapping[str, str] | None = None,
    max_new_tokens: int = 192,
    batch_size: int = 16,
    answers_per_item: int = 1,
    temperature: float | None = None,
    seed: int = 0,
    condition: Condition = "writing",
    remarks: Sequence[str] = (),
    progress: Progress | None = None,
    partial: Partial | None = None,
) -> Evaluation:
    """Measure a policy on held-out items.

    Args:
        policy: loaded by `load_policy`, `RemotePolicy.load` or `FilePolicy.load`.
        items: what to measure on. Items without the two reference answers have no preference and no
            picking; they are counted in `notes`.
        judge: for `writing`.
        parts: which measurements. A policy behind an API has no preference (nobody tells how likely it
            finds a given text), a file has writing only.
        clusters: item id -> cluster, for intervals; None: every item is its own.
        max_new_tokens, batch_size, answers_per_item, temperature, seed: see `How`.
        condition: `oracle` tells the policy what is asked and what is wanted; then `parts` is writing alone.
        remarks: see `Evaluation`.
        partial: where finished batches are kept and taken from; the same policy, items and settings are
            the caller's to see to (its `job`). Answers are judged together, and verdicts are kept when
            all are there; failed ones are not, so that they are asked for again.

    Raises:
        JudgeError, MissingDependency: before anything is generated, if the judge cannot be loaded or
            says that it cannot judge such items. Also: a budget was spent on the way; what was paid for is
            in the store.
        ConfigError: a part, a condition or a number of answers that the policy cannot have.
        ValueError: items share an id, or the goals of some were inferred by a model and those of others not.
    """
    how = How(answers_per_item, temperature, max_new_tokens, batch_size, seed)
    check_conditions(policy, parts, oracle=condition == "oracle")
    if condition == "oracle" and tuple(parts) != ("writing",):
        raise ConfigError(f"oracle is a condition of writing; found parts {', '.join(parts)}")
    if not isinstance(policy, FilePolicy):
        check_how(policy.name, how)
    judged_by = load_judge(judge) if "writing" in parts else None
    check_items(items, judged_by)
    kept = Partial() if partial is None else partial

    def tick(what: str, total: int) -> Callable[[int], object] | None:
        return (lambda done: progress(what, done, total)) if progress else None

    written = [[Written(None)] for _ in items]
    if judged_by is not None:
        written = write(
            policy,
            items if condition == "writing" else [told_the_goal(item) for item in items],
            how,
            progress=tick(condition, len(items) * answers_per_item),
            through=kept.step(condition, asdict, lambda found: Answer(**found)),
        )
        _stop_where_unwritten([one for several in written for one in several])
    rows = _rows(items, written, clusters)
    if judged_by is not None:
        _judge_rows(rows, items, judged_by, kept, progress)

    first = {row["item_id"]: row for row in rows if not row["answer_index"]}
    compared = [(item, *pair) for item in items if (pair := contrast(item))]
    for item, _, _ in compared:
        first[item.id]["comparable"] = True
    if "preference" in parts:
        assert not isinstance(policy, RemotePolicy | FilePolicy)  # check_conditions
        prompts = [item.messages for item, _, _ in compared]
        values = policy.log_probs(
            prompts + prompts,
            [better.text for _, better, _ in compared] + [worse.text for _, _, worse in compared],
            progress=tick("preference", 2 * len(compared)),
            through=kept.step("preference", asdict, lambda found: LogProb(**found)),
        )
        for i, (item, _, _) in enumerate(compared):
            # A policy that diverged gives NaN: not measured, and said so in `notes`.
            both = (values[i], values[i + len(compared)])
            if all(math.isfinite(value.total) for value in both):
                first[item.id].update(better=both[0], worse=both[1])
    if "picking" in parts:
        asked = [picking_prompt(item, better.text, worse.text) for item, better, worse in compared]
        asked += [picking_prompt(item, worse.text, better.text) for item, better, worse in compared]
        told = tick("picking", len(asked))
        if isinstance(policy, RemotePolicy):
            picks = _picks_of_letters(policy, items, how, told)
        else:
            assert not isinstance(policy, FilePolicy)
            logits = policy.option_logits(
                asked, OPTIONS, progress=told, through=kept.step("picking", list, list)
            )
            picks = [_picked_by_logits(*two) for two in _both_orders(logits)]
        for (item, _, _), pick in zip(compared, picks, strict=True):
            first[item.id].update(pick)

    return Evaluation(
        policy=policy.name,
        rows=tuple(Row(**row) for row in rows),
        judge=judge_name(judged_by) if judged_by else None,
        rubric_version=judged_by.rubric_version if judged_by else None,
        parts=tuple(parts),
        condition=condition,
        remarks=tuple(remarks),
    )


def asks_again(row: Row, policy: Evaluated | None) -> bool:
    """Whether what failed on a row is worth asking for again.

    That is whatever the judge failed on, and what a policy behind an API did not reply to. A reply that is
    no letter is a reply, and a file has no more than it has.

    Args:
        policy: None: the items' own answers.
    """
    remote = isinstance(policy, RemotePolicy)
    if row.failure is not None and (row.answer is not None or remote):
        return True
    return remote and row.pick_failure not in (None, *REPLIED)


def is_lacking(row: Row) -> bool:
    """Whether an answer has no verdict, or did not come; or no reply came where the policy should pick."""
    return row.failure is not None or row.pick_failure not in (None, *REPLIED)


def ask_again(
    found: Evaluation,
    policy: Evaluated | None,
    items: Sequence[Item],
    *,
    judge: str | Judge = "local",
    how: How,
    progress: Progress | None = None,
) -> Evaluation:
    """The same evaluation, where what failed was asked for again; all that is there stays as it is.

    Args:
        found: of `evaluate` or `evaluate_references`.
        policy: whose; None: the items' own answers.
        items: those that it was of.
        judge: the one that judged it.
        how: as it was answered.

    Raises:
        JudgeError, MissingDependency, StoreError: see `evaluate`.
        ValueError: the judge, or its rubric, is another than that of the verdicts that are there.
    """
    rows = [{field.name: getattr(row, field.name) for field in fields(Row)} for row in found.rows]
    wanted = [row for row, one in zip(rows, found.rows, strict=True) if asks_again(one, policy)]
    of = {item.id: item for item in items}
    if "writing" in found.parts:
        judged_by = load_judge(judge)
        for what, was, now in (
            ("judge", found.judge, judge_name(judged_by)),
            ("rubric", found.rubric_version, judged_by.rubric_version),
        ):
            if was != now:
                raise ValueError(f"the {what} was {was!r:.80} and is {now!r:.80}")
        failed = [row for row in wanted if row["failure"] is not None]
        if isinstance(policy, RemotePolicy):
            _write_again(policy, failed, of, how, told=found.condition == "oracle")
        for row in failed:
            if row["answer"] is not None:
                row["failure"] = None
        _judge_rows(
            failed, [of[i] for i in {r["item_id"] for r in failed}], judged_by, Partial(), progress
        )
    if "picking" in found.parts and isinstance(policy, RemotePolicy):
        failed = [row for row in wanted if row["pick_failure"] not in (None, *REPLIED)]
        picks = _picks_of_letters(policy, [of[row["item_id"]] for row in failed], how)
        for row, pick in zip(failed, picks, strict=True):
            row.update({"pick_failure": None, **pick})
    return replace(found, rows=tuple(Row(**row) for row in rows))


def _write_again(
    policy: RemotePolicy,
    rows: Sequence[dict[str, Any]],
    of: Mapping[str, Item],
    how: How,
    *,
    told: bool,
) -> None:
    """Ask for the answers that did not come. Those of the same items that came are in the store."""
    missing = [row for row in rows if row["answer"] is None]
    if not missing:
        return
    items = [of[item_id] for item_id in dict.fromkeys(row["item_id"] for row in missing)]
    written = write(policy, [told_the_goal(item) for item in items] if told else items, how)
    by_id = {item.id: several for item, several in zip(items, written, strict=True)}
    now = [by_id[row["item_id"]][row["answer_index"]] for row in missing]
    _stop_where_unwritten(now)
    for row, one in zip(missing, now, strict=True):
        row.update(
            answer=one.text,
            answer_tokens=one.tokens,
            truncated=one.truncated,
            failure=None if one.failure is None else dict(one.failure),
        )


def evaluate_references(
    items: Sequence[Item],
    kind: AnswerKind,
    *,
    judge: str | Judge = "local",
    clusters: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> Evaluation:
    """Judge the items' own answers of one kind as if a policy had written them.

    Items without such an answer have no row.

    Raises:
        JudgeError: the judge cannot be loaded or cannot judge such items, or its budget was spent.
        ValueError: see `evaluate`; also: no item has such an answer.
    """
    having = [(item, [r for r in item.references if r.kind == kind]) for item in items]
    having = [(item, answers) for item, answers in having if answers]
    if not having:
        raise ValueError(f"none of {len(items)} items has an answer of kind {kind}")
    judged_by = load_judge(judge)
    with_answer = [item for item, _ in having]
    check_items(with_answer, judged_by)
    rows = _rows(with_answer, [[Written(r.text) for r in found] for _, found in having], clusters)
    _judge_rows(rows, with_answer, judged_by, Partial(), progress)
    without = len(items) - len(having)
    return Evaluation(
        policy=f"reference:{kind}",
        rows=tuple(Row(**row) for row in rows),
        judge=judge_name(judged_by),
        rubric_version=judged_by.rubric_version,
        parts=("writing",),
        condition=f"reference:{kind}",
        remarks=(f"{without} of {len(items)} items have no answer of kind {kind}",)
        if without
        else (),
    )


def told_the_goal(item: Item) -> Item:
    """What the policy is asked of an item where the goal is told; nothing else of it is of use."""
    text = ORACLE_PROMPT.format(
        query=item.messages[-1]["content"],
        stated=item.stated_request,
        intended=item.intended_request,
    )
    *before, last = item.messages
    return _asking(item, (*before, {**last, "content": text}))


def letter_questions(items: Sequence[Item]) -> list[Item]:
    """The questions of `picking`: those of all items in one order, then in the other."""
    compared = [(item, *pair) for item in items if (pair := contrast(item))]
    return [
        *(_asking(i, picking_prompt(i, better.text, worse.text)) for i, better, worse in compared),
        *(_asking(i, picking_prompt(i, worse.text, better.text)) for i, better, worse in compared),
    ]


def _asking(item: Item, messages: Sequence[Mapping[str, str]]) -> Item:
    return Item.model_validate(
        {
            "id": item.id,
            "query": tuple(messages),
            "stated_request": item.stated_request,
            "intended_request": item.intended_request,
        }
    )


def judge_name(judge: Judge) -> str:
    """A judge's name without an address: a server that comes back at another port is the same judge."""
    return without_url(judge.name)


def check_items(items: Sequence[Item], judge: Judge | None) -> None:
    """Refuse what cannot be one evaluation, before anything is asked.

    Raises:
        JudgeError: the judge gives no labels, or cannot judge such items.
        ValueError: items share an id; some bring their goals and of others they are inferred.
    """
    if judge is not None:
        check_gives_labels(judge)
    if (check := getattr(judge, "check", None)) is not None:
        check(items)
    if len({item.id for item in items}) != len(items):
        raise ValueError("items of an evaluation need distinct ids; two sources share some")
    inferred = sum(not item.is_grounded for item in items)
    if judge is not None and 0 < inferred < len(items):
        raise ValueError(
            f"a model infers the goals of {inferred} of the {len(items)} items, and the others bring theirs; "
            "verdicts on the two are not averaged, so evaluate them apart"
        )


def _rows(
    items: Sequence[Item],
    written: Sequence[Sequence[Written]],
    clusters: Mapping[str, str] | None,
) -> list[dict[str, Any]]:
    """A row per answer, item by item."""
    return [
        {
            "item_id": item.id,
            "kind": item.kind,
            "source": item.source,
            "domain": item.domain,
            "language": item.language,
            "cluster": (clusters or {}).get(item.id, item.id),
            "answer_index": index,
            "answer": one.text,
            "answer_tokens": one.tokens,
            "truncated": one.truncated,
            "failure": None if one.failure is None else dict(one.failure),
        }
        for item, several in zip(items, written, strict=True)
        for index, one in enumerate(several)
    ]


def _judge_rows(
    rows: Sequence[dict[str, Any]],
    items: Sequence[Item],
    judge: Judge,
    kept: Partial,
    progress: Progress | None,
) -> None:
    """Add what the judge says of the answers that are there."""
    of = {item.id: item for item in items}
    answered = [row for row in rows if row["answer"] is not None]
    asked = [of[row["item_id"]] for row in answered], [row["answer"] for row in answered]
    with _told_of(judge, len(answered), progress):
        judged = kept.whole(
            "judging",
            {"judge": judge_name(judge), "rubric_version": judge.rubric_version},
            partially(_all_judged, *asked, judge),
            lambda found: not any(one.get("failure") for one in found),
        )
    failures = (one.get("failure") for one in judged)
    stop_over_budget([f and f["kind"] for f in failures], "answers were not judged")
    for row, verdict in zip(answered, judged, strict=True):
        row.update(verdict)


def _stop_where_unwritten(written: Sequence[Written]) -> None:
    kinds = [one.failure and one.failure["kind"] for one in written]
    stop_over_budget(kinds, "answers were not written")


@contextmanager
def _told_of(judge: Judge, answers: int, progress: Progress | None) -> Iterator[None]:
    """While a judge that asks models is at work, tell of each of its questions that is decided."""
    asking = model_judges(judge)
    total = answers * sum(one.votes for one in asking)
    before = [one.on_outcome for one in asking]
    if progress and total:
        told = progress
        for one in asking:
            one.on_outcome = lambda: told("judging", 1, total)
    try:
        yield
    finally:
        for one, its in zip(asking, before, strict=True):
            one.on_outcome = its


def _both_orders(values: Sequence[T]) -> list[tuple[T, T]]:
    half = len(values) // 2
    return list(zip(values[:half], values[half:], strict=True))


def _picked_by_logits(
    better_first: Sequence[float], worse_first: Sequence[float]
) -> dict[str, Any]:
    gaps = [one[0] - one[1] for one in (better_first, worse_first)]
    if not all(math.isfinite(gap) for gap in gaps):
        return {}
    return {**_picks(*map(wins, gaps)), "pick_margin": (gaps[0] - gaps[1]) / 2}


def _picks_of_letters(
    policy: RemotePolicy,
    items: Sequence[Item],
    how: How,
    progress: Callable[[int], object] | None = None,
) -> list[dict[str, Any]]:
    """What an API picks of the items that have two answers to compare, in their order."""
    replies = replies_in_letters(policy, letter_questions(items), how, progress=progress)
    stop_over_budget(replies, "questions of picking were not asked")
    return [_picked_by_letter(*two) for two in _both_orders(replies)]


def _picked_by_letter(better_first: str, worse_first: str) -> dict[str, Any]:
    if failed := [reply for reply in (better_first, worse_first) if reply not in OPTIONS]:
        return {"pick_failure": failed[0]}
    return _picks(float(better_first == "A"), float(worse_first == "A"))


def _picks(first_of_better: float, first_of_worse: float) -> dict[str, Any]:
    """From how far answer A was picked with the better, and with the worse answer first."""
    return {
        "picked": (first_of_better + 1 - first_of_worse) / 2,
        "picked_first": (first_of_better + first_of_worse) / 2,
    }


def contrast(item: Item) -> tuple[Reference, Reference] | None:
    """The better and the worse reference answer that preference and picking compare, if both are there."""
    kinds: tuple[AnswerKind, AnswerKind] = (
        ("direct", "overcorrecting") if item.kind == "control" else ("goal_focused", "literal")
    )
    better, worse = (item.reference(kind) for kind in kinds)
    return (better, worse) if better and worse else None


def picking_prompt(item: Item, a: str, b: str) -> list[dict[str, str]]:
    """The question of `picking` about two answers, as chat messages."""
    # One pass over the template: a query that contains "{a}" must not pull the answer in.
    text = PICKING_PROMPT.format(query=item.query_text, a=a, b=b)
    return [{"role": "user", "content": text}]


def wins(gap: float) -> float:
    """1 for a positive difference, 0 for a negative one, ties half."""
    return 0.5 if gap == 0 else float(gap > 0)


def _all_judged(
    items: Sequence[Item], answers: Sequence[str], judge: Judge
) -> list[dict[str, Any]]:
    scores: list[Score] = score(list(items), list(answers), judge=judge)
    return [judged_fields(*one) for one in zip(items, answers, scores, strict=True)]


def judged_fields(item: Item, answer: str, judged: Score) -> dict[str, Any]:
    """The fields of a `Row` that are the judge's: verdict and rewards, or the failure."""
    if judged.failure is not None or judged.verdict is None:
        return {"failure": asdict(judged.failure) if judged.failure else None}
    verdict = judged.verdict
    return {
        "verdict": {
            **asdict(verdict.labels),
            "p": {**asdict(verdict.p), "focus": dict(verdict.p.focus)},
            "judge": without_url(verdict.judge),
            "rubric_version": verdict.rubric_version,
            "grounded": verdict.grounded,
            "votes": verdict.votes,
            "flags": list(verdict.flags),
            "reason": verdict.reason,
            "suggestions": [asdict(suggestion) for suggestion in verdict.suggestions],
        },
        "reward": judged.reward,
        "soft_reward": Reward(soft=True)(verdict, item.kind, answer),
    }
