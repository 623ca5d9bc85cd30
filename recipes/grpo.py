"""Fine-tune a policy with GRPO on a judge's reward for its own answers, and measure what changed.

    accelerate launch recipes/grpo.py                                   # CPU, nothing to download
    accelerate launch recipes/grpo.py --model runs/dpo-quickstart/adapter --set lora=null
    accelerate launch recipes/grpo.py --resume                          # go on with a stopped run
    accelerate launch recipes/grpo.py --set reward.judge=anthropic:claude-sonnet-5-5 --dry-run

Without --config it takes configs/grpo/quickstart.yaml, whose header says what to expect. It trains on
the train side of the splits, evaluates before and after on held-out items, writes a run folder
(xyreward/runs.py lists what is in it) and prints the table. Where the judge fails for too long or too
often, all processes stop with a checkpoint and status 75.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from xyreward import grpo, recipe
from xyreward.config import GRPORecipe, parse_arguments
from xyreward.judges.asking import nothing_sent

DEFAULT = Path(__file__).parent.parent / "configs/grpo/quickstart.yaml"


def main() -> None:
    recipe.use_huge_pages()
    config, arguments = parse_arguments(GRPORecipe, DEFAULT, others=grpo.wrong_training)
    recipe.say_hello()
    # Configuration, judges, data and run folder are checked before the policy is loaded.
    with nothing_sent(arguments.dry_run):
        settings, lora = grpo.grpo_settings(config, arguments.places)
        data = recipe.load_data(config, dry_run=arguments.dry_run)
        prompts = grpo.load_prompts(config, data)
    if arguments.dry_run:
        cost = grpo.estimate(config, prompts, settings)
        recipe.print_estimate(config, data, 2, cost, grpo.plan(settings, prompts))
        return
    grpo.check_vllm(config, arguments.places)
    run = recipe.Run(config, arguments)
    facts = run.record_data(data, prompts)
    for line in grpo.plan(settings, prompts):
        run.say(f"== {line}")
    for warning in recipe.control_warnings(config, data):
        run.say(f"== warning: {warning}")

    from trl import GRPOTrainer

    from xyreward.judge_guard import JudgeGuard

    policy = run.load_policy(trainable=True)
    settings.chat_template_kwargs = dict(policy.chat_template_kwargs) or None
    functions = grpo.reward_functions(config, policy, prompts)
    guard = JudgeGuard(functions, max_failure_rate=config.reward.max_failure_rate)
    audit = grpo.audit_of(run, config, policy, functions, data)
    with recipe.building(run, policy):  # before the evaluation: a mistake shows in seconds
        trainer = GRPOTrainer(
            model=policy.model,
            args=settings,
            reward_funcs=list(functions),
            train_dataset=grpo.dataset(prompts),
            processing_class=policy.tokenizer,
            peft_config=lora,
            callbacks=[guard, *audit],
        )
    with recipe.as_loaded(trainer, lora):
        before = run.evaluate("before", policy, data)

    def ended(log: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        guard.check()
        return grpo.reward_curve(log)

    trained, training_facts = recipe.fit(run, trainer, policy, prompts, data, ended)
    del trainer, policy, audit
    recipe.free_memory()

    # What is evaluated is what was saved, so a broken save shows here and not at the user's.
    after = run.evaluate("after", run.load_policy(str(trained)), data) if before else None
    run.finish(before, after, {**facts, **training_facts})


if __name__ == "__main__":
    with recipe.plain_errors():
        main()
