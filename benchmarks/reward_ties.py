"""How many groups of sampled answers have one reward for all of them, under hard and under soft labels.

    python benchmarks/reward_ties.py [--prompts 10] [--answers 4] [--tokens 64]

Such a group has no advantage in it and teaches GRPO nothing. Samples from the embedded model, judged by the
local judge.
"""

import argparse

from xyreward import Reward, load_items, load_policy, score
from xyreward.pairs.sampling import answer_seed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int, default=10)
    parser.add_argument("--answers", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--model", default="embedded:smollm2-135m")
    args = parser.parse_args()

    train = sorted(load_items("mini", split="train"), key=lambda item: item.content_hash)
    items = train[: args.prompts]
    policy = load_policy(args.model)
    seeds = [[answer_seed(0, item, n) for n in range(args.answers)] for item in items]
    groups = []
    for item, of_item in zip(items, seeds, strict=True):
        (sampled,) = policy.sample([item.messages], seeds=[of_item], max_new_tokens=args.tokens)
        groups.append([answer.text for answer in sampled])
    for name, reward in (("hard", Reward()), ("soft", Reward(soft=True))):
        equal, spreads = 0, []
        for item, answers in zip(items, groups, strict=True):
            rewards = [one.reward for one in score(item, answers, reward=reward)]
            known = [value for value in rewards if value is not None]
            spreads.append(max(known) - min(known))
            equal += spreads[-1] == 0
        middle = sorted(spreads)[len(spreads) // 2]
        print(
            f"{name}: {equal} of {len(items)} groups of {args.answers} have equal rewards; "
            f"median spread {middle:.3f}, widest {max(spreads):.3f}"
        )


if __name__ == "__main__":
    main()
