"""The recipes as a user starts them: separate processes, on a tiny random policy, real judge and trainer."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from xyreward.evaluation import Evaluation
from xyreward.report import build_report, read_report, to_json, to_markdown
from xyreward.testing.fake_api import FakeAPI

ROOT = Path(__file__).parent.parent
BIN = Path(sys.executable).parent


def launch(
    recipe: str, *arguments: str, processes: int = 1, launcher: Sequence[str] = ()
) -> subprocess.CompletedProcess[str]:
    """Start a recipe. `launcher`: arguments of `accelerate launch`."""
    start = [str(BIN / "accelerate"), "launch", *launcher, f"recipes/{recipe}.py", *arguments]
    return subprocess.run(
        start if launcher else command(recipe, *arguments, processes=processes),
        capture_output=True,
        text=True,
        timeout=400,
        cwd=ROOT,
        env=environment(),
    )


def command(recipe: str, *arguments: str, processes: int = 1) -> list[str]:
    if processes == 0:  # as the Makefile does
        quiet = ["--quiet", "--config_file", "configs/accelerate/one_process.yaml"]
        start = [str(BIN / "accelerate"), "launch", *quiet]
    elif processes == 1:
        start = [str(BIN / "accelerate"), "launch"]
    else:  # `accelerate launch --cpu --num_processes 2` would silently run one
        start = [str(BIN / "torchrun"), "--standalone", f"--nproc_per_node={processes}"]
    return [*start, f"recipes/{recipe}.py", *arguments]


def environment() -> dict[str, str]:
    return {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}


def config(folder: Path, tiny: str, **changes: Any) -> str:
    """A configuration that runs in seconds: 8 pairs, 4 steps, 3 held-out items of each kind."""
    data: dict[str, Any] = {
        "policy": {"model": tiny},
        "items": [{"source": "mini"}],
        "pairs": {"rule": {"rejected_kinds": ["literal"]}, "max_pairs": 8},
        "lora": {"r": 2, "target_modules": "all-linear"},
        "dpo": {
            "per_device_train_batch_size": 2,
            "num_train_epochs": 1,
            "learning_rate": 1e-2,
            "max_length": 2048,
            "logging_steps": 1,
            "save_steps": 1,
        },
        "evaluation": {"limit": 3, "max_new_tokens": 12},
        "output_dir": str(folder / "run"),
    }
    data.update(changes)
    path = folder / "config.yaml"
    path.write_text(json.dumps(data))  # JSON is YAML
    return str(path)


@pytest.fixture(scope="module")
def finished(tiny: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    folder = tmp_path_factory.mktemp("dpo")
    path = config(folder, tiny)
    done = launch("dpo", "--config", path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "is_gradient_checkpointing" not in done.stderr
    return folder / "run", path, done.stdout


def test_the_run_folder_explains_itself(finished: tuple[Path, str, str]) -> None:
    run, _, _ = finished
    names = {p.name for p in run.iterdir()}
    assert names >= {
        "config.yaml", "environment.json", "data.json", "splits.json", "pairs.jsonl", "adapter",
        "before.jsonl", "after.jsonl", "log.jsonl", "report.json", "report.md",
        "report.html", "figures",
    }  # fmt: skip
    assert (run / "adapter/adapter_model.safetensors").is_file()
    pairs = [json.loads(line) for line in (run / "pairs.jsonl").read_text().splitlines()]
    assert len(pairs) == 8
    assert {p["split"] for p in pairs} == {"train"}
    facts = json.loads((run / "data.json").read_text())
    assert facts["pairs from controls"] == "25%"
    assert str(Path.home()) not in (run / "environment.json").read_text()


def test_what_is_beside_the_trained_policy_names_no_folder_and_has_the_report(
    finished: tuple[Path, str, str],
) -> None:
    run, _, _ = finished
    (checkpoint, *_) = (run / "checkpoints").glob("checkpoint-*")
    assert not (run / "checkpoints/README.md").exists()
    for folder in (run / "adapter", checkpoint):
        card = (folder / "README.md").read_text()
        assert str(run.parent) not in card
        assert "Model Card for Model ID" not in card
        assert "- 8 pairs of 8 items, 25% from controls" in card
    for file in (run / "adapter").iterdir():
        assert str(run.parent).encode() not in file.read_bytes(), file.name
    card = (run / "adapter/README.md").read_text()
    table = (run / "report.md").read_text().partition("Headline")[2].partition("## Facts")[0]
    assert table.strip().replace("\n## ", "\n### ") in card
    assert "- steps: 4" in card
    front = card.split("---\n")[1]
    assert "model-index:\n- name: run\n" in front
    assert "split: the test side, the first 3 of each kind\n" in front
    assert "- evaluated: the test side, the first 3 of each kind\n" in card


def test_its_log_has_no_noise_of_other_libraries(finished: tuple[Path, str, str]) -> None:
    _, _, printed = finished
    assert "evaluation evaluation" not in printed
    assert printed.startswith("== loading PyTorch and checking the configuration\n")


def test_no_held_out_item_was_trained_on(finished: tuple[Path, str, str]) -> None:
    run, _, _ = finished
    trained = {json.loads(ln)["item_id"] for ln in (run / "pairs.jsonl").read_text().splitlines()}
    held_out = {
        json.loads(ln)["item_id"] for ln in (run / "after.jsonl").read_text().split("\n")[1:] if ln
    }
    assert len(held_out) == 6
    assert not trained & held_out


def test_the_table_is_printed_and_training_changed_the_policy(
    finished: tuple[Path, str, str],
) -> None:
    run, _, printed = finished
    assert "# Held-out evaluation" in printed
    assert (run / "report.md").read_text() in printed
    report = json.loads((run / "report.json").read_text())
    assert report["implicit_reward"]["xy"]["margin"]["value"] != 0
    assert report["facts"]["steps"] == 4
    assert report["judge"] == "local"


def test_the_report_follows_from_the_files_beside_it(finished: tuple[Path, str, str]) -> None:
    run, _, _ = finished
    text = (run / "report.json").read_text("utf-8")
    report = read_report(text)
    assert [c["name"] for c in report["conditions"]] == ["before", "after"]
    before, after = (
        Evaluation.from_jsonl((run / f"{name}.jsonl").read_text("utf-8"))
        for name in ("before", "after")
    )
    assert to_json(build_report(before, after, facts=report["facts"])) == text
    assert to_markdown(report) == (run / "report.md").read_text("utf-8")


def test_a_second_run_into_the_folder_is_refused(finished: tuple[Path, str, str]) -> None:
    run, path, _ = finished
    before = (run / "report.json").read_bytes()
    again = launch("dpo", "--config", path)
    assert again.returncode != 0
    assert "is not empty" in again.stderr
    assert "--resume" in again.stderr
    assert f'File "{ROOT}/recipes' not in again.stderr  # our message, not our traceback
    assert (run / "report.json").read_bytes() == before


def test_the_same_seed_gives_the_same_pairs_and_figures(
    finished: tuple[Path, str, str], tiny: str, tmp_path: Path
) -> None:
    run, _, _ = finished
    done = launch("dpo", "--config", config(tmp_path, tiny))
    assert done.returncode == 0, done.stderr[-3000:]
    other = tmp_path / "run"
    assert (other / "pairs.jsonl").read_bytes() == (run / "pairs.jsonl").read_bytes()
    assert (other / "splits.json").read_bytes() == (run / "splits.json").read_bytes()
    assert (other / "before.jsonl").read_bytes() == (run / "before.jsonl").read_bytes()
    figures = [json.loads((r / "report.json").read_text())["metrics"] for r in (run, other)]
    assert figures[0] == figures[1]


def test_a_killed_run_is_resumed_and_ends_where_it_would_have(
    finished: tuple[Path, str, str], tiny: str, tmp_path: Path
) -> None:
    path = config(tmp_path, tiny)
    run = tmp_path / "run"
    process = subprocess.Popen(
        command("dpo", "--config", path),
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    deadline = time.monotonic() + 300
    while not list(run.glob("checkpoints/checkpoint-*/trainer_state.json")):
        assert process.poll() is None, "it ended before the first checkpoint"
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert not (run / "report.json").exists()

    done = launch("dpo", "--config", path, "--resume")
    assert done.returncode == 0, done.stderr[-3000:]
    assert "evaluation before: kept from before" in done.stdout
    straight, _, _ = finished
    resumed = json.loads((run / "report.json").read_text())
    expected = json.loads((straight / "report.json").read_text())
    assert resumed["facts"]["steps"] == expected["facts"]["steps"]
    margins = [r["implicit_reward"]["xy"]["margin"]["value"] for r in (resumed, expected)]
    assert margins[0] == pytest.approx(margins[1], rel=1e-3)


def test_a_misspelt_key_names_file_and_key_and_starts_nothing(tiny: str, tmp_path: Path) -> None:
    path = config(tmp_path, tiny, dpo={"lerning_rate": 1e-4})
    done = launch("dpo", "--config", path, processes=0)
    assert done.returncode != 0
    # And nothing else: neither accelerate's warning before it nor its traceback after it.
    assert done.stderr == (
        f"ConfigError: {path}: dpo.lerning_rate: DPOConfig has no such field; did you mean "
        "'learning_rate'?\n"
    )
    assert done.stdout == "== loading PyTorch and checking the configuration\n"
    assert not (tmp_path / "run").exists()


def test_pairs_that_the_trainer_would_drop_are_left_out_and_counted(
    tiny: str, tmp_path: Path
) -> None:
    path = config(tmp_path, tiny)
    short = launch("dpo", "--config", path, "--set=dpo.max_length=16", "--skip-eval")
    assert short.returncode != 0
    assert "none of 8 pairs fits into dpo.max_length=16 tokens" in short.stderr


def test_the_tuned_adapter_is_evaluated_alone(
    finished: tuple[Path, str, str], tmp_path: Path
) -> None:
    run, _, _ = finished
    done = launch(
        "evaluate",
        f"--model={run / 'adapter'}",
        f"--output-dir={tmp_path / 'eval'}",
        "--set=evaluation.limit=3",
        "--set=evaluation.parts=[preference]",
    )
    assert done.returncode == 0, done.stderr[-3000:]
    alone = (tmp_path / "eval/evaluation.jsonl").read_text().split("\n")[1:4]
    trained = (run / "after.jsonl").read_text().split("\n")[1:4]
    for a, b in zip(alone, trained, strict=True):
        assert json.loads(a)["better"] == json.loads(b)["better"]


def test_a_judge_that_asks_a_model_has_its_bill_in_the_report(tiny: str, tmp_path: Path) -> None:
    with FakeAPI() as api:
        arguments = [
            "evaluate",
            f"--model={tiny}",
            f"--output-dir={tmp_path / 'eval'}",
            "--set=evaluation.limit=3",
            "--set=evaluation.parts=[writing]",
            "--set=evaluation.max_new_tokens=8",
            f"--set=evaluation.judge=chat:judge@{api.base_url}",
            f"--set=evaluation.judge_options={{store: {tmp_path / 'v.sqlite'}}}",
        ]
        planned = launch(*arguments, "--dry-run")
        assert planned.returncode == 0, planned.stderr[-3000:]
        assert "6 calls to make" in planned.stdout
        assert api.stats.billed == 0
        assert not (tmp_path / "eval").exists()
        done = launch(*arguments)
        assert done.returncode == 0, done.stderr[-3000:]
        judged = api.stats.calls
    facts = json.loads((tmp_path / "eval/report.json").read_text())["facts"]
    # One tiny request besides, on the same bill, finds out whether the server takes schemas; empty answers
    # need no call.
    assert 0 < facts["judge calls"] <= 7
    assert facts["judge calls"] == judged
    assert facts["judge calls of unknown price, of both"] == facts["judge calls"]
    assert facts["judge, US dollars"] == "unknown"  # and not 0
    assert facts["judge calls without a reply, possibly billed"] == 0


def test_training_goes_on_with_an_adapter(finished: tuple[Path, str, str], tmp_path: Path) -> None:
    run, _, _ = finished
    adapter = str(run / "adapter")
    refused = launch("dpo", "--config", config(tmp_path, adapter))
    assert refused.returncode != 0
    assert "set lora: null" in refused.stderr
    path = config(tmp_path, adapter, lora=None, evaluation={"limit": 2, "parts": ["preference"]})
    done = launch("dpo", "--config", path)
    assert done.returncode == 0, done.stderr[-3000:]
    first = (run / "after.jsonl").read_text().split("\n")[1]
    goes_on_from = (tmp_path / "run/before.jsonl").read_text().split("\n")[1]
    assert json.loads(goes_on_from)["better"] == json.loads(first)["better"]
    saved = json.loads((tmp_path / "run/adapter/xyreward.json").read_text())
    assert saved == json.loads((run / "adapter/xyreward.json").read_text())


def test_all_weights_can_be_trained_and_evaluation_skipped(tiny: str, tmp_path: Path) -> None:
    done = launch("dpo", "--config", config(tmp_path, tiny, lora=None), "--skip-eval")
    assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / "run/model/model.safetensors").is_file()
    assert not (tmp_path / "run/before.jsonl").exists()


def test_two_processes_make_one_run_and_the_same_evaluation(
    finished: tuple[Path, str, str], tiny: str, tmp_path: Path
) -> None:
    straight, _, _ = finished
    path = config(tmp_path, tiny)
    # One pair in each of two processes is what two pairs are in one.
    small = "dpo.per_device_train_batch_size=1"
    done = launch("dpo", "--config", path, "--set", small, processes=2)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("# Held-out evaluation") == 1
    run = tmp_path / "run"
    alone = [json.loads(ln) for ln in (straight / "before.jsonl").read_text().split("\n") if ln]
    shared = [json.loads(ln) for ln in (run / "before.jsonl").read_text().split("\n") if ln]
    assert [r.get("item_id") for r in shared] == [r.get("item_id") for r in alone]
    for a, b in zip(alone[1:], shared[1:], strict=True):
        assert a["better"]["total"] == pytest.approx(b["better"]["total"], abs=1e-3)
    steps = [
        [
            entry
            for entry in map(json.loads, (one / "log.jsonl").read_text().splitlines())
            if "loss" in entry
        ]
        for one in (straight, run)
    ]
    assert len(steps[0]) == 4
    for n, (a, b) in enumerate(zip(*steps, strict=True)):
        assert a.keys() == b.keys()
        # The first step is of equal weights; from then on last digits are blown up by the optimizer.
        near: Any = {"rel": 5e-2, "abs": 1e-3} if n else {"rel": 2e-3, "abs": 1e-6}
        for name in a.keys() - {"step_time"}:
            assert a[name] == pytest.approx(b[name], **near), (n, name)
    assert json.loads((run / "environment.json").read_text())["world_size"] == 2
    again = launch("dpo", "--config", config(tmp_path, tiny), processes=2)
    assert again.returncode != 0
    assert "is not empty" in again.stderr  # and neither process hangs


def test_the_benchmark_from_a_local_folder_with_controls_of_mini(tiny: str, tmp_path: Path) -> None:
    folder = tmp_path / "XYBench"
    folder.mkdir()
    for split, count in (("train", 24), ("test", 6)):
        rows = [
            {
                "query": f"{split} case {i}: how do I turn screw number {i * 7} in appliance {i}?",
                "S-request": f"Turn screw {i}.",
                "I-request": f"Make appliance {i} work again.",
                "S-solution": f"Use screwdriver {i}.",
                "I-solution": f"Replace fuse {i} of the appliance.",
                "S-I-misconception-identification": "The screw only holds the lid.",
                "x_answer": f"Replace fuse {i}; the screw only holds the lid.",
                "y_answer": f"Take screwdriver {i} and turn it to the left.",
            }
            for i in range(count)
        ]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    path = config(
        tmp_path,
        tiny,
        items=[{"source": str(folder)}, {"source": "mini", "kinds": ["control"]}],
        splits_lock=str(tmp_path / "splits.json"),
    )
    done = launch("dpo", "--config", path)
    assert done.returncode == 0, done.stderr[-3000:]
    pairs = [json.loads(ln) for ln in (tmp_path / "run/pairs.jsonl").read_text().splitlines()]
    assert {p["source"] for p in pairs} == {"XYBench", "mini"}
    assert not any("test case" in p["prompt"][0]["content"] for p in pairs)
    assert "XYBench: 30 of 30 items" in (tmp_path / "run/report.md").read_text()


def on_policy(folder: Path, tiny: str, api: FakeAPI, **changes: Any) -> str:
    """Pairs of what the policy itself writes, judged by a model that draws its labels."""
    return config(
        folder,
        tiny,
        **{
            "pairs": {
                "sources": ["on_policy"],
                "judge": f"chat:judge@{api.base_url}",
                "judge_options": {"store": str(folder / "v.sqlite")},
                "on_policy": {
                    "samples": 4,
                    "limit": 6,
                    "max_new_tokens": 24,
                    "keep_truncated": True,
                    "batch_size": 4,
                },
                "rule": {"margin_pairs": 0.01, "max_pairs_per_item": 1},
                "guards": {"language": False},
            },
            "evaluation": {"limit": 2, "parts": ["preference"]},
            **changes,
        },
    )


def test_a_run_killed_while_sampling_goes_on_with_what_was_sampled(
    tiny: str, tmp_path: Path
) -> None:
    with FakeAPI() as api:
        path = on_policy(tmp_path, tiny, api)
        process = subprocess.Popen(
            command("dpo", "--config", path),
            cwd=ROOT,
            env=environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        partial = tmp_path / "run/samples.jsonl.partial"
        deadline = time.monotonic() + 300
        while not (partial.is_file() and partial.read_bytes().count(b"\n") >= 8):
            if (tmp_path / "run/samples.jsonl").is_file():
                break
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        there = (partial if partial.is_file() else tmp_path / "run/samples.jsonl").read_bytes()
        done = launch("dpo", "--config", path, "--resume")
        assert done.returncode == 0, done.stderr[-3000:]
        samples = (tmp_path / "run/samples.jsonl").read_bytes()
        whole = there[: there.rfind(b"\n") + 1]
        assert samples.startswith(whole)
        assert samples.count(b"\n") == 48
        distinct = len({json.loads(line)["answer"] for line in samples.splitlines()})
        assert api.stats.billed <= distinct + 2  # each answer once; a server is asked for its ways
    facts = json.loads((tmp_path / "run/report.json").read_text())["facts"]
    assert 0 < facts["judge of pairs calls"] <= distinct + 2
    assert "answers sampled" in facts


def test_two_processes_share_sampling_and_train_on_the_same_pairs_in_each_round(
    tiny: str, tmp_path: Path
) -> None:
    with FakeAPI() as api:
        path = on_policy(tmp_path, tiny, api, rounds=2)
        done = launch("dpo", "--config", path, processes=2)
        assert done.returncode == 0, done.stderr[-3000:]
        answers = set()
        for number in (1, 2):
            folder = tmp_path / f"run/round-{number}"
            for rank in (0, 1):
                lines = (folder / f"samples-{rank}-of-2.jsonl").read_bytes().splitlines()
                assert len(lines) == 24
                answers |= {json.loads(line)["answer"] for line in lines}
            assert (folder / "audit.md").is_file()
            assert (folder / "pairs.jsonl").read_bytes()
        assert api.stats.billed <= len(answers) + 4
    assert done.stdout.count("=== all 2 rounds") == 1
    assert (tmp_path / "run/report.json").is_file()
