"""What of a trainer's completion a user would read: no thinking, no calls of tools.

Not here: generating (`policy.py`), judging (`scorer.py`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Completion = str | Sequence[Mapping[str, Any]]
"""As TRL hands it to a reward function: a text, or the messages that the policy (and its tools) added."""


@dataclass(frozen=True, slots=True)
class Visible:
    """Takes out of a completion what is judged: calling it gives a text, empty where nothing is to be read.

    Of messages only the assistant's texts are taken, joined by blank lines: reasoning that a parser has put
    apart, calls of tools and what tools replied are left out.
    """

    thinking: tuple[str, str] | None = ("<think>", "</think>")
    """Marks around thinking at the beginning of a text. An end without a beginning counts too, since many
    templates write the beginning into the prompt. None: nothing is taken for thinking."""
    begun: bool = False
    """The template opens thinking in the prompt: a text without the end mark is nothing but thinking, cut off
    before an answer began."""
    tool_calls: tuple[str, str] | None = ("<tool_call>", "</tool_call>")
    """Marks around calls of tools, anywhere in a text. None: none are looked for."""

    def __call__(self, completion: Completion) -> str:
        """The text that is judged.

        Raises:
            TypeError: it is neither a text nor a list of messages.
        """
        if isinstance(completion, str):
            return self._of_text(completion)
        messages: list[Any] = list(completion) if isinstance(completion, Sequence) else [completion]
        if not all(isinstance(message, Mapping) for message in messages):
            raise TypeError(
                f"a completion is {type(completion).__name__}, expected a text or a list of messages"
            )
        texts = [
            self._of_text(_text_of(message.get("content")))
            for message in messages
            if message.get("role") == "assistant"
        ]
        return "\n\n".join(text for text in texts if text)

    def _of_text(self, text: str) -> str:
        text = text.strip()
        if self.thinking is not None:
            opens, closes = self.thinking
            before, closed, after = text.partition(closes)
            if text.startswith(opens) or self.begun or (closed and opens not in before):
                text = after
        if self.tool_calls is not None:
            opens, closes = map(re.escape, self.tool_calls)
            text = re.sub(f"{opens}.*?(?:{closes}|$)", "", text, flags=re.DOTALL)
        return text.strip()


def _text_of(content: Any) -> str:
    """The text of a message, whose content may be in parts of several kinds."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, Sequence) else []
    return "".join(
        str(part.get("text", "")) for part in parts if isinstance(part, Mapping) and "text" in part
    )
