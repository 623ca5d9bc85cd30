"""How much of a GRPO step the reward takes: a constant, the store, the local judge, an API of 500 ms.

    python benchmarks/grpo_overhead.py [--steps 6] [--tokens 64]

The trainer of the GRPO quickstart, 8 completions to one prompt a step, with a learning rate of 0, so that
all ways score the same completions. The second time that the API's judge sees them they are in its store.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

from xyreward import load_items, load_policy
from xyreward.policy import Policy
from xyreward.testing import FakeAPIProcess
from xyreward.trl_rewards import prompt_rows, reward_function


class Timed:
    """A reward function with the seconds that each batch took."""

    def __init__(self, function: Callable[..., Any], name: str) -> None:
        self.function = function
        self.__name__ = name
        self.seconds: list[float] = []

    async def __call__(self, **given: Any) -> Any:
        start = time.perf_counter()
        found = await self.function(**given)
        self.seconds.append(time.perf_counter() - start)
        return found


async def constant(completions: Sequence[Any], **_: Any) -> list[float]:
    return [0.5] * len(completions)


def steps_with(policy: Policy, function: Timed, args: argparse.Namespace, folder: str) -> None:
    """Print the mean step, without the first two, and the share of it that the reward took."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    settings = GRPOConfig(
        output_dir=folder,
        use_cpu=True,
        bf16=True,
        activation_checkpointing=False,
        report_to="none",
        disable_tqdm=True,
        save_strategy="no",
        learning_rate=0.0,
        num_generations=8,
        per_device_train_batch_size=8,
        max_completion_length=args.tokens,
        max_steps=args.steps,
        logging_steps=1,
        seed=0,
    )
    trainer = GRPOTrainer(
        model=policy.model,
        processing_class=policy.tokenizer,
        args=settings,
        reward_funcs=function,
        train_dataset=Dataset.from_list(prompt_rows(load_items("mini", split="train"))),
    )
    trainer.train()
    steps = [e["step_time"] for e in trainer.state.log_history if "step_time" in e][2:]
    step, reward = sum(steps) / len(steps), sum(function.seconds[2:]) / len(steps)
    print(
        f"{function.__name__:22} step {step:6.2f} s, reward {reward:7.4f} s: {reward / step:6.2%}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--model", default="embedded:smollm2-135m")
    args = parser.parse_args()
    policy = load_policy(args.model, trainable=True)
    os.environ.setdefault("ANTHROPIC_API_KEY", "any")
    with tempfile.TemporaryDirectory() as folder, FakeAPIProcess("--latency", "0.5") as api:
        judge = "anthropic:claude-sonnet-5-5"
        options: Any = {"base_url": api.base_url, "store": f"{folder}/store.sqlite"}
        for name, function in (
            ("constant", constant),
            ("local judge", reward_function("local")),
            ("API of 500 ms", reward_function(judge, **options)),
            ("the same, from store", reward_function(judge, **options)),
        ):
            steps_with(policy, Timed(function, name), args, folder)


if __name__ == "__main__":
    main()
