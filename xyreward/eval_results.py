"""A run's figures in the forms that Hugging Face's hub shows: `.eval_results/*.yaml` and `model-index`.

`.eval_results/*.yaml` lies in a model's repository and says how the model did on a *benchmark*, a data set of
the hub with an `eval.yaml` that names tasks. The hub puts it on the model's page and on the data set's
leaderboard. One entry is one task and one number:

    - dataset: {id: allenai/XYBench-dataset, task_id: intended_solution, revision: <commit>}
      value: 61.5
      date: '2026-11-30'
      notes: judge anthropic:..., rubric ..., n 390, 95 % interval 56.6 to 66.2; items: the test side, ...

`model-index` is the older form, in the front matter of a model's card, and takes any data set.

Both are huggingface_hub's to write. https://huggingface.co/docs/hub/eval-results

Not here: the card's text (`model_card.py`), the report (`report.py`).
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from ruamel.yaml import YAML

from xyreward import __version__
from xyreward.config import EvaluationConfig, parse_yaml
from xyreward.errors import ConfigError, DataError, MissingDependency
from xyreward.items import ItemKind
from xyreward.locate import is_hub_name
from xyreward.metrics import METRICS, Metric, metrics_of
from xyreward.report import read_report
from xyreward.runs import RunFolder
from xyreward.shown import in_words, percent
from xyreward.stats import Estimate
from xyreward.which_items import is_whole_side, which_items

FOLDER = ".eval_results"
OF_TRAIN_SIDE = "evaluated items of the train side"
"""The fact of a report that counts them."""
MINI = "mini, which comes with xyreward"
TASKS = ("stated_solution", "intended_solution", "paper_focus_intended", "misconception", "picking")
"""Metrics that the paper of the benchmark has too."""
ON_CARD = (
    "stated_solution", "intended_solution", "focus_intended", "misconception", "goal_served",
    "preference", "picking", "picking_margin", "control_direct", "control_invents",
)  # fmt: skip
"""Metrics in the front matter of a card; the card's own section has all."""


@dataclass(frozen=True)
class DataSet:
    """What a kind of item was read from, as it may be published: no name of a folder."""

    name: str
    id: str | None
    """On the hub; None: not of the hub, or of several sources."""
    revision: str | None = None
    several: bool = False
    """Of more than one source, which no one data set's leaderboard can have."""


def data_set(
    items: Sequence[Mapping[str, Any]], kind: ItemKind, facts: Mapping[str, Any]
) -> DataSet:
    """The data set that items of a kind are of.

    Args:
        items: the configuration's section `items`.
        kind: of items.
        facts: of the report; its sources have the commit that was loaded.
    """
    wanted = [one for one in items if kind in one.get("kinds", ("xy", "control"))]
    found: list[DataSet] = []
    for one in wanted:
        source = str(one["source"])
        if source == "mini":
            found.append(DataSet(MINI, None))
        elif _of_hub(source, facts):
            commits = [
                match[1]
                for line in facts.get("sources", ())
                if (match := re.match(rf"{re.escape(source)}@([0-9a-f]{{40}}): ", str(line)))
            ]
            found.append(DataSet(source, source, commits[0] if commits else one.get("revision")))
        else:
            found.append(DataSet("a data set of the authors", None))
    if len(found) == 1:
        return found[0]
    names = " and ".join(dict.fromkeys(one.name for one in found))
    return DataSet(names or "none", None, several=True)


def _of_hub(source: str, facts: Mapping[str, Any]) -> bool:
    """Whether a source is on the hub, and no path of two parts: facts name a hub's with its commit."""
    if not is_hub_name(source) or Path(source).exists():
        return False
    return not any(str(line).startswith(f"{source}: ") for line in facts.get("sources", ()))


# ---------------------------------------------------------------- model-index


def model_index(
    report: Mapping[str, Any],
    items: Sequence[Mapping[str, Any]],
    name: str,
    evaluation: EvaluationConfig,
) -> list[dict[str, Any]]:
    """The front matter's `model-index` of the policy that a run ends with.

    Args:
        report: as `build_report` gives it.
        items: the configuration's section `items`.
        name: of the model.
        evaluation: the configuration's section: which items were evaluated, and how they were answered.

    Raises:
        MissingDependency: huggingface_hub is not installed.
    """
    try:
        from huggingface_hub.repocard_data import EvalResult, eval_results_to_model_index
    except ImportError:
        raise MissingDependency(
            "model cards need huggingface_hub: pip install huggingface_hub"
        ) from None
    side = "after" if "after" in report["policies"] else "before"
    known = {line["key"]: line for line in report["metrics"]}
    of_train_side = report["facts"].get(OF_TRAIN_SIDE, 0)
    split: str = evaluation.split
    if not is_whole_side(evaluation, of_train_side):
        split = which_items(evaluation, of_train_side)
    answers = _answers(report, evaluation)
    results = []
    for metric in metrics_of(ON_CARD):
        estimate = known.get(metric.key, {}).get(side)
        if estimate is None:
            continue
        kind = metric.kind or "xy"
        source = data_set(items, kind, report["facts"])
        results.append(
            EvalResult(
                task_type="text-generation",
                task_name=f"answering {'questions with a hidden goal' if kind == 'xy' else 'controls'}",
                dataset_type=source.id or "other",
                dataset_name=source.name,
                dataset_split=split,
                dataset_revision=source.revision,
                metric_type=metric.key,
                metric_name=f"{metric.title}, % ({_spread(estimate)}{_by(metric, side, report, answers)})",
                metric_value=_percent(estimate["value"]),
            )
        )
    head = report["headline"][side]
    if head["value"] is not None:
        kinds = [data_set(items, kind, report["facts"]).name for kind in ("xy", "control")]
        ends = in_words(Estimate(head["value"], head["low"], head["high"], 0, head["why"]))
        results.append(
            EvalResult(
                task_type="text-generation",
                task_name="telling questions with a hidden goal from controls",
                dataset_type="other",
                dataset_name=" and ".join(dict.fromkeys(kinds)),
                dataset_split=split,
                metric_type="xyreward_headline",
                metric_name=f"headline, in [-1, 1] ({ends}; judge {report['judge']}; {answers})",
                metric_value=round(head["value"], 4),
            )
        )
    return list(eval_results_to_model_index(name, results)) if results else []


def _by(metric: Metric, side: str, report: Mapping[str, Any], answers: str) -> str:
    """Who judged a figure, of which answers, and what is missing from it."""
    if metric.part == "picking":
        line = next(line for line in report["metrics"] if line["key"] == metric.key)
        failed, asked = _picked_nothing(line, side)
        return f"; {failed} of {asked} picked nothing" if failed else ""
    if metric.part != "writing":
        return ""
    failed = sum(
        one["failed"] for one in report["failures"].get(side, ()) if one["kind"] == metric.kind
    )
    missing = f", {failed} answers without labels" if failed else ""
    return f"; judge {report['judge']}{missing}; {answers}"


def _answers(report: Mapping[str, Any], evaluation: EvaluationConfig) -> str:
    """How many answers to an item there are, and how they were drawn."""
    # The remark of the run knows more: an API that has a temperature of its own, a file that has several.
    for note in report.get("notes", ()):
        if note.startswith("answers: "):
            return str(note)
    temperature = evaluation.temperature
    drawn = "greedy" if temperature is None else f"temperature {temperature:g}"
    return f"answers: {evaluation.answers_per_item} per item, {drawn}"


def _picked_nothing(line: Mapping[str, Any], side: str) -> tuple[int, int]:
    """On how many items nothing was picked, and how many there were, of a metric of picking.

    The bounds of a share are as far apart as the share of failures, which is how a report has them by kind
    of item; its `pick_failed` is of all kinds together.
    """
    n: int = line[side]["n"]
    if not (bounds := line["failure_bounds"].get(side)):
        return 0, n
    share = abs(bounds[1] - bounds[0])
    asked = round(n / (1 - share))
    return asked - n, asked


def _spread(told: Mapping[str, Any]) -> str:
    estimate = Estimate(**told)
    return f"n {estimate.n}, {in_words(estimate, digits=2, scale=100)}"


def _percent(share: float) -> float:
    return round(100 * share, 2)


# ---------------------------------------------------------------- .eval_results


def eval_results(
    run: Path,
    *,
    dataset: str | None = None,
    revision: str | None = None,
    tasks: Mapping[str, str] | None = None,
    policy: str | None = None,
    source_url: str | None = None,
    max_failure_rate: float = 0.05,
    any_items: bool = False,
) -> str:
    """The text of a file for `.eval_results/` in the repository of the model that a run measured.

    Args:
        run: its folder.
        dataset: name of the benchmark on the hub. None: the one that the items with a hidden goal were
            loaded from. Needed where they were loaded from a copy in a folder.
        revision: commit of it. None: the one that was loaded, where it is known.
        tasks: metric -> id of the task in the benchmark's `eval.yaml`. None: the `TASKS` that were measured,
            each by its own key.
        policy: `before` or `after`. None: what the run ends with.
        source_url: where the hub's reader finds more.
        max_failure_rate: a figure of which more judgements failed, or of whose questions more were answered
            with no pick, is refused.
        any_items: also figures of some sources, of the first few items, or of items of the train side. The
            notes say of which.

    Raises:
        DataError: no report, names of no form that the hub knows, items that are not of the benchmark or no
            whole held-out side of it, metrics that were not measured or whose judgements failed too often;
            all at once.
        MissingDependency: huggingface_hub is not installed.
    """
    try:
        import huggingface_hub as hub
    except ImportError:
        raise MissingDependency(
            "eval results need huggingface_hub: pip install huggingface_hub"
        ) from None
    folder = RunFolder(run)
    report, config, evaluation = _read(folder)
    problems: list[str] = []
    of_train_side = report["facts"].get(OF_TRAIN_SIDE, 0)
    which = which_items(evaluation, of_train_side)
    if not any_items and not is_whole_side(evaluation, of_train_side):
        problems.append(
            f"the items are {which}, where readers expect all of a held-out side; with --any-items it is "
            "published, and the notes say so"
        )
    problems += _misnamed(dataset, revision, tasks or {}, source_url)
    found = data_set(config.get("items") or (), "xy", report["facts"])
    if dataset is None and found.id is None:
        known = found.name == MINI or found.several
        problems.append(
            f"the items with a hidden goal are of {found.name}, and not of one data set of the hub"
            + ("" if known else "; where they are a copy of one, name it with --dataset")
        )
    if dataset is not None and (
        found.name == MINI or found.several or found.id not in (None, dataset)
    ):
        problems.append(f"the items with a hidden goal are of {found.name}, and not of {dataset}")
    side = policy or ("after" if "after" in report["policies"] else "before")
    if side not in report["policies"]:
        problems.append(f"policy {side!r}, expected one of {', '.join(report['policies'])}")
    lines = {line["key"]: line for line in report["metrics"]}
    measured = [key for key in TASKS if lines.get(key, {}).get(side)]
    wanted = dict(tasks) if tasks is not None else {key: key for key in measured}
    kinds = {metric.key: metric.kind for metric in METRICS}
    for key in wanted:
        if kinds.get(key) != "xy":
            about = ", ".join(name for name, kind in kinds.items() if kind == "xy")
            problems.append(
                f"no metric {key!r} of items with a hidden goal, expected some of {about}"
            )
        elif not lines.get(key, {}).get(side):
            problems.append(f"{key} was not measured of the policy {side!r}")
        elif lines[key]["unit"] != "%":
            problems.append(f"{key} is no share of items")
    if not wanted:
        problems.append("nothing was measured that the benchmark has")
    failed = {f["kind"]: f for f in report["failures"].get(side, ())}.get("xy")
    judged = [key for key in wanted if key in lines and lines[key]["part"] == "writing"]
    if judged and failed is not None and failed["rate"] > max_failure_rate:
        problems.append(
            f"{percent(failed['rate'])} of the answers have no labels, more than "
            f"{percent(max_failure_rate)}; have those answered and judged before you publish"
        )
    for key in wanted:
        if lines.get(key, {}).get(side) and lines[key]["part"] == "picking":
            nothing, asked = _picked_nothing(lines[key], side)
            if nothing > max_failure_rate * asked:
                problems.append(
                    f"{key}: {nothing} of {asked} picked nothing, more than {percent(max_failure_rate)}; the "
                    "figure would be of the others alone"
                )
    if problems:
        raise DataError(problems)
    day = datetime.fromtimestamp((run / "report.json").stat().st_mtime, UTC).date().isoformat()
    entries = [
        hub.EvalResultEntry(
            dataset_id=dataset or found.id,
            task_id=task,
            value=_percent(lines[key][side]["value"]),
            dataset_revision=revision or found.revision,
            date=day,
            source_url=source_url,
            notes=_notes(report, lines[key], side, which, evaluation, failed),
        )
        for key, task in wanted.items()
    ]
    data = hub.eval_result_entries_to_yaml(entries)
    assert hub.parse_eval_result_entries(data) == entries  # what the hub's own reader makes of it
    stream = io.StringIO()
    yaml = YAML()
    yaml.default_flow_style = False
    yaml.width = 2**16
    yaml.dump(data, stream)
    return stream.getvalue()


_TASK = re.compile(r"[A-Za-z0-9][\w.:/-]*", re.ASCII)
_REVISION = re.compile(r"[\w][\w./-]*", re.ASCII)


def _misnamed(
    dataset: str | None, revision: str | None, tasks: Mapping[str, str], source_url: str | None
) -> list[str]:
    """What has no form that the hub knows: it would go nowhere there, and here into the name of a file."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    problems = []
    if dataset is not None:
        try:
            validate_repo_id(dataset)
        except HFValidationError:
            known = False
        else:
            known = is_hub_name(dataset)
        if not known:
            problems.append(
                f"dataset is {dataset!r:.80}, expected owner/name, such as allenai/XYBench-dataset"
            )
    if revision is not None and (not _REVISION.fullmatch(revision) or ".." in revision):
        problems.append(f"revision is {revision!r:.80}, expected a commit of the data set")
    problems += [
        f"task of {metric!r:.40} is {task!r:.80}, expected an id of letters, digits and ._:/-, as eval.yaml "
        "has it"
        for metric, task in tasks.items()
        if not _TASK.fullmatch(task)
    ]
    if len(set(tasks.values())) < len(tasks):
        problems.append("two metrics have the same task, expected one each")
    if source_url is not None and not re.fullmatch(r"https?://[^\s/]+\S*", source_url):
        problems.append(
            f"source_url is {source_url!r:.80}, expected an address that begins with https://"
        )
    return problems


def benchmark_of(text: str) -> str:
    """The name of the data set in a text that `eval_results` made."""
    name: str = YAML(typ="safe").load(text)[0]["dataset"]["id"]
    return name


class _Source(BaseModel):
    source: str
    kinds: list[str] = []
    revision: str | None = None


class _Sections(BaseModel):
    """Of a configuration, what is looked at here."""

    items: list[_Source] | None = None
    evaluation: dict[str, Any] | None = None


def _read(folder: RunFolder) -> tuple[dict[str, Any], dict[str, Any], EvaluationConfig]:
    texts = {name: folder.read(name) for name in ("report.json", "config.yaml")}
    if absent := [name for name, text in texts.items() if text is None]:
        raise DataError(
            [
                f"{folder.path}: has no {' and no '.join(absent)}, expected the folder of a run that ended"
            ]
        )
    try:
        report = read_report(texts["report.json"] or "")
        if not isinstance(report["facts"].get("sources", []), list):
            raise ValueError("facts.sources is no list")
        if any(line["part"] == "writing" for line in report["metrics"]) and not report["judge"]:
            raise ValueError("judge is not named, and answers were judged")
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise folder.damaged("report.json", error, only_read=True) from None
    try:
        config = dict(parse_yaml(texts["config.yaml"] or "", "config.yaml"))
        _Sections.model_validate(config)
        evaluation = EvaluationConfig.model_validate(config.get("evaluation") or {})
    except (ConfigError, ValueError, TypeError) as error:
        raise folder.damaged("config.yaml", error, only_read=True) from None
    return report, config, evaluation


def _notes(
    report: Mapping[str, Any],
    line: Mapping[str, Any],
    side: str,
    which: str,
    evaluation: EvaluationConfig,
    failed: Mapping[str, Any] | None,
) -> str:
    """What the number cannot say: who judged, on how many items of which side, how certain it is."""
    told = [f"xyreward {__version__}"]
    if line["part"] == "writing":
        told.append(f"judge {report['judge']}, rubric {report['rubric_version']}")
        told += [note for note in report.get("notes", ()) if note.startswith("verdicts ")]
    told.append(f"{_spread(line[side])}; items: {which} (sides are xyreward's)")
    if line["part"] == "writing" and failed is not None:
        told.append(
            f"{failed['failed']} of {failed['judged'] + failed['failed']} answers without labels"
        )
        told.append(answers := _answers(report, evaluation))
        if not answers.startswith("answers: from a file"):  # of which nobody here knows
            told[-1] += f", max_new_tokens {evaluation.max_new_tokens}"
    if line["part"] == "picking":
        nothing, asked = _picked_nothing(line, side)
        told.append(f"{nothing} of {asked} picked nothing")
        told += [note for note in report.get("notes", ()) if note.startswith("picks: ")]
    return "; ".join(told)
