"""What the recipes share: data with checked splits, trainer settings for this machine, evaluation, report.

A recipe (recipes/*.py) is then a page that reads from top to bottom. Everything that can be checked is
checked before the first answer is generated.

    console.py          what is told at the terminal: errors on one line, how to go on, exit statuses
    processes.py        this process among those of a run; cores and memory
    data.py             the items on their sides
    checks.py           who evaluates and is evaluated, and what can be wrong with that
    plans.py            what a run would do and cost
    settings.py         settings of TRL's trainers and of peft
    run.py              the run: its evaluations, its bill, its report
    training.py         around the training, and what is saved
    several_rounds.py   rounds of on-policy DPO

Not here: the training itself, which is TRL's.
"""

from xyreward.recipe.account import CALIBRATION, Card
from xyreward.recipe.checks import (
    check_before_evaluation,
    check_evaluation,
    elsewhere,
    evaluation_judge,
    how_to_answer,
    remote_policy,
)
from xyreward.recipe.console import (
    INTERRUPTED,
    JUDGE_FAILED,
    STOPPED,
    how_to_go_on,
    on_the_way,
    plain_errors,
    say_hello,
)
from xyreward.recipe.data import Data, check_not_seen, check_not_trained_on, load_data
from xyreward.recipe.plans import control_warnings, estimates, planned_steps, print_estimate
from xyreward.recipe.processes import check_installed, free_memory, peak_memory_gib, use_huge_pages
from xyreward.recipe.run import Run
from xyreward.recipe.settings import (
    DPO_LIMITS,
    DPO_LOSSES,
    SET_BY_RECIPE,
    SMOOTHED_LOSSES,
    TRAINER_LIMITS,
    dpo_settings,
    trainer_settings,
    wrong_sections,
    wrong_training,
)
from xyreward.recipe.several_rounds import rounds
from xyreward.recipe.training import as_loaded, building, fit, fit_to_length, rows

__all__ = [
    "CALIBRATION",
    "DPO_LIMITS",
    "DPO_LOSSES",
    "INTERRUPTED",
    "JUDGE_FAILED",
    "SET_BY_RECIPE",
    "SMOOTHED_LOSSES",
    "STOPPED",
    "TRAINER_LIMITS",
    "Card",
    "Data",
    "Run",
    "as_loaded",
    "building",
    "check_before_evaluation",
    "check_evaluation",
    "check_installed",
    "check_not_seen",
    "check_not_trained_on",
    "control_warnings",
    "dpo_settings",
    "elsewhere",
    "estimates",
    "evaluation_judge",
    "fit",
    "fit_to_length",
    "free_memory",
    "how_to_answer",
    "how_to_go_on",
    "load_data",
    "on_the_way",
    "peak_memory_gib",
    "plain_errors",
    "planned_steps",
    "print_estimate",
    "remote_policy",
    "rounds",
    "rows",
    "say_hello",
    "trainer_settings",
    "use_huge_pages",
    "wrong_sections",
    "wrong_training",
]
