"""Pairs of a recipe: which are refused before a model is loaded, and what they would take."""

import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from xyreward import recipe, training_pairs
from xyreward.config import DPORecipe, PairsJob, dump_yaml, load_config
from xyreward.errors import DataError, JudgeError, LeakError
from xyreward.items import text_hash
from xyreward.loading import bundled_splits, load_items
from xyreward.pairs import HeldOut, build_pairs
from xyreward.pairs.audit import audit_pairs
from xyreward.pairs.candidates import Candidate
from xyreward.pairs.formats import read_pairs, write_pairs
from xyreward.pairs_job import PreparedJob
from xyreward.testing import FakeAPI
from xyreward.training_pairs import TrainingPairs


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XYREWARD_STORE", str(tmp_path / "store.sqlite"))
    for name in ("XYREWARD_RUN", "ANTHROPIC_API_KEY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    job = PairsJob.model_validate({"max_pairs": 40})
    return PreparedJob(job, tmp_path_factory.mktemp("built") / "pairs").run().folder


def config(**keys: Any) -> DPORecipe:
    return DPORecipe.model_validate({"output_dir": "run", **keys})


def test_pairs_that_were_built_are_taken_as_they_are_and_their_audit_is_told(built: Path) -> None:
    wanted = config(pairs={"built": str(built)})
    prepared = TrainingPairs(wanted, recipe.load_data(wanted))
    told = prepared.estimate()
    assert told.startswith("40 pairs, 25% from controls")
    assert told.endswith("; no model judges their answers")
    pairs = prepared.make()
    rows = [json.loads(line) for line in (built / "pairs.jsonl").read_text().splitlines()]
    assert [p.id for p in pairs.pairs] == [row["id"] for row in rows]
    facts = training_pairs.audit_facts(training_pairs.audited(wanted, pairs))
    assert facts["pairs by rule"] == {"goal_focused": 40}
    assert " to " in facts["audit of the pairs, shortcut: share in which it picks chosen"]["longer"]


def test_pairs_that_were_built_with_other_items_held_out_are_refused(
    built: Path, tmp_path: Path
) -> None:
    """A new item is held out, of those of which some are."""
    file = tmp_path / "more.jsonl"
    rows = [
        {"id": f"new-{n}", "query": f"Where do the {n} swifts of tower {n * 7} sleep in month {n}?",
         "stated_request": "a", "intended_request": "b", "misconception": "m",
         "stated_solutions": "s", "intended_solutions": "i"}
        for n in range(12)
    ]  # fmt: skip
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    wanted = config(pairs={"built": str(built)}, items=[{"source": "mini"}, {"source": str(file)}])
    data = recipe.load_data(wanted)
    new = [item for item in data.sides.items if item.id.startswith("new-")]
    assert any(data.splits.side(item) != "train" for item in new)
    with pytest.raises(LeakError, match="built with other items held out"):
        TrainingPairs(wanted, data)


def test_pairs_whose_audit_failed_are_refused_with_the_problem(tmp_path: Path) -> None:
    job = PairsJob.model_validate({"max_pairs": 40})
    prepared = PreparedJob(job, tmp_path / "pairs")
    original = prepared._build

    def broken(answers: list[Candidate]) -> Any:
        from dataclasses import replace

        return replace(original(answers), problems=("a guard's limit was passed",))

    prepared._build = broken  # type: ignore[method-assign]
    assert not prepared.run().audit.ok
    wanted = config(pairs={"built": str(tmp_path / "pairs")})
    with pytest.raises(DataError, match="its audit failed: a guard's limit was passed"):
        TrainingPairs(wanted, recipe.load_data(wanted))


def test_built_pairs_go_with_no_other_key_but_a_written_configuration_reads_back(
    built: Path, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="so max_pairs would be ignored"):
        config(pairs={"built": str(built), "max_pairs": 3})
    wanted = config(pairs={"built": str(built)})
    (tmp_path / "config.yaml").write_text(dump_yaml(wanted))
    assert load_config(DPORecipe, tmp_path / "config.yaml") == wanted
    with pytest.raises(ValueError, match="every round would train on the same pairs"):
        config(pairs={"built": str(built)}, rounds=2)


def test_a_folder_that_is_not_there_is_named() -> None:
    wanted = config(pairs={"built": "nowhere"})
    with pytest.raises(DataError, match="nowhere: no such folder"):
        TrainingPairs(wanted, recipe.load_data(wanted))


def test_a_judge_without_a_key_is_found_before_the_policy_is_loaded(tmp_path: Path) -> None:
    wanted = config(pairs={"sources": ["on_policy"], "judge": "anthropic:claude-haiku-5-5"})
    with pytest.raises(JudgeError, match="ANTHROPIC_API_KEY"):
        TrainingPairs(wanted, recipe.load_data(wanted))
    with pytest.raises(ValueError, match=r"pairs\.judge_options\.api_key: would be written"):
        config(
            pairs={
                "sources": ["on_policy"],
                "judge": "anthropic",
                "judge_options": {"api_key": "k"},
            }
        )


def test_what_judging_would_take_is_for_all_rounds_and_on_a_bill_of_its_own(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with FakeAPI() as api:
        wanted = config(
            pairs={
                "sources": ["on_policy"],
                "judge": f"chat:judge@{api.base_url}",
                "on_policy": {"samples": 2, "limit": 3},
            },
            rounds=2,
        )
        data = recipe.load_data(wanted)
        prepared = TrainingPairs(wanted, data)
        recipe.print_estimate(wanted, data, times=3, pairs=prepared.estimate())
        assert "pairs of 24 answers, judged by chat:judge" in capsys.readouterr().out
        assert "24 calls to make" in prepared.estimate()
        assert api.stats.calls == 0
    assert prepared.judge.run == f"{Path('run').resolve()} pairs"  # type: ignore[union-attr]
    of_a_round = wanted.model_copy(update={"output_dir": "run/round-2"}).billed_to(wanted.bill)
    assert training_pairs.pairs_judge(of_a_round).run == prepared.judge.run  # type: ignore[union-attr]


def test_pairs_come_through_to_other_processes(built: Path) -> None:
    wanted = config(pairs={"built": str(built)})
    for pairs in (
        TrainingPairs(wanted, recipe.load_data(wanted)).make(),
        training_pairs.make_pairs(config(), recipe.load_data(config())),
    ):
        sent = pickle.loads(pickle.dumps(training_pairs.packed(pairs)))
        arrived = training_pairs.unpacked(sent)
        assert arrived.hash == pairs.hash
        assert arrived.pairs == pairs.pairs
        assert arrived.dropped == pairs.dropped


def test_built_pairs_that_hold_what_is_evaluated_are_refused_whatever_the_folder_says(
    built: Path, tmp_path: Path
) -> None:
    """Its hash of held-out items is what whoever built it wrote there."""
    wanted = config(pairs={"built": str(built)})
    data = recipe.load_data(wanted)
    folder = read_pairs(built)
    leaked = max((r.text for i in data.sides.held_out.items for r in i.references), key=len)
    first = folder.pairs.pairs[0]
    answer = first.chosen_answer
    of_answer = replace(
        first, chosen_answer=replace(answer, answer=replace(answer.answer, text=leaked))
    )
    query = data.sides.held_out.items[0].messages
    for number, one in enumerate([of_answer, replace(first, prompt=tuple(query))]):
        pairs = replace(folder.pairs, pairs=(one, *folder.pairs.pairs[1:]))
        other = write_pairs(
            pairs,
            audit_pairs(pairs),
            tmp_path / str(number),
            meta=folder.meta,
            containers=("jsonl",),
        )
        bad = config(pairs={"built": str(other)})
        with pytest.raises(
            LeakError, match="pairs of 1 item hold what this recipe evaluates on"
        ) as found:
            TrainingPairs(bad, data)
        assert found.value.offending == [first.item_id]


def test_items_of_built_pairs_that_the_recipe_does_not_have_are_in_the_mark_of_training(
    built: Path,
) -> None:
    wanted = config(pairs={"built": str(built)})
    data = recipe.load_data(wanted)
    pairs = TrainingPairs(wanted, data).make()
    prompt = ({"role": "user", "content": "Which of the two keys opens the shed?"},)
    other = replace(pairs.pairs[0], item_id="not-here", prompt=prompt)
    known = recipe._hashes(replace(pairs, pairs=(other,)), data)
    assert known == [text_hash(prompt[0]["content"])]


def test_a_set_of_the_python_path_is_taken_where_it_held_out_what_is_evaluated(
    tmp_path: Path,
) -> None:
    train = load_items("mini", split="train")
    dev, test = load_items("mini", split="dev"), load_items("mini", split="test")

    def taken(name: str, held_out: HeldOut | None) -> int:
        pairs = build_pairs(train, split="train", held_out=held_out, max_pairs=40)
        write_pairs(pairs, audit_pairs(pairs), tmp_path / name, meta={}, containers=("jsonl",))
        wanted = config(pairs={"built": str(tmp_path / name)})
        return len(TrainingPairs(wanted, recipe.load_data(wanted)).make().pairs)

    assert taken("whole", HeldOut([*test, *dev], bundled_splits())) == 40
    with pytest.raises(LeakError, match=r"was built with other items held out \([0-9a-f]{12}\)"):
        taken("test-alone", HeldOut(test, bundled_splits()))
    with pytest.raises(
        LeakError, match=r"without anything held out.*build_pairs\(held_out=\.\.\.\)"
    ):
        taken("none", None)


def test_a_set_that_was_built_balanced_is_held_to_its_balance(tmp_path: Path) -> None:
    job = PairsJob.model_validate({"balance": 0.05})
    folder = PreparedJob(job, tmp_path / "pairs").run().folder
    wanted = config(pairs={"built": str(folder)})
    pairs = TrainingPairs(wanted, recipe.load_data(wanted)).make()
    assert training_pairs.audited(wanted, pairs).ok
    longer = tuple(p for p in pairs.pairs if len(p.chosen) > len(p.rejected))
    assert len(longer) >= 100
    rest = {"of no matter": len(pairs.pairs) - len(longer)}
    lopsided = replace(pairs, pairs=longer, dropped={**pairs.dropped, **rest})
    with pytest.raises(
        DataError, match=r"shortcut longer: picks chosen in 100\.0%.*balance was asked for"
    ):
        training_pairs.audited(wanted, lopsided)


def test_a_recipe_takes_files_of_answers_with_columns_and_an_author_of_their_own(
    tmp_path: Path,
) -> None:
    file = tmp_path / "theirs.jsonl"
    keys = {"sources": ["cross_model"], "answers": [str(file)], "judge": "local"}
    data = recipe.load_data(config())
    file.write_text(json.dumps({"item_id": data.train[0].id, "text": "Do it."}) + "\n")
    with pytest.raises(DataError, match=r"--set 'pairs\.columns=\{answer: THEIR_COLUMN\}'") as no:
        TrainingPairs(config(pairs=keys), data)
    assert "give --set pairs.origin=NAME" in str(no.value)
    named = {"columns": {"answer": "text"}, "origin": "them"}
    (found,) = TrainingPairs(config(pairs={**keys, **named}), data).answers
    assert (found.text, found.origin) == ("Do it.", "them")
    file.write_text(json.dumps({"item_id": data.held_out[0].id, "text": "Do it."}) + "\n")
    with pytest.raises(DataError, match="no answer of the file belongs to an item of the train"):
        TrainingPairs(config(pairs={**keys, **named}), data)
    for unused in named.items():
        with pytest.raises(ValueError, match=f"{unused[0]} (is|are) of files of answers"):
            config(pairs=dict([unused]))
