"""What ends a training: in TRL's trainer on a tiny random policy, with a judge that fails."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from label_judge import LabelJudge
from test_trl_rewards import settings

from xyreward.errors import ConfigError, JudgeUnreliable
from xyreward.judge_guard import LEAST_JUDGED, JudgeGuard
from xyreward.scorer import Counts
from xyreward.testing import make_item
from xyreward.trl_rewards import component_functions, prompt_rows, reward_function


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xyreward.scorer.FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr("xyreward.scorer.LONGEST_PAUSE_S", 0.05)


def train(tiny: str, folder: Path, judge: LabelJudge, *, max_outage_s: float, steps: int) -> Any:
    from datasets import Dataset
    from trl import GRPOTrainer

    function = reward_function(judge, max_outage_s=max_outage_s)
    guard = JudgeGuard([function], max_failure_rate=0.3)
    items = [make_item(id=f"item {n}", query=f"How do I do {n}?") for n in range(4)]
    trainer = GRPOTrainer(
        model=tiny,
        args=settings("GRPO", folder, max_steps=steps),
        reward_funcs=function,
        train_dataset=Dataset.from_list(prompt_rows(items)),
        callbacks=[guard],
    )
    trainer.train()
    return guard, trainer


def test_an_outage_shorter_than_max_outage_s_is_waited_out(tiny: str, tmp_path: Path) -> None:
    guard, trainer = train(tiny, tmp_path, LabelJudge(out_for=3), max_outage_s=60, steps=2)
    assert trainer.state.global_step == 2
    guard.check()
    assert all(e["judge/failure_rate"] == 0 for e in trainer.state.log_history if "reward" in e)


def test_a_longer_outage_ends_the_run_in_its_step_with_a_checkpoint(
    tiny: str, tmp_path: Path
) -> None:
    guard, trainer = train(tiny, tmp_path, LabelJudge(out_for=10**6), max_outage_s=0.2, steps=5)
    assert trainer.state.global_step == 1
    assert (tmp_path / "checkpoint-1/trainer_state.json").is_file()
    with pytest.raises(JudgeUnreliable, match=r"no verdict for 0.2 s \(max_outage_s\)"):
        guard.check()


def test_a_judge_that_fails_too_often_ends_the_run_once_enough_was_judged(
    tiny: str, tmp_path: Path
) -> None:
    judge = LabelJudge(failing=0.9)
    guard, trainer = train(tiny, tmp_path, judge, max_outage_s=0, steps=8)
    assert trainer.state.global_step == LEAST_JUDGED / 8
    with pytest.raises(
        JudgeUnreliable, match=r"of 32 judgements of the last 4 steps failed, above max_failure"
    ):
        guard.check()


def test_small_steps_are_looked_at_together_until_enough_was_judged() -> None:
    function = reward_function(LabelJudge())
    guard = JudgeGuard([function], max_failure_rate=0.2)
    args = SimpleNamespace(device="cpu")
    steps = 0
    while guard.stopped is None and steps < LEAST_JUDGED:
        function.scorer.take_counts()
        function.scorer._counts = Counts(judged=2, failed=2)
        guard.on_step_end(args, None, SimpleNamespace())
        steps += 1
    assert steps == LEAST_JUDGED / 2  # more than the 10 steps of its window
    assert guard.stopped is not None
    assert "32 of 32 judgements of the last 16 steps" in guard.stopped


ONE_RANK_FAILS = """
import json, os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from datasets import Dataset
from trl import GRPOTrainer
from label_judge import LabelJudge
from test_trl_rewards import settings
from xyreward.judge_guard import JudgeGuard
from xyreward.testing import make_item
from xyreward.trl_rewards import NAMES, prompt_rows, reward_function, with_all_names

tiny, folder, kind = sys.argv[2:]
rank = os.environ["RANK"]

class Judge(LabelJudge):  # fails always in the second process, and in the second step in both
    def outcome(self, item, answer):
        self.failing = float(rank == "1" or self.calls == 2)
        return super().outcome(item, answer)

judge = Judge(kind=kind)
function = reward_function(judge, max_outage_s=0.5)
guard = JudgeGuard([function], max_failure_rate=1.0)
items = [make_item(id=f"item {n}", query=f"How do I do {n}?") for n in range(4)]
trainer = with_all_names(GRPOTrainer)(
    model=tiny,
    args=settings("GRPO", Path(folder), per_device_train_batch_size=4, max_steps=3, logging_steps=1),
    reward_funcs=function,
    train_dataset=Dataset.from_list(prompt_rows(items)),
    callbacks=[guard],
)
trainer.train()
log = [entry for entry in trainer.state.log_history if "reward" in entry]
told = {
    "stopped": guard.stopped,
    "steps": trainer.state.global_step,
    "failed": [entry["judge/failure_rate"] for entry in log],
    "names": len({tuple(sorted(entry)) for entry in log}),
    "missing": sorted(set(NAMES) - set(log[0])),
    "labels": [entry["labels/has_stated_solution"] for entry in log],
}
Path(folder, f"{rank}.json").write_text(json.dumps(told))
trainer.accelerator.end_training()  # otherwise gloo's threads may abort a process that ends
"""


@pytest.mark.parametrize("kind", ["unparseable", "transport"])
def test_processes_do_not_wait_for_ever_where_only_one_of_them_has_failures(
    tiny: str, tmp_path: Path, kind: str
) -> None:
    script = tmp_path / "script.py"
    script.write_text(ONE_RANK_FAILS)
    torchrun = Path(sys.executable).parent / "torchrun"
    command = [torchrun, "--standalone", "--nproc_per_node=2", script, Path(__file__).parent]
    done = subprocess.run(
        [*map(str, command), tiny, str(tmp_path), kind], capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stderr[-3000:]
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1))
    assert first["steps"] == second["steps"] == (3 if kind == "unparseable" else 1)
    # The mean of 0 and 1; in the second step both fail.
    assert first["failed"] == [0.5, 1, 0.5][: first["steps"]]
    assert first["names"] == second["names"] == 1
    assert first["missing"] == []
    # Of the process that has verdicts, and none where no process has.
    assert [label is None for label in first["labels"]] == [False, True, False][: first["steps"]]
    if kind == "unparseable":  # of single answers: no outage
        assert first["stopped"] is second["stopped"] is None
    else:
        assert first["stopped"] == "the judge stopped in another process"
        assert "no verdict for 0.5 s" in second["stopped"]


def step(guard: JudgeGuard) -> Any:
    control = SimpleNamespace(should_training_stop=False, should_save=False)
    guard.on_step_end(SimpleNamespace(device="cpu"), None, control)
    return control


def test_the_rate_is_of_the_latest_steps_and_a_few_failures_end_nothing() -> None:
    (function, *others) = component_functions(LabelJudge())
    guard = JudgeGuard([function, *others], max_failure_rate=0.2, window=2)
    counts = function.scorer._counts
    counts.judged, counts.failed = 31, 31
    assert not step(guard).should_training_stop  # too few to say
    counts = function.scorer._counts
    counts.judged, counts.failed = 200, 10
    assert not step(guard).should_training_stop  # 41 of 231
    counts = function.scorer._counts
    counts.judged, counts.failed = 200, 70
    control = step(guard)  # 80 of 400, the bound itself
    assert not control.should_training_stop
    counts = function.scorer._counts
    counts.judged, counts.failed = 200, 11
    control = step(guard)  # 81 of 400
    assert control.should_training_stop
    assert control.should_save
    assert (
        guard.stopped
        == "81 of 400 judgements of the last 2 steps failed, above max_failure_rate=0.2"
    )


def test_waiting_must_be_shorter_than_the_patience_of_other_processes() -> None:
    guard = JudgeGuard([reward_function(LabelJudge(), max_outage_s=900)])
    arguments = {"world_size": 2, "ddp_timeout": 1800}
    with pytest.raises(ConfigError, match="max_outage_s is 900 s, but processes wait 1800 s"):
        guard.on_train_begin(SimpleNamespace(**arguments), None, None)
    guard.on_train_begin(SimpleNamespace(**{**arguments, "ddp_timeout": 1801}), None, None)
    guard.on_train_begin(SimpleNamespace(**{**arguments, "world_size": 1}), None, None)
