"""Fine-tune a policy with GRPO on a judge's reward for its own answers, and measure what changed.

    accelerate launch recipes/grpo.py                                   # CPU, nothing to download
    accelerate launch recipes/grpo.py --model runs/dpo-quickstart/adapter --set lora=null
    accelerate launch recipes/grpo.py --set 'sft={learning_rate: 3.0e-4}'   # a short SFT first
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
from xyreward.sft_start import SFTStart

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
        lengths = grpo.room_warnings(config, prompts, settings)
        start = None if config.sft is None else SFTStart(config, arguments.places, data, settings)
    plan = [*grpo.plan(settings, prompts), *([start.plan()] if start else [])]
    if arguments.dry_run:
        cost = grpo.estimate(config, prompts, settings)
        plan += grpo.estimate_audit(config, data, prompts, settings)
        plan += [f"warning: {warning}" for warning in lengths]
        recipe.print_estimate(config, data, 2, cost, plan)
        return
    grpo.check_vllm(config, arguments.places)
    run = recipe.Run(config, arguments)
    facts = run.record_data(data, prompts)
    for line in plan:
        run.say(f"== {line}")
    for warning in [*recipe.control_warnings(config, data), *lengths]:
        run.say(f"== warning: {warning}")

    from trl import GRPOTrainer

    from xyreward.judge_guard import JudgeGuard
    from xyreward.trl_rewards import with_all_names

    if start is None:
        before, policy = None, run.load_policy(trainable=True)
    else:  # what is evaluated before is the policy without it
        before, policy, of_start = start.take(run)
        facts |= of_start
        lora = None  # GRPO goes on with the adapter that there is now
    settings.chat_template_kwargs = dict(policy.chat_template_kwargs) or None
    functions = grpo.reward_functions(config, policy, prompts)
    guard = JudgeGuard(functions, max_failure_rate=config.reward.max_failure_rate)
    audit = grpo.audit_of(run, config, policy, functions, data)
    with recipe.building(run, policy):  # before the evaluation: a mistake shows in seconds
        trainer = with_all_names(GRPOTrainer)(
            model=policy.model,
            args=settings,
            reward_funcs=list(functions),
            train_dataset=grpo.dataset(prompts),
            processing_class=policy.tokenizer,
            peft_config=lora,
            callbacks=[guard, *audit],
        )
    if start is None:
        with recipe.as_loaded(trainer, lora):
            before = run.evaluate("before", policy, data)

    def ended(log: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        guard.check()
        tables = Path(settings.output_dir) / "completions"
        names = [f.__name__ for f in functions]
        curve = grpo.reward_curve(log, tables, names, settings.reward_weights)
        return {**grpo.ended_by(audit), **curve}

    trained, training_facts = recipe.fit(run, trainer, policy, prompts, data, ended)
    audit.clear()  # it holds the policy, and `ended` holds the list
    del trainer, policy
    recipe.free_memory()

    # What is evaluated is what was saved, so a broken save shows here and not at the user's.
    after = run.evaluate("after", run.load_policy(str(trained)), data) if before else None
    run.finish(before, after, {**facts, **training_facts})


if __name__ == "__main__":
    with recipe.plain_errors():
        main()
