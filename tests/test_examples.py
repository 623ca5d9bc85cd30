"""The examples run as they stand."""

import re
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


def test_the_custom_loop_takes_steps_and_learns_where_answers_end(
    tiny: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from transformers import GenerationMixin

    original = GenerationMixin.generate

    def generate(self: Any, input_ids: Any, **more: Any) -> Any:
        rows = original(self, input_ids=input_ids, **more)
        start, end, pad = input_ids.shape[1], more["eos_token_id"], more["pad_token_id"]
        rows[:, start:][rows[:, start:] == end] = 5
        rows[0, start + 3] = end  # its fourth token
        rows[0, start + 4 :] = pad
        return rows

    monkeypatch.setattr(GenerationMixin, "generate", generate)
    monkeypatch.setattr(sys, "argv", ["custom_loop.py", tiny, "3"])
    left = runpy.run_path(str(EXAMPLES / "custom_loop.py"))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    for n, line in enumerate(lines):
        assert re.fullmatch(rf"step {n}: 4 of 4 judged, mean reward 0\.\d+", line)
    first, *others = left["kept"].tolist()
    assert first == [1.0] * 4 + [0.0] * (len(first) - 4)
    assert others == [[1.0] * len(first)] * 3


def test_its_loop_is_short() -> None:
    program = (EXAMPLES / "custom_loop.py").read_text("utf-8").split("GROUP, NEW_TOKENS")[1]
    assert len([line for line in program.splitlines() if line.strip()]) <= 36
