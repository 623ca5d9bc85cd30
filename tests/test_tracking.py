"""The evaluation's figures reach the trackers that are named, and what is missing is told before training."""

import json
import os
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rows import DIRECT, GOAL, LITERAL, evaluation, failed, row

from xyreward import tracking
from xyreward.errors import ConfigError, MissingDependency
from xyreward.metrics import headline, headline_change, measure
from xyreward.report import build_report
from xyreward.tracking import check_trackers, figures, log_report, tensorboard_in, trackers

BEFORE = evaluation(
    *(row(f"x{i}", LITERAL if i else GOAL) for i in range(30)),
    *(row(f"c{i}", DIRECT, "control") for i in range(10)),
    parts=("writing",),
)
AFTER = replace(
    BEFORE,
    rows=(
        *(
            failed(f"x{i}") if i == 29 else row(f"x{i}", GOAL if i < 9 else LITERAL)
            for i in range(30)
        ),
        *(row(f"c{i}", DIRECT, "control") for i in range(10)),
    ),
)


def report() -> dict[str, Any]:
    return build_report(BEFORE, AFTER)


def test_without_a_training_there_is_no_before() -> None:
    found = figures(build_report(BEFORE))
    assert found["held_out/intended_solution"] == pytest.approx(1 / 30)
    assert found["held_out/judge_failure_rate/xy"] == 0
    assert not [name for name in found if "before" in name or "change" in name]


def test_every_figure_of_both_policies_and_the_change_is_logged_and_nothing_that_is_not_there() -> (
    None
):
    found = figures(report())
    assert found["held_out/before/intended_solution"] == pytest.approx(1 / 30)
    assert found["held_out/after/intended_solution"] == pytest.approx(9 / 29)
    # Of the 29 that were judged both times, 8 went from no to yes.
    (line,) = (one for one in measure(BEFORE, AFTER) if one.metric.key == "intended_solution")
    assert line.change is not None
    assert found["held_out/change/intended_solution"] == pytest.approx(8 / 29)
    assert found["held_out/change/intended_solution/low"] == line.change.low
    assert found["held_out/change/intended_solution/high"] == line.change.high
    assert found["held_out/before/judge_failure_rate/xy"] == 0
    assert found["held_out/after/judge_failure_rate/xy"] == pytest.approx(1 / 30)
    assert found["held_out/after/headline"] == headline(AFTER).value
    assert found["held_out/change/headline/low"] == headline_change(BEFORE, AFTER).low
    assert not [name for name in found if "soft_reward" in name]  # these rows have none
    assert not [
        name
        for name in found
        if "/before/" in name and name.endswith("/low") and "headline" not in name
    ]


def test_a_headline_that_is_not_printed_is_not_logged() -> None:
    many = replace(AFTER, rows=(*(failed(f"x{i}") for i in range(30)), *AFTER.rows[30:]))
    found = figures(build_report(BEFORE, many))
    assert "held_out/before/headline" in found
    assert not [name for name in found if name.startswith("held_out/after/headline")]
    assert not [name for name in found if name.startswith("held_out/change/headline")]
    assert found["held_out/after/judge_failure_rate/xy"] == 1


@pytest.mark.parametrize(
    ("report_to", "names"),
    [
        (None, []),
        ("none", []),
        ([], []),
        ("wandb", ["wandb"]),
        (["wandb", "mlflow"], ["wandb", "mlflow"]),
    ],
)
def test_report_to_is_read_as_transformers_reads_it(report_to: Any, names: list[str]) -> None:
    assert trackers(report_to) == names


def test_all_means_those_that_are_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracking, "TRACKERS", {"wandb": ("no_such_package",), "trackio": ("json",)})
    assert trackers("all") == ["trackio"]
    check_trackers("all")


def test_packages_that_are_not_there_are_named_before_training_all_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nowhere = {
        "tensorboard": ("no_board", "json"),
        "wandb": ("no_wandb",),
        "trackio": ("no_trackio",),
    }
    monkeypatch.setattr(tracking, "TRACKERS", nowhere)
    check_trackers("tensorboard")  # its second package is there
    with pytest.raises(MissingDependency, match="pip install no_wandb no_trackio"):
        check_trackers(["tensorboard", "wandb", "trackio"])


def test_a_misspelt_tracker_is_told_before_a_model_is_loaded() -> None:
    pytest.importorskip("transformers")
    with pytest.raises(
        ConfigError, match=r"c.yaml: dpo.report_to: is 'wandbb'.*did you mean 'wandb'"
    ):
        check_trackers(["wandbb"], "c.yaml: dpo.report_to")
    check_trackers("mlflow")  # transformers' own to find out about


def test_what_another_tracker_lacks_and_what_a_tracker_lost_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (said,) = log_report(report(), {"report_to": ["mlflow"]}, tmp_path, 3)
    assert said == "mlflow has the figures of training only; report.json has the evaluation"
    assert log_report(report(), {}, tmp_path, 3) == []

    def broken(*_: Any) -> None:
        raise OSError("no network")

    monkeypatch.setattr(tracking, "_to_wandb", broken)
    (said,) = log_report(report(), {"report_to": "wandb"}, tmp_path, 3)
    assert said.startswith("wandb: the evaluation was not logged (OSError: no network)")


def test_the_trainer_logs_into_the_run_unless_told_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(tracking.TENSORBOARD_FOLDER, raising=False)
    with tensorboard_in(tmp_path):
        assert os.environ[tracking.TENSORBOARD_FOLDER] == str(tmp_path)
    assert tracking.TENSORBOARD_FOLDER not in os.environ
    monkeypatch.setenv(tracking.TENSORBOARD_FOLDER, "elsewhere")
    with tensorboard_in(tmp_path):
        assert os.environ[tracking.TENSORBOARD_FOLDER] == "elsewhere"
    assert os.environ[tracking.TENSORBOARD_FOLDER] == "elsewhere"


# ---------------------------------------------------------------- the real ones, where they are installed
# `make test-adapters` has them.


def test_tensorboard_reads_what_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    monkeypatch.delenv(tracking.TENSORBOARD_FOLDER, raising=False)
    assert log_report(report(), {"report_to": ["tensorboard"]}, tmp_path, 26) == []
    read = EventAccumulator(str(tmp_path / "tensorboard"))
    read.Reload()
    wanted = figures(report())
    assert set(read.Tags()["scalars"]) == set(wanted)
    for name, value in wanted.items():
        (event,) = read.Scalars(name)
        assert (event.step, event.value) == (26, pytest.approx(value, abs=1e-6))


def test_wandb_keeps_them_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb")
    for name, value in {
        "WANDB_MODE": "offline",
        "WANDB_DIR": str(tmp_path),
        "WANDB_SILENT": "true",
    }.items():
        monkeypatch.setenv(name, value)
    check_trackers("wandb")
    assert log_report(report(), {"report_to": "wandb"}, tmp_path, 26) == []
    assert wandb.run is None  # the next round's training opens its own
    wandb.teardown()  # as at the end of the process: what is still on its way is written
    (file,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    logged = history_of(file)
    assert logged.pop("train/global_step") == 26
    assert {n: v for n, v in logged.items() if not n.startswith("_")} == pytest.approx(
        figures(report())
    )


def history_of(file: Path) -> dict[str, float]:
    """What a run that was kept offline has in its only step.

    The file is a LevelDB log: a head of 7 bytes, then blocks of 32 KiB with chunks of records, each with its
    sum (4 bytes), length (2) and whether it is whole (1), or first, middle or last (2, 3, 4).
    """
    from wandb.proto import wandb_internal_pb2

    data, place, text = file.read_bytes(), 7, b""
    found = {}
    while place + 7 <= len(data):
        if 32_768 - place % 32_768 < 7:
            place += 32_768 - place % 32_768
            continue
        length, kind = struct.unpack("<HB", data[place + 4 : place + 7])
        text += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(text)
            text = b""
            for item in record.history.item:
                found[item.key or "/".join(item.nested_key)] = json.loads(item.value_json)
    return found


def test_wandb_without_a_key_is_told_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    for name in ("WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match="WANDB_MODE=offline"):
        check_trackers(["wandb"])
    monkeypatch.setenv("WANDB_MODE", "offline")
    check_trackers(["wandb"])


def test_trackio_has_them_in_the_run_of_the_name(tmp_path: Path) -> None:
    pytest.importorskip("trackio")
    (tmp_path / "report.json").write_text(json.dumps(report()))
    code = """
import json, sys
from pathlib import Path
from trackio.sqlite_storage import SQLiteStorage
from xyreward.tracking import log_report
report = json.loads(Path("report.json").read_text())
settings = {"report_to": "trackio", "run_name": "mine", "project": "ours"}
for step in (26, 52):  # the second goes on with the run of the first
    assert log_report(report, settings, Path.cwd(), step) == []
print("logged:", json.dumps(SQLiteStorage.get_logs("ours", "mine")))
"""  # in a process of its own: the folder is read when trackio is imported
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "TRACKIO_DIR": str(tmp_path / "trackio")},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    logged = json.loads(done.stdout.rpartition("logged: ")[2])
    assert [one["train/global_step"] for one in logged] == [26, 52]
    for name, value in figures(report()).items():
        assert logged[0][name] == pytest.approx(value)
    assert (tmp_path / "trackio").is_dir()
