"""Rounds of on-policy DPO: each goes on from what the round before saved."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from xyreward import report as reports
from xyreward.config import Arguments, DPORecipe
from xyreward.errors import RunFolderError
from xyreward.evaluation import Evaluation
from xyreward.locate import is_adapter
from xyreward.recipe.account import CALIBRATION
from xyreward.recipe.console import begins, tell
from xyreward.recipe.data import load_data
from xyreward.recipe.processes import on_main, state_of
from xyreward.recipe.settings import dpo_settings
from xyreward.report_page import write_page
from xyreward.runs import ROUND, RunFolder

T = TypeVar("T")


def rounds(config: DPORecipe, arguments: Arguments) -> Iterator[tuple[DPORecipe, Arguments]]:
    """The configuration and arguments of each round: themselves where there is one.

    A round has a folder in the run's and goes on from what the round before saved, which is DPO's
    reference too; it samples with another seed. What was evaluated after the round before is what is
    before this one. With --resume a round that ended is not run again. After the last one the report of
    the whole run is written and printed.

    Raises:
        RunFolderError: see `RunFolder.open`.
    """
    if config.rounds == 1 or arguments.dry_run:
        yield config, arguments
        return
    dpo_settings(config, arguments.places)  # a mistake shows before there is a folder
    state = state_of(config)
    top = RunFolder(Path(config.output_dir))

    def open_folder() -> None:
        nonlocal top
        top = RunFolder.open(config, config.output_dir, resume=arguments.resume)
        begins(top)

    def check_order_of_rounds() -> None:
        ended = [_has_ended(top.path / f"{ROUND}{n}", config) for n in range(1, config.rounds + 1)]
        first = ended.index(False) if False in ended else len(ended)
        if any(ended[first:]):
            later = ended.index(True, first) + 1
            raise RunFolderError(
                f"{top.path}: {ROUND}{later} ended and {ROUND}{first + 1} did not, or is not there; it "
                f"would be run anew, and {ROUND}{later} went on from another policy. Put it back, or "
                f"remove {ROUND}{later} and those after it"
            )

    on_main(state, open_folder)
    on_main(state, check_order_of_rounds)
    policy, lora, before = config.policy, config.lora, None
    for number in range(1, config.rounds + 1):
        folder = top.path / f"{ROUND}{number}"
        if not on_main(state, partial(_has_ended, folder, config)):
            one = config.model_copy(
                update={
                    "rounds": 1,
                    "output_dir": str(folder),
                    "policy": policy,
                    "lora": lora,
                    "seed": (config.seed + number - 1) % 2**32,
                }
            )
            if state.is_main_process:
                tell(f"=== round {number} of {config.rounds}")
            yield one.billed_to(config.bill), replace(arguments, before=before)
        kind = (
            "adapter"
            if config.lora is not None or is_adapter(policy.model, policy.revision)
            else "model"
        )
        policy = config.policy.model_copy(update={"model": str(folder / kind), "revision": None})
        lora = None
        before = folder / "after.jsonl"
    if state.is_main_process:
        _finish_rounds(config, top)


def _has_ended(folder: Path, config: DPORecipe) -> bool:
    return (folder / ("report.json" if config.evaluation.parts else "training.json")).is_file()


def _finish_rounds(config: DPORecipe, top: RunFolder) -> None:
    """Write and print the report of before the first round against after the last one."""
    if not config.evaluation.parts:
        tell(f"No evaluation was asked for. The rounds are in {top.path}")
        return
    folders = [RunFolder(top.path / f"{ROUND}{n}") for n in range(1, config.rounds + 1)]

    def read(folder: RunFolder, name: str, parse: Callable[[str], T]) -> T:
        text = folder.read(name)
        try:
            return parse(text or "")
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise folder.damaged(name, error) from None

    of_all = [read(folder, "report.json", json.loads) for folder in folders]
    of_rounds = [one["facts"] for one in of_all]
    noted = dict.fromkeys(note for one in of_all for note in one.get("headline_notes", ()))
    facts = {
        "rounds": config.rounds,
        "report of each round": f"{ROUND}1/report.md, ...",
        **{
            f"round {n}": {name: facts[name] for name in OF_ROUNDS if name in facts}
            for n, facts in enumerate(of_rounds, start=1)
        },
        **{key: of_rounds[-1][key] for key in (CALIBRATION,) if key in of_rounds[-1]},
    }
    wanted = config.evaluation
    oracle = ("before.oracle", "after.oracle") if wanted.oracle else ()
    references = [f"reference.{kind}" for kind in wanted.references]
    shown = {
        name: read(
            folders[0] if name.startswith("before") else folders[-1],
            f"{name}.jsonl",
            Evaluation.from_jsonl,
        )
        for name in ("before", "after", *oracle, *references)
    }
    report = reports.build_report(
        shown["before"],
        shown["after"],
        conditions={name: one for name, one in shown.items() if name not in ("before", "after")},
        facts=facts,
        headline_notes=list(noted),
        max_failure_rate=wanted.max_failure_rate,
        seed=config.seed,
    )
    top.write("report.md", reports.to_markdown(report))
    write_page(top, report, shown, load_data(config).held_out)
    top.write("report.json", reports.to_json(report))
    tell(f"=== all {config.rounds} rounds\n\n{reports.to_markdown(report)}")
    tell(f"All of it is in {top.path}")


OF_ROUNDS = (
    "answers sampled", "pairs", "pairs from controls", "pairs by rule", "audit warnings", "steps",
    "mean training loss",
)  # fmt: skip
"""Facts of each round that the report of all rounds repeats."""
