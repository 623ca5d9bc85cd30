"""The evaluation of one policy, from a checked configuration to its run folder.

`recipes/evaluate.py` and `xyreward eval` are two command lines of it.

Not here: what is measured (`evaluation.py`), the steps themselves (`recipe/`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from xyreward import recipe
from xyreward.answering import place_of
from xyreward.config import Arguments, EvaluateRecipe
from xyreward.errors import ConfigError
from xyreward.evaluation import Evaluation, is_lacking
from xyreward.judges import OF_BATCHES, joined_options, options_of
from xyreward.judges.asking import nothing_sent
from xyreward.tracking import check_trackers

SET_HERE = frozenset({"votes", *OF_BATCHES, "schema", "max_tokens", "temperature"})
"""Options of judges that a policy does not have, or that the evaluation sets."""


def with_options(config: EvaluateRecipe, options: Mapping[str, Any]) -> EvaluateRecipe:
    """A configuration whose judge and policy have these options too, each those that it takes.

    Raises:
        ConfigError: neither takes an option.
    """
    wanted = config.evaluation
    of_judge = options_of(wanted.judge) if "writing" in wanted.parts else frozenset[str]()
    of_policy = frozenset[str]()
    if place_of(config.policy.model) == "api":
        of_policy = options_of(config.policy.model) - SET_HERE
    if unused := sorted(set(options) - of_judge - of_policy):
        raise ConfigError(
            f"{', '.join(unused)}: neither judge nor policy of this evaluation takes that; leave it out"
        )
    judge, policy = (
        {name: value for name, value in options.items() if name in known}
        for known in (of_judge, of_policy)
    )
    evaluation = wanted.model_copy(
        update={"judge_options": joined_options(wanted.judge_options, judge)}
    )
    return config.model_copy(
        update={
            "evaluation": evaluation,
            "policy_options": joined_options(config.policy_options, policy),
        }
    )


@dataclass
class PreparedEvaluation:
    """An evaluation whose items, policy, judge and settings were found to be in order. Nothing was sent yet.

    Raises:
        ConfigError, DataError, LeakError, JudgeError, StoreError, MissingDependency, HubUnreachable: what
            cannot be; see `recipe.check_before_evaluation`, `load_data`, `check_evaluation`.
    """

    config: EvaluateRecipe
    arguments: Arguments
    data: recipe.Data = field(init=False)
    _run: recipe.Run | None = field(init=False, default=None)
    _facts: dict[str, Any] = field(init=False, default_factory=dict)
    _found: Evaluation | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        check_trackers(self.config.report_to, "report_to")
        with nothing_sent(self.arguments.dry_run):
            recipe.check_before_evaluation(self.config)
            self.data = recipe.load_data(self.config, dry_run=self.arguments.dry_run)
            recipe.check_evaluation(self.config, self.data)

    def print_estimate(self) -> None:
        """Say what it would take. Sends nothing."""
        recipe.print_estimate(self.config, self.data, times=1)

    def begin(self) -> recipe.Run:
        """Open the run's folder.

        Raises:
            RunFolderError: it is of another run, of other data or another policy, or cannot be written.
        """
        if self._run is None:
            self._run = recipe.Run(self.config, self.arguments)
            self._facts = self._run.record_data(self.data)
        return self._run

    def run(self) -> Evaluation | None:
        """Do it, or go on with it, and write the report.

        Raises:
            RunFolderError: see `begin`.
            JudgeError, StoreError: no call can succeed, or a budget was spent on the way. What was paid for
                is in the store.
        """
        run = self.begin()
        for warning in recipe.control_warnings(self.config, self.data):
            run.say(f"== warning: {warning}")
        self._found = run.evaluate("evaluation", run.evaluated_policy(self.data), self.data)
        run.finish(self._found, None, self._facts)
        return self._found

    @property
    def lacking(self) -> int:
        """How many answers, of all conditions, have no verdict, or an API gave no reply where it should pick.

        0 before `run`. A reply that is no letter is a reply.
        """
        if self._run is None or self._found is None:
            return 0
        conditions = (self._found, *self._run.conditions.values())
        return sum(is_lacking(row) for one in conditions for row in one.rows)

    @property
    def status(self) -> int:
        """The exit status of an evaluation that ran to its end: 0, or 1 where some is `lacking`."""
        return 1 if self.lacking else 0
