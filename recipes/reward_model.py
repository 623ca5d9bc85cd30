"""Distil a judge into a reward model: train it on pairs, calibrate it, and say what that saves and loses.

    accelerate launch recipes/reward_model.py                           # CPU, nothing to download
    accelerate launch recipes/reward_model.py --set distilled.judge=anthropic:claude-sonnet-5-5 --dry-run
    accelerate launch recipes/reward_model.py --resume                  # go on with a stopped run
    accelerate launch recipes/grpo.py --config configs/grpo/rm.yaml     # and train a policy on it

Without --config it takes configs/reward_model/quickstart.yaml, whose header says what to expect. It trains
on the train side of the splits, fits the output to the judge's reward on the dev side, compares both on
held-out answers, and writes a run folder (xyreward/runs.py lists what is in it). Its `adapter` or `model`
is a judge: score(item, answer, judge="reward_model:runs/reward-model-quickstart/adapter").
"""

from pathlib import Path

from xyreward import recipe, reward_model
from xyreward.config import RewardModelRecipe, parse_arguments
from xyreward.judges.asking import nothing_sent
from xyreward.training_pairs import TrainingPairs, audit_facts, audited

DEFAULT = Path(__file__).parent.parent / "configs/reward_model/quickstart.yaml"


def main() -> None:
    recipe.use_huge_pages()
    config, arguments = parse_arguments(
        RewardModelRecipe, DEFAULT, others=reward_model.wrong_training
    )
    recipe.say_hello()
    # Configuration, judges, data and run folder are checked before the policy is loaded.
    with nothing_sent(arguments.dry_run):
        settings, lora = reward_model.reward_settings(config, arguments.places)
        data = recipe.load_data(config, dry_run=arguments.dry_run)
        prepared = TrainingPairs(config, data)
        held_out = reward_model.load_held_out(config, data)
    if arguments.dry_run:
        plan = [reward_model.estimate(config, held_out), *prepared.plan(settings)]
        recipe.print_estimate(config, data, 0, prepared.estimate(), plan)
        return
    run = recipe.Run(config, arguments)

    reader = reward_model.new_reader(run, config)
    pairs, rows = reward_model.training_rows(
        run.pairs(prepared.make),
        reader,
        data.train,
        settings.max_length,
        margins=config.distilled.margins,
    )
    audit = audited(config, pairs)
    facts = {**run.record_data(data, pairs), **audit_facts(audit)}
    run.write("audit.md", audit.to_markdown())
    run.say(
        f"{len(pairs.pairs)} pairs; {len(data.held_out)} held-out items; run in {run.folder.path}"
    )
    for warning in reward_model.length_warnings(pairs):
        run.say(f"== warning: {warning}")
    for warning in audit.warnings:
        run.say(f"== the pairs' audit: {warning}")

    from datasets import Dataset
    from trl import RewardTrainer

    with recipe.building(run, reader):
        trainer = RewardTrainer(
            model=reader.model,
            args=settings,
            train_dataset=Dataset.from_list(rows),
            processing_class=reader.tokenizer,
            peft_config=lora,
        )
    trained, training_facts = recipe.fit(run, trainer, reader, pairs, data)
    del trainer, reader
    recipe.free_memory()

    # What is calibrated and compared is what was saved, so a broken save shows here and not at the user's.
    reward_model.finish(
        run, config, trained, held_out, data, settings.max_length, {**facts, **training_facts}
    )


if __name__ == "__main__":
    with recipe.plain_errors():
        main()
