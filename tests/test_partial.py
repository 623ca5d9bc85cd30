"""An evaluation that is stopped loses one batch at most, and ends with the bytes it would have had."""

import gc
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from xyreward import recipe
from xyreward.config import Arguments, EvaluateRecipe
from xyreward.errors import RunFolderError
from xyreward.partial import Partial
from xyreward.policy import Policy, load_policy
from xyreward.testing import tiny_policy

ROOT = Path(__file__).parent.parent


def squares(partial: Partial, calls: list[int], numbers: list[int]) -> list[float]:
    through = partial.step("squares", lambda x: {"value": x}, lambda found: float(found["value"]))

    def work(batch: list[int]) -> Callable[[], list[float]]:
        def compute() -> list[float]:
            calls.extend(batch)
            return [x * x / 3 for x in batch]

        return compute

    out: list[float] = []
    for start in range(0, len(numbers), 2):
        batch = numbers[start : start + 2]
        out += through(batch, work(batch))
    return out


def test_what_is_kept_is_not_computed_again_and_is_equal_to_the_last_bit(tmp_path: Path) -> None:
    file, calls = tmp_path / "a/work.jsonl", list[int]()
    first = squares(Partial(file, {"job": 1}), calls, [3, 1, 4, 1, 5])
    again = Partial(file, {"job": 1})
    assert again.batches == 3
    assert again.rows("squares") == 5
    assert squares(again, calls, [3, 1, 4, 1, 5]) == first
    assert calls == [3, 1, 4, 1, 5]
    # Other batches are other work, although every row of them is there.
    squares(again, calls, [1, 3])
    assert calls[5:] == [1, 3]
    again.remove()
    again.remove()
    assert not file.exists()


@pytest.mark.parametrize("cut", [1, 2, 30, 130])
def test_half_a_line_is_cut_off_and_the_rest_is_taken(tmp_path: Path, cut: int) -> None:
    file, calls = tmp_path / "work.jsonl", list[int]()
    squares(Partial(file, {"job": 1}), calls, [3, 1, 4, 2])
    whole = file.read_bytes()
    file.write_bytes(whole[:-cut])
    calls.clear()
    squares(Partial(file, {"job": 1}), calls, [3, 1, 4, 2])
    assert calls == ([4, 2] if cut < 130 else [3, 1, 4, 2])
    assert file.read_bytes() == whole


def test_work_of_another_job_is_not_taken_and_is_named(tmp_path: Path) -> None:
    file, calls = tmp_path / "work.jsonl", list[int]()
    squares(Partial(file, {"policy": "a", "tokens": 8}), calls, [3, 1])
    other = Partial(file, {"policy": "b", "tokens": 8})
    assert other.other == ("policy",)
    squares(other, calls, [3, 1])
    assert calls == [3, 1, 3, 1]
    assert not Partial(file, {"policy": "b", "tokens": 8}).other


@pytest.mark.parametrize(
    "line", ["not JSON", "[1]", '{"step": "squares"}', '{"step":"s","rows":[1],"results":[1,2]}']
)
def test_a_damaged_line_is_told_with_what_to_do(tmp_path: Path, line: str) -> None:
    file = tmp_path / "work.jsonl"
    squares(Partial(file, {}), [], [3, 1])
    lines = file.read_text().splitlines()
    file.write_text("\n".join([lines[0], line, *lines[1:]]) + "\n")
    with pytest.raises(RunFolderError, match=r"is not as a run left it .*remove it, and it is"):
        Partial(file, {})


def test_failed_judgements_are_not_kept(tmp_path: Path) -> None:
    file, calls = tmp_path / "work.jsonl", list[int]()

    def judge(results: list[int]) -> list[int]:
        def work() -> list[int]:
            calls.append(1)
            return results

        return Partial(file, {}).whole("judging", {"judge": "j"}, work, all)

    assert judge([1, 0]) == [1, 0]
    assert judge([1, 2]) == [1, 2]
    assert judge([3, 4]) == [1, 2]
    assert len(calls) == 2


# ---------------------------------------------------------------- a run


def config(folder: Path, tiny: str, **changes: Any) -> EvaluateRecipe:
    evaluation = {"limit": 3, "max_new_tokens": 8, "batch_size": 2, **changes}
    return EvaluateRecipe.model_validate(
        {"policy": {"model": tiny}, "evaluation": evaluation, "output_dir": str(folder)}
    )


def evaluated(wanted: EvaluateRecipe, *, resume: bool = False) -> bytes:
    data = recipe.load_data(wanted)
    run = recipe.Run(wanted, Arguments(Path("c.yaml"), resume=resume))
    run.record_data(data)
    run.evaluate("evaluation", run.load_policy(), data)
    return (run.folder.path / "evaluation.jsonl").read_bytes()


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How many rows went through the model, by kind of work."""
    done: Counter[str] = Counter()

    def counted(name: str) -> None:
        original = getattr(Policy, name)

        def method(self: Policy, rows: Any, *others: Any) -> Any:
            done[name] += len(rows)
            return original(self, rows, *others)

        monkeypatch.setattr(Policy, name, method)

    for name in ("_generate", "_log_probs", "_option_logits"):
        counted(name)
    return done


KILLED_IN_ITS_THIRD_BATCH = """
import os, runpy, signal
from xyreward.policy import Policy
original, batches = Policy._generate, []
def generate(*arguments):
    batches.append(arguments)
    if len(batches) == 3 and "GO_ON" not in os.environ:
        os.kill(os.getpid(), signal.SIGKILL)
    with open(f"{os.environ['COUNTS']}-{os.environ.get('RANK', '0')}", "a") as counts:
        counts.write("x" * len(arguments[1]))
    return original(*arguments)
Policy._generate = generate
runpy.run_path("recipes/evaluate.py", run_name="__main__")
"""


def test_a_killed_evaluation_goes_on_and_ends_with_the_same_bytes(
    tmp_path: Path, tiny: str, work: Counter[str], capsys: pytest.CaptureFixture[str]
) -> None:
    straight = evaluated(config(tmp_path / "straight", tiny))
    everything = dict(work)
    assert everything["_generate"] == 6
    wanted = config(tmp_path / "killed", tiny)
    path = tmp_path / "c.yaml"
    path.write_text(json.dumps(wanted.model_dump(mode="json")))
    kept = tmp_path / "killed/evaluation.unfinished.jsonl"
    process = subprocess.run(
        [sys.executable, "-c", KILLED_IN_ITS_THIRD_BATCH, "--config", path],
        cwd=ROOT,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "COUNTS": str(tmp_path / "counts")},
        capture_output=True,
        check=False,
    )
    assert process.returncode == -signal.SIGKILL, process.stderr
    lines = [json.loads(line) for line in kept.read_bytes().split(b"\n")[1:-1]]
    there = Counter({"writing": 0})
    for line in lines:
        there[line["step"]] += len(line["rows"])
    assert there == {"writing": 4}
    with pytest.raises(RunFolderError, match="Pass --resume"):
        evaluated(wanted)
    work.clear()
    assert evaluated(wanted, resume=True) == straight
    assert work["_generate"] == everything["_generate"] - there["writing"]
    assert work["_log_probs"] == everything["_log_probs"] - there["preference"]
    assert not kept.exists()
    assert f"with {there['writing']} of 6 answers" in capsys.readouterr().out
    work.clear()
    assert evaluated(wanted, resume=True) == straight
    assert not work


@pytest.mark.parametrize("step", ["_generate", "_log_probs", "_option_logits"])
def test_ctrl_c_in_any_part_loses_one_batch(
    tmp_path: Path,
    tiny: str,
    work: Counter[str],
    monkeypatch: pytest.MonkeyPatch,
    step: str,
) -> None:
    straight = evaluated(config(tmp_path / "straight", tiny))
    everything = dict(work)
    wanted = config(tmp_path / "run", tiny)
    original = getattr(Policy, step)
    work.clear()

    def interrupted(self: Policy, rows: Any, *others: Any) -> Any:
        if work[step]:
            raise KeyboardInterrupt
        return original(self, rows, *others)

    with monkeypatch.context() as patched:
        patched.setattr(Policy, step, interrupted)
        with pytest.raises(KeyboardInterrupt):
            evaluated(wanted)
    gc.collect()  # the run, which holds the folder's lock, hung on the exception
    assert evaluated(wanted, resume=True) == straight
    assert dict(work) == everything


def test_other_weights_are_answered_for_anew(
    tmp_path: Path, work: Counter[str], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tiny_policy(tmp_path / "policy")
    wanted = config(tmp_path / "run", folder, parts=["writing"])
    data = recipe.load_data(wanted)
    run = recipe.Run(wanted, Arguments(Path("c.yaml"), resume=False))
    kept = run._partial("after", load_policy(folder, device="cpu"), data.held_out)
    kept.step("writing", str, str)([0], lambda: ["x"])
    tiny_policy(folder, seed=1)  # as another training would have left it
    assert run._partial("after", load_policy(folder, device="cpu"), data.held_out).other == (
        "policy",
    )
    assert "but policy differ; computed anew" in capsys.readouterr().out


def test_two_processes_that_are_killed_keep_a_file_each(tmp_path: Path, tiny: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(KILLED_IN_ITS_THIRD_BATCH)

    def launch(name: str, *arguments: str, go_on: bool) -> int:
        wanted = config(tmp_path / name, tiny, batch_size=1, parts=["writing"])
        path = tmp_path / f"{name}.yaml"
        path.write_text(json.dumps(wanted.model_dump(mode="json")))
        torchrun = Path(sys.executable).parent / "torchrun"
        return subprocess.run(
            [torchrun, "--standalone", "--nproc_per_node=2", script, "--config", path, *arguments],
            cwd=ROOT,
            env={
                **os.environ,
                **({"GO_ON": "1"} if go_on else {}),
                "HF_HUB_OFFLINE": "1",
                "COUNTS": str(tmp_path / f"{name}-counts"),
            },
            capture_output=True,
            check=False,
        ).returncode

    def generated(name: str) -> int:
        return sum(len(file.read_text()) for file in tmp_path.glob(f"{name}-counts-*"))

    assert launch("straight", go_on=True) == 0
    assert launch("killed", go_on=False) != 0
    kept = sorted((tmp_path / "killed").glob("*.unfinished.jsonl"))
    assert {file.name for file in kept} <= {
        f"evaluation-{rank}-of-2.unfinished.jsonl" for rank in (0, 1)
    }
    batches = sum(file.read_bytes().count(b"\n") - 1 for file in kept)
    assert batches >= 2  # of the one that killed itself; the other was ended with it
    before = generated("killed")
    assert launch("killed", "--resume", go_on=True) == 0
    assert generated("killed") - before == generated("straight") - batches == 6 - batches
    names = [tmp_path / name / "evaluation.jsonl" for name in ("straight", "killed")]
    assert names[0].read_bytes() == names[1].read_bytes()
    assert not list((tmp_path / "killed").glob("*.unfinished.jsonl"))


def test_what_cannot_be_kept_says_how_to_go_on_also_where_no_option_resume_is(
    tmp_path: Path,
) -> None:
    kept = Partial(tmp_path / "folder" / "kept.jsonl", {})
    (tmp_path / "folder").write_text("in its way")
    with pytest.raises(RunFolderError, match=r"run the same again \(a recipe with --resume\)"):
        squares(kept, [], [1, 2])
