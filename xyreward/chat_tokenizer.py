"""The tokenizer of a policy with its chat template: the token ids that a trainer will see.

It is loaded without the weights, so what depends on tokens alone can be checked on any machine.

Not here: the model (`policy.py`); what a policy's name may be (`locate.py`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from xyreward.embedded import POLICY_NAME
from xyreward.errors import ConfigError, MissingDependency, told
from xyreward.locate import base_of_adapter, folder_of, is_adapter, mark_in

Messages = Sequence[Mapping[str, str]]


@dataclass
class ChatTokenizer:
    """A tokenizer and the arguments that its chat template is called with."""

    name: str
    tokenizer: Any
    chat_template_kwargs: Mapping[str, Any]

    def prompt_ids(self, messages: Messages) -> list[int]:
        """Token ids of a prompt, up to where the answer begins."""
        return self._template(messages, add_generation_prompt=True)

    def answer_ids(
        self, messages: Messages, answer: str, *, prompt: Sequence[int] | None = None
    ) -> tuple[list[int], int]:
        """Token ids of prompt and answer, and where the answer begins, as TRL's DPOTrainer has them.

        Args:
            messages: the prompt.
            answer: the assistant's reply to it.
            prompt: `prompt_ids(messages)`, from a caller who has several answers to it. None: made here.
        """
        if prompt is None:
            prompt = self.prompt_ids(messages)
        full = self._template([*messages, {"role": "assistant", "content": answer}])
        shared = 0
        while shared < min(len(prompt), len(full)) and prompt[shared] == full[shared]:
            shared += 1
        return full, shared

    def text(self, messages: Messages, answer: str) -> str:
        """What `answer_ids` are the ids of: prompt and answer in the chat template."""
        return self._text([*messages, {"role": "assistant", "content": answer}])

    def _text(self, messages: Messages, **kwargs: Any) -> str:
        return str(
            self.tokenizer.apply_chat_template(
                [dict(m) for m in messages], tokenize=False, **kwargs, **self.chat_template_kwargs
            )
        )

    def surely_differ(self, one: str, other: str, within: int) -> bool:
        """Whether two texts surely differ in their first `within` token ids, told without tokenising.

        With a tokenizer of bytes that keeps them all, equal ids stand for equal text, and `within` ids for
        at least as many bytes: texts that differ in these differ in their ids. False where that cannot be
        told.
        """
        a, b = self._kept(one), self._kept(other)
        return a is not None and b is not None and a != b and a[:within] != b[:within]

    def surely_shorter(self, messages: Messages, than: int) -> bool:
        """Whether a prompt surely has fewer token ids, told likewise."""
        return self.surely_at_most(self._text(messages, add_generation_prompt=True), than - 1)

    def surely_at_most(self, text: str, most: int) -> bool:
        """Whether a rendered text surely has at most so many token ids, told likewise."""
        kept = self._kept(text)
        return kept is not None and len(kept) <= most

    def surely_fits(self, messages: Messages, text: str, most: int, *, prompt_ids: int) -> bool:
        """Whether prompt and answer surely have at most so many token ids, told without tokenising them.

        Added tokens divide a text: what stands before and after one is tokenised apart. So up to the last one
        of the prompt it has no more ids than the prompt, and beyond it no more than bytes.

        Args:
            messages: the prompt.
            text: prompt and answer, as `text` renders them.
            most: so many.
            prompt_ids: how many ids the prompt has, which is the same for all answers to it.
        """
        if self._kept(text) is None or self._marks is None:
            return False
        prompt = self._text(messages, add_generation_prompt=True)
        begin = prompt[: max((mark.end() for mark in self._marks.finditer(prompt)), default=0)]
        beyond = len(text.encode("utf-8", "surrogatepass")) - len(
            begin.encode("utf-8", "surrogatepass")
        )
        return text.startswith(begin) and prompt_ids + beyond <= most

    def _kept(self, text: str) -> bytes | None:
        """The bytes of a text of which each token is known to be a stretch; None where it is not."""
        if self._lost is None:
            return None
        found = text.encode("utf-8", "surrogatepass")
        return found if found.translate(None, self._lost) == found else None

    @cached_property
    def _lost(self) -> bytes | None:
        """Bytes that the tokenizer drops or may change; None where that can be any."""
        from tokenizers.models import BPE

        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        if not self.tokenizer.is_fast or backend is None or type(backend.model) is not BPE:
            return None
        model, splits = backend.model, _parts(backend.pre_tokenizer, "pretokenizers")
        changes = {part["type"] for part in _parts(backend.normalizer, "normalizers")}
        if (
            model.dropout
            or model.continuing_subword_prefix
            or model.end_of_word_suffix
            or not changes <= {"NFC"}
            or not any(part["type"] == "ByteLevel" for part in splits)
            or not all(map(_drops_nothing, splits))
            # These swallow the white space around them.
            or any(t.lstrip or t.rstrip for t in self.tokenizer.added_tokens_decoder.values())
        ):
            return None
        # Models have no token for a few bytes, such as control characters, and read past them.
        there = backend.get_vocab(with_added_tokens=False)
        return bytes(
            byte
            for byte, symbol in enumerate(_byte_symbols())
            if symbol not in there or (changes and byte >= 0x80)
        )

    @cached_property
    def _marks(self) -> re.Pattern[str] | None:
        """Finds the added tokens that a text is divided at, the longest at each place; None: unknown."""
        added = [t for t in self.tokenizer.added_tokens_decoder.values() if not t.normalized]
        if not added or any(token.single_word for token in added):
            return None
        names = sorted((token.content for token in added), key=len, reverse=True)
        return re.compile("|".join(map(re.escape, names)))

    def _template(self, messages: Messages, **kwargs: Any) -> list[int]:
        ids = self.tokenizer.apply_chat_template(
            [dict(m) for m in messages],
            tokenize=True,
            return_dict=False,
            **kwargs,
            **self.chat_template_kwargs,
        )
        return list(ids)


def _parts(of: Any, several: str) -> list[dict[str, Any]]:
    """The settings of a part of a tokenizer, of each where it is a sequence of such."""
    if of is None:
        return []
    found = json.loads(of.__getstate__())
    return found[several] if found["type"] == "Sequence" else [found]


def _byte_symbols() -> list[str]:
    """The character that stands for each byte in a vocabulary of bytes, as GPT-2 has it."""
    shown = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = [byte for byte in range(0x100) if byte not in shown]
    return [chr(b) if b in shown else chr(0x100 + hidden.index(b)) for b in range(0x100)]


def _drops_nothing(split: Mapping[str, Any]) -> bool:
    match split["type"]:
        case "ByteLevel":
            return not split["add_prefix_space"]
        case "Split":
            return bool(split["behavior"] != "Removed")
        case "Digits":
            return True
    return False


def load_chat_tokenizer(
    name: str = POLICY_NAME,
    *,
    revision: str | None = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
) -> ChatTokenizer:
    """Load the tokenizer of a policy, without its weights.

    Args:
        name: see `locate.py`; an adapter has its own tokenizer or that of its base.
        revision: commit of a hub model or adapter.
        chat_template_kwargs: for models whose template has switches, e.g. `enable_thinking`. None: what
            it was trained with where a recipe trained it, else none.

    Raises:
        MissingDependency: transformers, or the embedded model's package, is not installed.
        ConfigError: no such folder or hub model, or it holds no tokenizer; no chat template, or one that
            does not use a key of `chat_template_kwargs`.
        HubUnreachable: a hub name that is neither cached nor reachable.
    """
    try:
        import transformers
    except ImportError as error:
        raise MissingDependency(
            f"loading a tokenizer needs {error.name}: pip install 'xyreward[local]'"
        ) from None
    adapter = is_adapter(name, revision)
    folder = folder_of(name, revision)
    mark = base_of_adapter(folder) if adapter else mark_in(folder)
    if chat_template_kwargs is None:
        chat_template_kwargs = mark.chat_template_kwargs if mark else {}
    if adapter and mark and not (Path(folder) / "tokenizer_config.json").exists():
        folder = folder_of(mark.name, mark.revision)
    with loading(name, folder):
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    _check_template(name, tokenizer.chat_template, chat_template_kwargs)
    return ChatTokenizer(name, tokenizer, dict(chat_template_kwargs))


@contextmanager
def loading(name: str, folder: str) -> Iterator[None]:
    """Errors of a damaged or unfit model, which come from five libraries, on one line."""
    try:
        yield
    except ImportError as error:
        raise MissingDependency(
            f"policy {name!r}: loading it needs a package that is not there ({told(error)})"
        ) from error
    except Exception as error:
        raise ConfigError(
            f"policy {name!r}: cannot be loaded from {folder} ({told(error)}). If it is damaged, fetch or "
            "save it again"
        ) from error


def _check_template(name: str, template: Any, kwargs: Mapping[str, Any]) -> None:
    if template is None:
        raise ConfigError(
            f"{name}: the tokenizer has no chat template; use an instruction-tuned model"
        )
    ours = {"messages", "conversation", "add_generation_prompt", "tokenize", "return_dict"} & set(
        kwargs
    )
    if ours:
        raise ConfigError(
            f"{name}: chat_template_kwargs has {', '.join(sorted(ours))}, which is set for each prompt; "
            "take it out"
        )
    # Jinja ignores an argument that a template does not use, and so would a misspelt one be.
    unused = [key for key in kwargs if not re.search(rf"\b{re.escape(key)}\b", str(template))]
    if unused:
        raise ConfigError(
            f"{name}: chat_template_kwargs has {', '.join(unused)}, which its chat template does not use"
        )
