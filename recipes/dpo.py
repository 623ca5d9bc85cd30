"""Fine-tune a policy with DPO on goal-focused against literal answers, and measure what changed.

    accelerate launch recipes/dpo.py                                   # CPU, nothing to download
    accelerate launch recipes/dpo.py --config configs/dpo/xybench.yaml
    accelerate launch recipes/dpo.py --resume                          # go on with a stopped run
    accelerate launch recipes/dpo.py --set dpo.learning_rate=1e-4 --output-dir runs/lower-lr

    accelerate launch recipes/dpo.py --config configs/dpo/on_policy_cpu.yaml   # pairs of its own answers

Without --config it takes configs/dpo/quickstart.yaml, whose header says what to expect. It trains on
the train side of the splits, evaluates before and after on held-out items, writes a run folder
(xyreward/runs.py lists what is in it) and prints the table.
"""

from pathlib import Path

from xyreward import recipe
from xyreward.config import Arguments, DPORecipe, parse_arguments
from xyreward.judges.asking import nothing_sent
from xyreward.training_pairs import TrainingPairs, audit_facts, audited

DEFAULT = Path(__file__).parent.parent / "configs/dpo/quickstart.yaml"


def main() -> None:
    recipe.use_huge_pages()
    config, arguments = parse_arguments(DPORecipe, DEFAULT, others=recipe.wrong_training)
    recipe.say_hello()
    for one, its_arguments in recipe.rounds(config, arguments):
        train(one, its_arguments)


def train(config: DPORecipe, arguments: Arguments) -> None:
    # Configuration, judges, data, answers and run folder are checked before the policy is loaded.
    with nothing_sent(arguments.dry_run):
        settings, lora = recipe.dpo_settings(config, arguments.places)
        data = recipe.load_data(config, dry_run=arguments.dry_run)
        prepared = TrainingPairs(config, data)
    if arguments.dry_run:
        plan = prepared.plan(settings)
        recipe.print_estimate(config, data, config.rounds + 1, prepared.estimate(), plan)
        return
    run = recipe.Run(config, arguments)

    policy = run.load_policy(trainable=True)
    sampled, facts = run.sample(policy, data) if prepared.are_sampled else ([], {})
    pairs = run.pairs(lambda: prepared.make(sampled))
    pairs = recipe.fit_to_length(pairs, policy, settings.max_length)
    audit = audited(config, pairs)
    facts |= {**run.record_data(data, pairs), **audit_facts(audit)}
    run.write("audit.md", audit.to_markdown())
    run.say(
        f"{len(pairs.pairs)} pairs; {len(data.held_out)} held-out items; run in {run.folder.path}"
    )
    for warning in recipe.control_warnings(config, data, pairs):
        run.say(f"== warning: {warning}")
    for warning in audit.warnings:
        run.say(f"== the pairs' audit: {warning}")

    from datasets import Dataset
    from trl import DPOTrainer

    with recipe.building(run, policy):  # before the evaluation: a mistake shows in seconds
        trainer = DPOTrainer(
            model=policy.model,
            args=settings,
            train_dataset=Dataset.from_list(recipe.rows(pairs, policy)),
            processing_class=policy.tokenizer,
            peft_config=lora,
        )
    with recipe.as_loaded(trainer, lora):
        before = run.evaluate("before", policy, data)
    trained, training_facts = recipe.fit(run, trainer, policy, pairs, data)
    del trainer, policy
    recipe.free_memory()

    # What is evaluated is what was saved, so a broken save shows here and not at the user's.
    after = run.evaluate("after", run.load_policy(str(trained)), data) if before else None
    run.finish(before, after, {**facts, **training_facts})


if __name__ == "__main__":
    with recipe.plain_errors():
        main()
