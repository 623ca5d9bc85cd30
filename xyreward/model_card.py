"""README.md beside what a recipe trained: of which policy, on what, and how it did.

peft and TRL write cards of their own, which are empty but for the folder that the base model had on
the machine of the training. Nothing here names such a folder: cards and adapters are pushed.

Not here: the report (`report.py`), the mark by which a training is recognised (`locate.Mark`), the
card of a folder of pairs (`pairs/card.py`).
"""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from xyreward.errors import RunFolderError
from xyreward.locate import ADAPTER, MARK, Mark, is_hub_name
from xyreward.markdown import code, plain
from xyreward.pairs import PairSet
from xyreward.training_prompts import Prompts
from xyreward.whole_file import write_whole

Method = Literal["DPO", "GRPO", "SFT", "reward modelling"]

CARD = "README.md"
EVALUATION = "## Held-out evaluation"
SETTINGS = (
    "loss_type", "beta", "learning_rate", "num_train_epochs", "max_steps", "max_length", "num_generations",
    "max_completion_length", "scale_rewards",
)  # fmt: skip
"""Of TRL's, those that a reader asks for first; the others are in the run's config.yaml."""


def model_card(
    mark: Mark,
    trained: PairSet | Prompts,
    facts: Mapping[str, Any],
    settings: Mapping[str, Any],
    *,
    adapter: bool,
    method: Method,
) -> str:
    """The card's text, without an evaluation yet.

    Args:
        mark: of the training.
        trained: on what: pairs (DPO), or prompts whose answers were rewarded (GRPO).
        facts: of the run (counts and hashes), shown as they are.
        settings: of TRL.
        adapter: an adapter and not a whole model.
        method: what trained it.
    """
    base = code(_base(mark))
    rewards = method == "reward modelling"
    out = [
        "---",
        _front_matter(mark, trained, adapter=adapter, method=method),
        "---",
        "",
        f"# {base}, trained towards the goal behind a question",
        "",
        f"{'An adapter' if adapter else 'A model'} that {method} made of {base} with xyreward: "
        f"{_aim(method, trained)}",
        "",
        "## Load",
        "",
        *(
            [
                "    from xyreward import score",
                '    score(item, answer, judge="reward_model:FOLDER").reward',
            ]
            if rewards
            else ["    from xyreward.policy import load_policy", '    load_policy("FOLDER")']
        ),
        "",
        f"`{MARK}` says which policy it is of and, by hash, on which items it was trained: xyreward does not "
        "evaluate it on those.",
        "",
        "## Trained on",
        "",
        *_lines(trained),
        *(f"- {plain(key)}: {plain(value)}" for key, value in facts.items()),
        *(f"- {key}: {plain(settings[key])}" for key in SETTINGS if key in settings),
        "",
        "What may be done with these weights follows from the licences of the base model and of "
        f"{'the answers' if isinstance(trained, PairSet) else 'the items, and from the terms of the judge'}.",
        "",
        EVALUATION,
        "",
        "None yet.",
    ]
    return "\n".join(out) + "\n"


def _base(mark: Mark) -> str:
    """The base's name; of a folder only its last part."""
    return mark.name if is_hub_name(mark.name) else Path(mark.name).name


def _aim(method: Method, trained: PairSet | Prompts) -> str:
    """What the training was after."""
    if method == "reward modelling":
        return (
            "it reads a question and an answer and gives a reward, higher where the answer serves what the "
            "user is after and, of controls, where it is direct."
        )
    if method == "SFT":
        return (
            "the answers that it learnt, the chosen ones of pairs, serve what a user is after and, of "
            "controls, are direct."
        )
    if isinstance(trained, PairSet):
        return (
            "chosen answers serve what a user is after, rejected ones only what was literally asked; of "
            "controls, where that is the same, chosen answers are direct."
        )
    return (
        "its own answers were rewarded for serving what a user is after, and on controls, where that is what "
        f"was asked, for answering directly. The reward was that of the judge {code(_named(trained.judge))}: "
        "it says how this model does by that judge, and other judges may see less of it."
    )


def _named(judge: str) -> str:
    """A judge's name; of a reward model without this machine's folders."""
    scheme, _, folder = judge.partition(":")
    if scheme != "reward_model":
        return judge
    return f"{scheme}:{'/'.join(Path(folder).parts[-2:])}"


def _lines(trained: PairSet | Prompts) -> list[str]:
    if isinstance(trained, Prompts):
        return [
            f"- {len(trained.items)} prompts, {trained.control_share:.0%} of them controls; hash "
            f"{code(trained.hash[:12])}",
            f"- sources of the items: {_counts(Counter(i.source for i in trained.items), 'prompts')}",
        ]
    pairs = trained.pairs
    return [
        f"- {len(pairs)} pairs of {len({p.item_id for p in pairs})} items, "
        f"{trained.control_share:.0%} from controls; hash {code(trained.hash[:12])}",
        f"- sources of the items: {_counts(Counter(p.source for p in pairs), 'pairs')}",
        f"- licences of the answers: {_counts(Counter(p.licence for p in pairs), 'pairs')}",
    ]


def _counts(counts: Mapping[str, int], of: str) -> str:
    return ", ".join(f"{plain(name or 'unknown')} ({n} {of})" for name, n in sorted(counts.items()))


def _front_matter(mark: Mark, trained: PairSet | Prompts, *, adapter: bool, method: Method) -> str:
    rewards = method == "reward modelling"
    of = trained.pairs if isinstance(trained, PairSet) else trained.items
    data: dict[str, Any] = {
        "library_name": "peft" if adapter else "transformers",
        "pipeline_tag": "text-classification" if rewards else "text-generation",
        "language": sorted({one.language for one in of if one.language}),
        "tags": [
            "xyreward",
            "reward-model" if rewards else method.lower(),
            "trl",
            "xy-problem",
        ],
    }
    if is_hub_name(mark.name) and not Path(mark.name).is_dir():
        data["base_model"] = mark.name
    return _yaml(data)


def write_card(folder: Path, card: str, mark: Mark) -> None:
    """Put card and mark beside what was saved, and take this machine's folders out of its configuration.

    A base that has a name is named by it in adapter_config.json, and not by the folder of a cache. Modules
    are named there in one order, so that the same training leaves the same bytes.

    Raises:
        RunFolderError: the files cannot be written.
    """
    try:
        write_whole(folder / MARK, mark.to_json())
        write_whole(folder / CARD, card)
        file = folder / ADAPTER
        if file.is_file():
            config = json.loads(file.read_text("utf-8"))
            if not Path(mark.name).is_dir():
                config |= {"base_model_name_or_path": mark.name, "revision": mark.revision}
            # A set for peft, in an order of each process: fingerprints of equal adapters would differ.
            if isinstance(modules := config.get("target_modules"), list):
                config["target_modules"] = sorted(modules)
            write_whole(file, json.dumps(config, indent=2, sort_keys=True) + "\n")
    except OSError as error:
        raise RunFolderError(f"{folder}: cannot be written ({error})") from error


def add_report(folder: Path, page: str, index: Sequence[Mapping[str, Any]] = ()) -> None:
    """Put a report into the card, in place of one that is there.

    Args:
        folder: where a card may lie; without one nothing is done.
        page: the report as Markdown; its own title is left out.
        index: the front matter's `model-index` (`eval_results.model_index`), which the hub shows.

    Raises:
        RunFolderError: the card cannot be written.
    """
    file = folder / CARD
    try:
        if not file.is_file():
            return
        before, found, _ = file.read_text("utf-8").partition(f"\n{EVALUATION}\n")
        before = _with_index(before, index)
        if found:
            # One level deeper, as the card has a heading for all of it. No text from data begins a line.
            lines = [
                f"#{line}" if line.startswith("##") else line
                for line in page.splitlines()
                if not line.startswith("# ")
            ]
            write_whole(file, f"{before}{found}\n{_text(lines)}\n")
    except (OSError, UnicodeDecodeError, YAMLError) as error:
        raise RunFolderError(f"{file}: cannot be written ({error})") from error


def _with_index(card: str, index: Sequence[Mapping[str, Any]]) -> str:
    """The card with this `model-index` in its front matter, in place of one that is there."""
    parts = card.split("---\n", 2)
    data = YAML().load(parts[1]) if len(parts) == 3 and not parts[0] else None
    if not index or not isinstance(data, Mapping):
        return card  # nothing to add, or a front matter of somebody's own
    return f"---\n{_yaml({**data, 'model-index': list(index)})}\n---\n{parts[2]}"


def _yaml(data: Mapping[str, Any]) -> str:
    stream = io.StringIO()
    yaml = YAML()
    yaml.default_flow_style = False
    yaml.width = 2**16  # a name stays on its line
    yaml.dump(data, stream)
    return stream.getvalue().rstrip()


def _text(lines: Sequence[str]) -> str:
    return "\n".join(lines).strip()
