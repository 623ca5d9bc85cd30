"""One step on a toy: it fails as the run would, names the key, and leaves no trace."""

import os
from pathlib import Path
from typing import Any

import pytest

from xyreward.policy import bf16_is_fast
from xyreward.rehearsal import culprits, rehearse

SETTINGS: dict[str, Any] = {
    "use_cpu": True,
    "bf16": bf16_is_fast("cpu"),
    "activation_checkpointing": False,
    "seed": 0,
}


@pytest.mark.parametrize("lora", [None, {"r": 4}, {"target_modules": ["of_no_toy"], "r": 4}])
def test_settings_that_work_pass_with_and_without_an_adapter(lora: dict[str, Any] | None) -> None:
    assert rehearse({**SETTINGS, "learning_rate": 1e-4}, lora) is None


def test_of_many_keys_the_ones_that_make_it_fail_are_found() -> None:
    dpo = {**SETTINGS, "beta": 0.2, "lr_scheduler_kwargs": {"zzz": 1}, "weight_decay": 0.1}
    assert isinstance(rehearse(dpo, {"r": 4}), TypeError)
    given = ["dpo.beta", "dpo.lr_scheduler_kwargs", "dpo.weight_decay", "lora.r"]
    assert culprits(dpo, {"r": 4}, given) == ["dpo.lr_scheduler_kwargs"]


def test_a_loss_that_is_not_finite_is_an_error() -> None:
    error = rehearse({**SETTINGS, "loss_type": ["ipo"], "beta": 1e-300}, None)
    assert "the loss of the first step is" in str(error)


def test_a_run_of_any_size_is_rehearsed_in_one_step_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    large = {
        "num_train_epochs": 1e9,
        "per_device_train_batch_size": 512,
        "gradient_accumulation_steps": 512,
        "dataloader_drop_last": True,
        "save_steps": 1,
        "report_to": "tensorboard",
        "output_dir": str(tmp_path / "out"),
    }
    assert rehearse({**SETTINGS, **large}, {"r": 4}) is None
    assert list(tmp_path.iterdir()) == []
    assert capfd.readouterr() == ("", "")


def test_of_several_processes_the_first_rehearses_as_if_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody listens at that port: a rehearsal that looked for the others would wait for ever."""
    for name, value in {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "9"}.items():
        monkeypatch.setenv(name, value)
    wrong = {**SETTINGS, "optim": "adamm"}
    for rank, expected in (("0", ValueError), ("1", type(None))):
        monkeypatch.setenv("RANK", rank)
        monkeypatch.setenv("LOCAL_RANK", rank)
        assert type(rehearse(wrong, None)) is expected
        assert rehearse(SETTINGS, None) is None
        assert os.environ["RANK"] == rank
        assert os.environ["WORLD_SIZE"] == "2"


@pytest.mark.parametrize("variable", ["ACCELERATE_USE_FSDP", "ACCELERATE_USE_DEEPSPEED"])
def test_what_shards_the_model_is_not_rehearsed(
    variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = {**SETTINGS, "optim": "adamm"}
    assert rehearse({**wrong, "deepspeed": "zero3.json"}, None) is None
    monkeypatch.setenv(variable, "true")
    assert rehearse(wrong, None) is None
    monkeypatch.setenv(variable, "false")
    assert rehearse(wrong, None) is not None
