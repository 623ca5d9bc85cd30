"""The request of OpenRLHF's remote reward URL: what of its texts is the answer, and whose it is.

OpenRLHF sends `query` (prompt and answer, decoded with special tokens), `prompts` (each as it was given to
the tokenizer) and `labels` (the data set's label column): `SingleTurnAgentExecutor._fetch_rewards_via_http`
in `openrlhf/utils/agent.py`. The prompt has gone through a chat template, which cannot be undone, so the item
comes by the label: its id, or the item itself as JSON.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from xyreward.completions import Visible
from xyreward.items import Item
from xyreward.serve.catalogue import Catalogue, NotServedError
from xyreward.strict_json import faults, parse_json

BEFORE_PROMPT = 32
"""Characters that a tokenizer may put before the prompt: `<s>`, `<|begin_of_text|>`."""

_END = re.compile(
    r"(?:\s|<\|[^<>|\s]{1,40}\|>|</s>|<eos>|<pad>|\[PAD\]|<end_of_turn>|<turn\|>|<[\uff5c|][^<>\s]{1,40}[\uff5c|]>)+\Z"
)
"""White space and special tokens that end a turn or fill a batch, of the model families in use."""

THINKING = ("<think>", "</think>")


def answer_of(query: str, prompt: str, *, thinking: bool = False) -> str:
    """What the user would read of a query: without prompt, special tokens, thinking and calls of tools.

    Args:
        query: prompt and answer.
        prompt: as it is at the beginning of `query`.
        thinking: leave what is between <think> and </think> in.

    Raises:
        ValueError: the query does not begin with the prompt.
    """
    at = query.find(prompt, 0, len(prompt) + BEFORE_PROMPT)
    if at < 0:
        raise ValueError(
            "does not begin with its prompt, so nobody can tell where the answer begins; was the prompt "
            "cut to fit? Make room for it: a larger --data.max_len, or fewer new tokens"
        )
    answer = _END.sub("", query[at + len(prompt) :])
    marks = None if thinking else THINKING
    return Visible(thinking=marks, begun=prompt.rstrip().endswith(THINKING[0]))(answer)


def item_of_label(label: str | Mapping[str, Any], catalogue: Catalogue) -> Item:
    """The item that a label names or holds.

    Raises:
        NotServedError: see `Catalogue`; or it is neither an id nor an item.
    """
    if isinstance(label, str):
        text = label.strip()
        if not text.startswith("{"):
            if not text:
                raise NotServedError(
                    "the label is empty, expected an item's id; name the column that holds it with "
                    "--data.label_key item_id (--label_key in older releases of OpenRLHF)"
                )
            return catalogue.named(text)
        try:
            label = parse_json(text)
        except ValueError as error:
            raise NotServedError(f"the label is neither an id nor JSON ({error})") from None
    assert isinstance(label, Mapping)
    for where, what in faults(label):
        raise NotServedError(f"the label's {where[:80]} {what}")
    try:
        return catalogue.checked(Item.model_validate(label))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise NotServedError(f"the label is no item: {where[:80]}: {first['msg'][:200]}") from None
