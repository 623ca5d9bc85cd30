"""What `recipes/reward_model.py` is made of: settings, what the trainer reads, calibration, the comparison.

A reward model is trained on pairs, its output is calibrated to a judge's reward on the side that is not
evaluated, and on the held-out side both are compared: how well each ranks answers whose kind is known, how
far the model's reward is from the judge's, what is saved.

Not here: what all recipes share (`recipe/`), the model itself (`judges/reward_model.py`).
"""

from __future__ import annotations

import json
import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

from xyreward.compare import cell, known_answers, ranking
from xyreward.config import Places, RewardModelRecipe
from xyreward.errors import ConfigError, DataError, JudgeError, JudgeUnreliable
from xyreward.items import Item
from xyreward.judges import Judge, billed_to, described, load_judge
from xyreward.judges.panel import model_judges
from xyreward.judges.reward_model import FILE, Distilled, Reader, RewardModelJudge, load_reader
from xyreward.locate import is_adapter, short_hash
from xyreward.markdown import code
from xyreward.model_card import add_report
from xyreward.monotone import fit as fit_monotone
from xyreward.pairs import PairSet, build_pairs
from xyreward.pairs.candidates import references
from xyreward.prices import usual_tokens
from xyreward.recipe import (
    SET_BY_RECIPE,
    TRAINER_LIMITS,
    Data,
    Run,
    trainer_settings,
    wrong_sections,
)
from xyreward.rehearsal import rehearse, reward_step
from xyreward.reward import Reward
from xyreward.runs import RunFolder
from xyreward.scoring import Score, ascore, run_sync, stop_over_budget
from xyreward.sides import limited
from xyreward.splits import Side
from xyreward.stats import Estimate, mean

SET_BY_REWARD_MODEL: Mapping[str, str] = {
    **SET_BY_RECIPE,
    "chat_template_path": "use a policy with a chat template, and policy.chat_template_kwargs",
    "eos_token": "it is the policy's",
    "pad_token": "it is the policy's",
}
"""Fields of TRL's RewardConfig that the recipe sets itself -> where the user sets them."""

REWARD_MODEL_LIMITS: Mapping[str, str] = {
    **TRAINER_LIMITS,
    "center_rewards_coefficient": "[0, inf)",
    "max_length": "[2, inf)",
}

LENGTH = 1024
"""Tokens that a pair's answer and its query may have, where the configuration does not say."""

TOO_LONG = "an answer longer than max_length"
"""Reason under which pairs are left out: TRL would drop them without a word."""
MANY = 0.1
"""Share of pairs left out for their length above which that is a warning."""

REPORT, ANSWERS = "distilled", "distilled.jsonl"
"""Files of the run: the report as JSON and Markdown; every answer with both rewards."""

UNREWARDED = "labelled answers without a reward of the judge"
"""The fact that says of how many of all answers, compared or not, the judge's reward failed."""

Rewards = Mapping[tuple[str, str], Score]
"""(item id, answer) -> its score."""


# ---------------------------------------------------------------- settings


def wrong_training(config: Mapping[str, Any], places: Places) -> list[str]:
    """What is wrong with the sections `reward_model` and `lora`; see `recipe.wrong_sections`."""
    problems = wrong_sections(
        config, places, "reward_model", "RewardConfig", REWARD_MODEL_LIMITS, SET_BY_REWARD_MODEL
    )
    given = config.get("reward_model")
    if isinstance(given, Mapping) and "max_length" in given and given["max_length"] is None:
        problems.append(
            f"{places.of('reward_model.max_length')}: reward_model.max_length: is null, expected a number of "
            "tokens: the model scores nothing longer than what it was trained on"
        )
    lora = config.get("lora")
    if isinstance(lora, Mapping) and lora.get("task_type", "SEQ_CLS") != "SEQ_CLS":
        problems.append(
            f"{places.of('lora.task_type')}: lora.task_type: is {lora['task_type']!r:.40}, expected SEQ_CLS "
            "or nothing: otherwise the head would not be saved"
        )
    return problems


def reward_settings(config: RewardModelRecipe, path: Path | Places) -> tuple[Any, Any]:
    """TRL's RewardConfig and peft's LoraConfig (or None) of a configuration, fitted to the machine.

    Raises:
        ConfigError, JudgeError, MissingDependency: see `recipe.dpo_settings`; also a policy that is an
            adapter, which has no head for rewards.
    """
    policy = config.policy
    if is_adapter(policy.model, policy.revision):
        raise ConfigError(
            f"policy {policy.model!r} is an adapter of a model that writes; expected a model, to which the "
            "recipe puts a head for rewards"
        )
    return trainer_settings(
        config,
        path,
        "reward_model",
        "RewardConfig",
        wrong_training,
        partial(rehearse, step=reward_step),
        {"max_length": config.reward_model.get("max_length", LENGTH)},
        {
            "task_type": "SEQ_CLS"
        },  # peft then trains the new head whole, and saves it with the adapter
    )


def distilled_reward(config: RewardModelRecipe) -> Reward:
    """The reward that the model is to stand for: the expected one, since hard labels tie."""
    wanted = config.distilled
    return Reward(wanted.solution, wanted.focus, wanted.misconception, wanted.stated, soft=True)


def distilled_judge(config: RewardModelRecipe) -> Judge:
    """The judge whose reward that is; its bill goes by the run's folder.

    Raises:
        JudgeError, MissingDependency: it cannot be loaded.
    """
    wanted = config.distilled
    options = billed_to(wanted.judge, wanted.judge_options, f"{config.bill} distilled")
    return load_judge(wanted.judge, **options)


# ---------------------------------------------------------------- what is compared


@dataclass(frozen=True)
class HeldOut:
    """Answers of known kind that nothing is trained on."""

    calibration: tuple[Item, ...]
    """Whose answers the output is calibrated on: the side that is not evaluated."""
    side: Side
    """Its name."""
    evaluated: tuple[Item, ...]
    pairs: PairSet
    """Of the evaluated items, by the rule of training."""

    @property
    def answers(self) -> list[tuple[Item, str]]:
        """All that the judge rewards, each once."""
        return list(dict.fromkeys([*_answers(self.calibration), *self.compared]))

    @property
    def compared(self) -> list[tuple[Item, str]]:
        """All that both reward, each once."""
        of = {item.id: item for item in self.evaluated}
        sides = [(of[p.item_id], text) for p in self.pairs.pairs for text in (p.chosen, p.rejected)]
        return list(dict.fromkeys([*_answers(self.evaluated), *sides]))


def _answers(items: Sequence[Item]) -> list[tuple[Item, str]]:
    return [(item, reference.text) for item, reference in known_answers(items)]


def load_held_out(config: RewardModelRecipe, data: Data) -> HeldOut:
    """What the model is calibrated on and compared on, which the judge was shown.

    Raises:
        DataError: a side has no answers of known kind, or no pair.
        JudgeError, StoreError, MissingDependency: the judge cannot be loaded, or cannot judge these items.
    """
    wanted = config.evaluation
    side: Side = "test" if wanted.split == "dev" else "dev"
    # With leave_out what is evaluated, or what it nearly repeats, may lie on any side.
    clusters = set(data.clusters.values())
    there = data.sides.select(side)
    of = data.sides.clusters(there)
    others = [i for i in there if of[i.id] not in clusters and i.source != wanted.leave_out]
    calibration = tuple(limited(others, wanted.limit))
    for name, items in ((side, calibration), ("held-out", data.held_out)):
        if not any(r.kind and r.labels for item in items for r in item.references):
            raise DataError(
                [
                    f"none of the {len(items)} {name} items has a reference answer with a kind and labels; a "
                    "reward model is calibrated and compared on such; add mini to items, or references"
                ]
            )
    pairs = build_pairs(
        data.held_out,
        split=wanted.split,
        answers=references(data.held_out),
        rule=config.pairs.rule,
        splits=data.splits,
        seed=config.seed,
    )
    judge = distilled_judge(config)
    if (check := getattr(judge, "check", None)) is not None:
        check([*calibration, *data.held_out])
    return HeldOut(calibration, side, data.held_out, pairs)


def estimate(config: RewardModelRecipe, held_out: HeldOut) -> str:
    """A line on what rewarding these answers would cost. Sends nothing."""
    asked = held_out.answers
    told = described(distilled_judge(config), [i for i, _ in asked], [text for _, text in asked])
    return f"rewards of {len(asked)} labelled answers, judged by {told}"


# ---------------------------------------------------------------- training


def new_reader(run: Run, config: RewardModelRecipe) -> Reader:
    """The policy with a new head, to be trained."""
    wanted = config.policy
    dtype = "float32" if wanted.dtype == "auto" and config.lora is None else wanted.dtype
    return load_reader(
        wanted.model,
        config.distilled.shown,
        revision=wanted.revision,
        dtype=dtype,
        device=str(run.state.device),
        chat_template_kwargs=wanted.chat_template_kwargs,
        seed=config.seed,
    )


def training_rows(
    pairs: PairSet, reader: Reader, items: Sequence[Item], max_length: int, *, margins: bool
) -> tuple[PairSet, list[dict[str, Any]]]:
    """The pairs that fit, and the trainer's rows: tokenised here, so that it reads what is scored later.

    TRL leaves out a pair of which either side is longer than `max_length`, without a word. They are left out
    here, and counted among `dropped`.

    Args:
        pairs: all of them.
        reader: with the tokenizer.
        items: of the pairs.
        max_length: tokens of query and answer.
        margins: give the trainer each pair's margin.

    Raises:
        ConfigError: no pair is left.
        DataError: a pair is of an item that is not there, and its requests are to be shown.
    """
    of = {item.id: item for item in items}
    kept, rows = [], []
    for pair in pairs.pairs:
        item = of.get(pair.item_id)
        if item is None:
            if reader.shown == "goal":
                raise DataError(
                    [
                        f"pair {pair.id} is of item {pair.item_id!r}, which is not among the train items, "
                        "and distilled.shown goal needs its requests; add its source to items"
                    ]
                )
            item = Item.of_query([dict(message) for message in pair.prompt])
        chosen, rejected = (
            reader.ids(item, text, pair.prompt) for text in (pair.chosen, pair.rejected)
        )
        if max(len(chosen), len(rejected)) > max_length:
            continue
        kept.append(pair)
        margin = {"margin": float(pair.margin)} if margins else {}
        rows.append({"chosen_ids": chosen, "rejected_ids": rejected, **margin})
    left_out = len(pairs.pairs) - len(kept)
    if not kept:
        raise ConfigError(
            f"none of {left_out} pairs fits into reward_model.max_length={max_length} tokens of "
            f"{reader.name}; raise it"
        )
    dropped = Counter(pairs.dropped)
    if left_out:
        dropped[TOO_LONG] += left_out
    return replace(pairs, pairs=tuple(kept), dropped=dict(dropped)), rows


def length_warnings(pairs: PairSet) -> list[str]:
    """What was left out for its length, where that is much."""
    left_out = pairs.dropped.get(TOO_LONG, 0)
    total = left_out + len(pairs.pairs)
    if left_out <= MANY * total:
        return []
    return [
        f"{left_out} of {total} pairs are longer than reward_model.max_length and left out: the model will "
        "know nothing of long answers; raise it"
    ]


# ---------------------------------------------------------------- calibration and comparison


def score_all(
    answers: Sequence[tuple[Item, str]], judge: Judge, reward: Reward
) -> dict[tuple[str, str], Score]:
    """Scores of distinct answers.

    Raises:
        JudgeError: see `ascore`; also a budget that was spent before all were judged.
    """
    scores = run_sync(
        ascore([item for item, _ in answers], [text for _, text in answers], judge, reward)
    )
    stop_over_budget([s.failure and s.failure.kind for s in scores], "answers were not judged")
    return {(item.id, text): score for (item, text), score in zip(answers, scores, strict=True)}


def refuse_failures(judged: Rewards, config: RewardModelRecipe) -> None:
    """Calibrate nothing on what a bad night of the judge left: a scale of three answers looks like any other.

    Raises:
        JudgeUnreliable: more of the rewards failed than `evaluation.max_failure_rate` allows.
    """
    kinds = Counter(score.failure.kind for score in judged.values() if score.failure is not None)
    limit = config.evaluation.max_failure_rate
    if kinds.total() > limit * len(judged):
        told = ", ".join(f"{kind} {n}" for kind, n in sorted(kinds.items()))
        raise JudgeUnreliable(
            f"{kinds.total()} of {len(judged)} labelled answers have no reward of {config.distilled.judge} "
            f"({told}), above evaluation.max_failure_rate={limit:g}; nothing was calibrated, and what was "
            "paid for is in the store. Raise it where they will never have one"
        )


def calibrate(
    folder: Path,
    config: RewardModelRecipe,
    held_out: HeldOut,
    data: Data,
    judged: Rewards,
    max_length: int,
) -> int:
    """Fit the saved model's output to the judge's reward, and write that beside the model.

    From then on the folder is a judge, `reward_model:<folder>`.

    Returns:
        How many answers the scale was fitted to: those that both could read.

    Raises:
        JudgeError: there is none.
        RunFolderError: it cannot be written.
    """
    reader = load_reader(str(folder), config.distilled.shown)
    rows, rewards = [], []
    for item, text in dict.fromkeys(_answers(held_out.calibration)):
        reward, ids = judged[item.id, text].reward, reader.ids(item, text)
        if reward is not None and len(ids) <= max_length:
            rows.append(ids)
            rewards.append(reward)
    outputs = reader.outputs(rows)
    finite = [(o, r) for o, r in zip(outputs, rewards, strict=True) if math.isfinite(o)]
    if not finite:
        raise JudgeError(
            f"none of the {len(judged)} labelled answers has both a reward of {config.distilled.judge} and "
            "an output of the model, so there is nothing to calibrate it on; see why the judge failed, or "
            "whether the training diverged"
        )
    judge = distilled_judge(config)
    distilled = Distilled.of(
        folder,
        judge=judge.name,
        rubric_version=judge.rubric_version,
        weights=distilled_reward(config).shares(),
        shown=config.distilled.shown,
        max_length=max_length,
        scale=fit_monotone([o for o, _ in finite], [r for _, r in finite]),
        calibrated_on=tuple(sorted(map(short_hash, data.hashes_near(held_out.calibration)))),
    )
    RunFolder(folder).write(FILE, distilled.to_json())
    return len(finite)


@dataclass(frozen=True)
class Comparison:
    """A reward model beside the judge that it stands for, on held-out answers of known kind."""

    judge: str
    rubric_version: str
    answers: int
    """Compared."""
    calibrated_on: int
    """Answers that the scale was fitted to, none of them compared."""
    failed: int
    """Answers that the model did not score: too long, or an output that is no number."""
    judge_failed: int
    pairs: Estimate | None
    """Share of held-out pairs in which the model's reward of chosen is higher, in [0, 1]; ties are half."""
    judge_pairs: Estimate | None
    """Of the judge's reward, on the same pairs."""
    agreement_lost: Estimate | None
    """The judge's share less the model's, on the same pairs, in [-1, 1]; above 0: the judge ranks better."""
    same_order: Estimate | None
    """Of two answers to one item that the judge rewards unlike: the model orders them alike, in [0, 1]."""
    ranking: Mapping[str, Estimate | None]
    """`goal_focused above literal`, ...: the model's share, in [0, 1]."""
    judge_ranking: Mapping[str, Estimate | None]
    error: Estimate | None
    """Mean absolute difference of the two rewards, in [0, 1], lower is better."""
    error_of_a_constant: Estimate | None
    """The same, of always guessing the mean of the judge's rewards."""
    bias: Estimate | None
    """Mean of the model's reward less the judge's, in [-1, 1]."""
    judge_dollars: float | None
    """US dollars for 1,000 answers by the judge, which the model saves. None: unknown price."""
    seconds: float
    """That 1,000 answers take the model here."""

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self)

    def to_markdown(self) -> str:
        """The report, for people."""
        saved = (
            "unknown (its price is)" if self.judge_dollars is None else f"{self.judge_dollars:.2f}"
        )
        lines = [
            "# A reward model beside its judge",
            "",
            f"Judge: {code(self.judge)} ({code(self.rubric_version)}). {self.answers} held-out answers of "
            f"known kind; the scale was fitted to {self.calibrated_on} others. Shares in %, 95 % intervals "
            "over clusters of items; ties count half.",
            "",
            "| | reward model | judge |",
            "|---|---:|---:|",
            f"| answers without a reward | {self.failed} | {self.judge_failed} |",
            f"| held-out pairs: chosen above rejected | {cell(self.pairs)} | {cell(self.judge_pairs)} |",
            *(
                f"| {name} | {cell(self.ranking.get(name))} | {cell(self.judge_ranking.get(name))} |"
                for name in sorted({*self.ranking, *self.judge_ranking})
            ),
            "",
            "| lost and saved | |",
            "|---|---:|",
            f"| agreement lost: pairs that the judge ranks right less those that the model does, points | "
            f"{cell(self.agreement_lost)} |",
            f"| of two answers that the judge rewards unlike, ordered alike | {cell(self.same_order)} |",
            f"| error of the reward, mean absolute, of 100 | {cell(self.error)} |",
            f"| ... of always guessing the judge's mean | {cell(self.error_of_a_constant)} |",
            f"| reward of the model less the judge's, mean, of 100 | {cell(self.bias)} |",
            f"| US dollars saved per 1,000 answers | {saved} |",
            f"| seconds per 1,000 answers on this machine | {self.seconds:.0f} |",
            "",
            "Measured on answers like those of its training. A policy that is trained on this reward will "
            "look for answers that the model likes and the judge would not: ask the judge now and then.",
        ]
        return "\n".join(lines) + "\n"


def compare(
    held_out: HeldOut,
    judge: Judge,
    judged: Rewards,
    model: Rewards,
    clusters: Mapping[str, str],
    *,
    calibrated_on: int,
    seconds: float,
    seed: int = 0,
) -> Comparison:
    """Compare a reward model with its judge.

    Args:
        held_out: answers and pairs.
        judge: that it stands for.
        judged: the judge's scores of all answers.
        model: the model's scores of the compared ones.
        clusters: item id -> cluster, of the evaluated items.
        calibrated_on: how many answers the scale was fitted to.
        seconds: that scoring `model` took.
        seed: of the intervals.
    """
    answers = held_out.compared
    known = known_answers(held_out.evaluated)
    keys = [(item.id, reference.text) for item, reference in known]
    both = [
        (item.id, a, b)
        for item, text in answers
        if (a := model[item.id, text].reward) is not None
        and (b := judged[item.id, text].reward) is not None
    ]
    of = [clusters.get(item_id, item_id) for item_id, _, _ in both]
    average = sum(b for _, _, b in both) / len(both) if both else 0.0
    estimated = partial(mean, seed=seed, expand=True)
    wins = _wins(held_out.pairs, model, judged)
    where = [pair.cluster for pair in held_out.pairs.pairs if pair.id in wins]
    won = list(wins.values())
    orders = _orders(both)
    return Comparison(
        judge=judge.name,
        rubric_version=judge.rubric_version,
        answers=len(answers),
        calibrated_on=calibrated_on,
        failed=sum(model[item.id, text].reward is None for item, text in answers),
        judge_failed=sum(judged[item.id, text].reward is None for item, text in answers),
        pairs=estimated([m for m, _ in won], where, bounds=(0, 1)),
        judge_pairs=estimated([j for _, j in won], where, bounds=(0, 1)),
        agreement_lost=estimated([j - m for m, j in won], where, bounds=(-1, 1)),
        same_order=estimated(
            [same for _, same in orders], [clusters.get(i, i) for i, _ in orders], bounds=(0, 1)
        ),
        ranking=ranking(known, [model[key] for key in keys], clusters),
        judge_ranking=ranking(known, [judged[key] for key in keys], clusters),
        error=estimated([abs(a - b) for _, a, b in both], of, bounds=(0, 1)),
        error_of_a_constant=estimated([abs(average - b) for _, _, b in both], of, bounds=(0, 1)),
        bias=estimated([a - b for _, a, b in both], of, bounds=(-1, 1)),
        judge_dollars=dollars(judge, list(judged.values())),
        seconds=1000 * seconds / max(1, len(answers)),
    )


def _wins(pairs: PairSet, *by: Rewards) -> dict[str, tuple[float, ...]]:
    """Pair -> for each rater 1 where it ranks chosen higher, 0.5 for a tie; only pairs that all rated."""
    found: dict[str, tuple[float, ...]] = {}
    for pair in pairs.pairs:
        rewards = [
            (scores[pair.item_id, pair.chosen].reward, scores[pair.item_id, pair.rejected].reward)
            for scores in by
        ]
        known = [(c, r) for c, r in rewards if c is not None and r is not None]
        if len(known) == len(by):
            found[pair.id] = tuple((c > r) + 0.5 * (c == r) for c, r in known)
    return found


def _orders(both: Sequence[tuple[str, float, float]]) -> list[tuple[str, float]]:
    """Item and whether its two answers are ordered alike, of every two that the judge rewards unlike."""
    of_item: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for item_id, model, judge in both:
        of_item[item_id].append((model, judge))
    return [
        (item_id, 0.5 if m1 == m2 else float((m1 > m2) == (j1 > j2)))
        for item_id, rewards in of_item.items()
        for (m1, j1), (m2, j2) in combinations(rewards, 2)
        if j1 != j2
    ]


def dollars(judge: Judge, scores: Sequence[Score]) -> float | None:
    """US dollars for 1,000 answers by a judge; 0 for one that asks no model; None where a price is unknown.

    By what it was billed for these; where all came from the store, by the list price of usual verdicts.
    """
    if not (asked := model_judges(judge)):
        return 0.0
    paid = [
        outcome.cost_usd
        for score in scores
        if (outcome := score.verdict or score.failure) is not None
        and not (score.verdict is not None and score.verdict.cached)
    ]
    known = [cost for cost in paid if cost is not None]
    if known and len(known) == len(paid):
        return 1000 * sum(known) / len(known)
    total = 0.0
    for one in asked:
        cost = one.prices.expected(
            one.endpoint.name, 1000 * one.votes, cached=True, batch=one.in_batches, **usual_tokens()
        )
        if cost is None:
            return None
        total += cost
    return total


def finish(
    run: Run,
    config: RewardModelRecipe,
    folder: Path,
    held_out: HeldOut,
    data: Data,
    max_length: int,
    facts: Mapping[str, Any],
) -> None:
    """Calibrate what was saved, compare it, write the run's report and the model's card, and print it.

    The first process works; the others wait. What it reads is what lies in the folder, so a broken save shows
    here. A resumed run whose report is there asks again for rewards that failed, and where one comes now
    calibrates and compares anew; else it computes nothing.

    Raises:
        JudgeError, StoreError: see `ascore`; what was paid for is in the store, for `--resume`.
        JudgeUnreliable: see `refuse_failures`.
    """

    def work() -> str:
        kept = run.folder.read(f"{REPORT}.md") if (folder / FILE).is_file() else None
        judge, reward = distilled_judge(config), distilled_reward(config)
        asked = held_out.answers
        failed_before = 0 if kept is None else _failed_before(run, judge)
        if kept is not None and not failed_before:
            run.say("== comparison: kept from before")
            return kept
        again = f", of which {failed_before} failed before" if failed_before else ""
        with run.timed(f"rewards of {len(asked)} labelled answers by {judge.name}", again):
            judged = score_all(asked, judge, reward)
        failed = sum(score.failure is not None for score in judged.values())
        if kept is not None and failed >= failed_before:
            run.say(f"== comparison: kept from before, {failed} failed again")
            return kept
        refuse_failures(judged, config)
        with run.timed("calibration"):
            fitted_to = calibrate(folder, config, held_out, data, judged, max_length)
        distilled = RewardModelJudge(folder)
        distilled.reader  # noqa: B018  # loaded before it is timed
        start = time.perf_counter()
        model = score_all(held_out.compared, distilled, reward)
        found = compare(
            held_out,
            judge,
            judged,
            model,
            data.clusters,
            calibrated_on=fitted_to,
            seconds=time.perf_counter() - start,
            seed=config.seed,
        )
        page = found.to_markdown()
        run.write(ANSWERS, _lines(held_out, judged, model))
        of_run = {**facts, UNREWARDED: failed, **run.bill(), "seconds": run.seconds}
        told = {**found.to_dict(), "facts": of_run}
        run.write(f"{REPORT}.json", json.dumps(told, indent=2, ensure_ascii=False) + "\n")
        add_report(folder, page)
        run.write(f"{REPORT}.md", page)
        return page

    page = run.on_main(work)
    run.say("\n" + page)
    run.say(f"All of it is in {run.folder.path}; as a judge: reward_model:{folder}")


def _failed_before(run: Run, judge: Judge) -> int:
    """Rewards that failed in the comparison that is kept; 0 where it is another version's of the judge.

    Raises:
        RunFolderError: the comparison cannot be read.
    """
    name = f"{REPORT}.json"
    try:
        found = json.loads(run.folder.read(name) or "{}")
        same = (found["judge"], found["rubric_version"]) == (judge.name, judge.rubric_version)
        return int(found["facts"].get(UNREWARDED, found["judge_failed"])) if same else 0
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise run.folder.damaged(name, error) from None


def _lines(held_out: HeldOut, judged: Rewards, model: Rewards) -> str:
    """Every compared answer, a line each."""
    kinds = {(i.id, r.text): r.kind for i, r in known_answers(held_out.evaluated)}
    rows: Callable[[Item, str], dict[str, Any]] = lambda item, text: {  # noqa: E731
        "item_id": item.id,
        "kind": kinds.get((item.id, text)),
        "answer": text,
        "reward": model[item.id, text].reward,
        "judge_reward": judged[item.id, text].reward,
    }
    return "".join(
        json.dumps(rows(item, text), ensure_ascii=False) + "\n" for item, text in held_out.compared
    )
