"""Paths as users write them: homes of nobody, null characters, links in a circle."""

from pathlib import Path
from typing import Any

import pytest

from xyreward import Item
from xyreward.answering import FilePolicy
from xyreward.config import DPORecipe, ItemsConfig, PairsJob
from xyreward.errors import ConfigError, RunFolderError, StoreError
from xyreward.home import expanded, resolved
from xyreward.pairs_job import PreparedJob
from xyreward.recipe import load_data
from xyreward.runs import RunFolder
from xyreward.sides import load_sides
from xyreward.store import VerdictStore
from xyreward.store.exchange import export, import_, merge
from xyreward.training_pairs import TrainingPairs

NOBODY = "~nobody-of-this-name/x.jsonl"
MINI = (ItemsConfig(),)


def test_a_home_is_that_of_a_shell(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert expanded("~/a") == tmp_path / "a"
    assert expanded("a/~b") == Path("a/~b")
    with pytest.raises(ConfigError, match="no home folder of 'nobody-of-this-name'"):
        expanded(NOBODY)
    with pytest.raises(StoreError, match="null character"):
        expanded("a\0b", StoreError)


def recipe_of(**changes: Any) -> DPORecipe:
    return DPORecipe.model_validate({"output_dir": "x", **changes})


def test_who_names_the_home_of_nobody_is_told_wherever_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mini: list[Item]
) -> None:
    monkeypatch.chdir(tmp_path)
    of_files: dict[str, Any] = {"sources": ["cross_model"], "answers": [NOBODY]}
    built, answers = (
        recipe_of(pairs={"built": NOBODY}),
        recipe_of(pairs={**of_files, "judge": "local"}),
    )
    job, other = PairsJob(items=MINI), PairsJob(items=MINI, judge="local", **of_files)
    data = load_data(recipe_of())
    with VerdictStore.open(tmp_path / "s.sqlite") as store:
        for error, use in (
            (ConfigError, lambda: FilePolicy.load(f"answers:{NOBODY}", mini)),
            (ConfigError, lambda: TrainingPairs(built, data)),
            (ConfigError, lambda: TrainingPairs(answers, data)),
            (ConfigError, lambda: load_sides(MINI, NOBODY)),
            (ConfigError, lambda: PreparedJob(other, tmp_path / "o")),
            (RunFolderError, lambda: PreparedJob(job, Path(NOBODY))),
            (RunFolderError, lambda: recipe_of(output_dir=NOBODY).bill),
            (RunFolderError, lambda: recipe_of(output_dir="a\0b").bill),
            (RunFolderError, lambda: RunFolder.open(recipe_of(), NOBODY, resume=False)),
            (StoreError, lambda: export(store, NOBODY)),
            (StoreError, lambda: import_(store, NOBODY)),
            (StoreError, lambda: merge(store, NOBODY)),
        ):  # fmt: skip
            with pytest.raises(error, match=r"no home folder of 'nobody|no path has a null"):
                use()
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("~")]


def test_links_in_a_circle_are_told_where_they_are_opened(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert resolved(tmp_path / "loop/x").name == "x"
    wanted = recipe_of(output_dir=str(tmp_path / "loop/x"))
    assert wanted.bill.endswith("loop/x")
    with pytest.raises(RunFolderError, match="cannot be used as the run's folder"):
        RunFolder.open(wanted, wanted.output_dir, resume=False)
