"""What may be wrong with a pair beyond its labels. Each guard has a name, a reason and a limit.

    same               both sides read the same
    nearly_identical   both sides nearly identical
    prompt_length      prompt longer than max_length
    same_tokens        both sides read the same within max_length
    language           an answer in another language than its query
    held_out_item      the item is held out; the query is, or nearly repeats, a held-out one
    held_out_answer    an answer contains a held-out answer
    personal_data      personal data or a key in an answer or its query (where these are not masked)

A pair with an objection is dropped and counted. What was dropped can do no harm any more; but where a
guard objects often, the source is not what it should be, and what no guard can see is likely to be wrong
too. So above its limit a guard's count is an error of the audit.

Not here: the labels (`rule.py`); how the audit tells it (`audit.py`).
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal, Self, get_args

from pydantic import ConfigDict, Strict
from rapidfuzz import fuzz

from xyreward.chat_tokenizer import ChatTokenizer, Messages, load_chat_tokenizer
from xyreward.embedded import POLICY_NAME
from xyreward.errors import ConfigError
from xyreward.items import Item, Message
from xyreward.pairs.candidates import Judged
from xyreward.pairs.held_out import (
    ANSWER_IS_HELD_OUT,
    ITEM_IS_HELD_OUT,
    QUERY_IS_HELD_OUT,
    HeldOut,
)
from xyreward.pairs.language import NOTHING, Told, language_of, speaks_another
from xyreward.pairs.personal_data import DEFAULT_KINDS, PERSONAL_KINDS, PersonalKind, mask
from xyreward.words import counted

SAME = "both sides read the same"
NEARLY_IDENTICAL = "both sides nearly identical"
PROMPT_LENGTH = "prompt longer than max_length"
SAME_TOKENS = "both sides read the same within max_length"
LANGUAGE = "an answer in another language than its query"
PERSONAL_DATA = "personal data or a key in an answer or its query"

Guard = Literal[
    "same",
    "nearly_identical",
    "prompt_length",
    "same_tokens",
    "language",
    "held_out_item",
    "held_out_answer",
    "personal_data",
]
GUARDS: tuple[Guard, ...] = get_args(Guard)

REASONS: Mapping[Guard, tuple[str, ...]] = MappingProxyType(
    {
        "same": (SAME,),
        "nearly_identical": (NEARLY_IDENTICAL,),
        "prompt_length": (PROMPT_LENGTH,),
        "same_tokens": (SAME_TOKENS,),
        "language": (LANGUAGE,),
        "held_out_item": (ITEM_IS_HELD_OUT, QUERY_IS_HELD_OUT),
        "held_out_answer": (ANSWER_IS_HELD_OUT,),
        "personal_data": (PERSONAL_DATA,),
    }
)
"""Guard -> reasons under which its objections are counted."""

LIMITS: Mapping[Guard, float] = MappingProxyType(
    {
        "same": 0.10,  # a policy at a low temperature repeats itself
        "nearly_identical": 0.10,
        "prompt_length": 0.10,
        "same_tokens": 0.05,
        "language": 0.05,
        # One is enough: the caller gave items of both sides, and their paraphrases pass unseen.
        "held_out_item": 0.0,
        # A single quotation can be chance, among 250,000 answers even a few. Of a source that has read
        # the benchmark more are found, and its paraphrases are not.
        "held_out_answer": 0.001,
        "personal_data": 0.05,
    }
)
"""Guard -> share of the examined pairs, in [0, 1], that it may drop before the audit is an error."""

_NEXT_STEP: Mapping[Guard, str] = MappingProxyType(
    {
        "same": "sample at a higher temperature",
        "nearly_identical": "sample at a higher temperature",
        "prompt_length": "raise max_length",
        "same_tokens": "raise max_length, or sample shorter answers",
        "language": "look at the source's answers and at the items' language",
        "held_out_item": "split all items in one call of assign_splits()",
        "held_out_answer": "find out which source or model repeats the benchmark, and leave it out",
        "personal_data": "mask it, or look at where the answers come from",
    }
)


@dataclass(frozen=True)
class Guards:
    """Which guards stand, and how strict they are.

    The guard of tokens and that of held-out data stand where `objection` is given a tokenizer and what is
    held out.

    Raises:
        ConfigError: a field outside its range.
    """

    nearly_identical: Annotated[float, Strict()] | None = 0.95
    """Similarity of two answers in (0, 1] (twice the common subsequence over both lengths, in characters),
    at or above which they count as one. None: only those that read the same do."""
    language: Annotated[bool, Strict()] = True
    """Drop pairs with an answer that is surely in another language than its query."""
    personal_data: Literal["mask", "drop", "keep"] = "mask"
    """What is done with answers and queries in which personal data or keys are found."""
    personal_kinds: tuple[PersonalKind, ...] = DEFAULT_KINDS
    """What is looked for."""
    phone_regions: tuple[str, ...] = ()
    """Regions (ISO 3166-1, `US`) whose phone numbers are also found without their `+`."""
    limits: Mapping[Guard, float] = field(default_factory=dict)
    """Guard -> share of the examined pairs, in [0, 1], in place of the one in `LIMITS`."""

    # As a section of a YAML file, where a key that is not known is an error.
    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    def __post_init__(self) -> None:
        if self.nearly_identical is not None and not 0 < self.nearly_identical <= 1:
            raise ConfigError(
                f"nearly_identical is {self.nearly_identical}, expected in (0, 1], or None for none"
            )
        if self.personal_data not in ("mask", "drop", "keep"):
            raise ConfigError(
                f"personal_data is {self.personal_data!r}, expected mask, drop or keep"
            )
        kinds: Any = self.personal_kinds  # also what a caller passed without a type checker
        if isinstance(kinds, str) or not set(PERSONAL_KINDS).issuperset(kinds):
            raise ConfigError(
                f"personal_kinds is {kinds!r}, expected a list of some of {', '.join(PERSONAL_KINDS)}"
            )
        regions: Any = self.phone_regions
        if isinstance(regions, str):
            raise ConfigError(f"phone_regions is {self.phone_regions!r}, expected a list")
        if self.phone_regions:
            from phonenumbers import SUPPORTED_REGIONS

            if strange := sorted(set(self.phone_regions) - SUPPORTED_REGIONS):
                raise ConfigError(
                    f"phone_regions has {', '.join(map(repr, strange))}, expected codes of two capitals "
                    "as in ISO 3166-1, such as 'US'"
                )
        for name, share in self.limits.items():
            if name not in GUARDS:
                raise ConfigError(f"limits has {name!r}, expected {', '.join(GUARDS)}")
            if isinstance(share, bool) or not 0 <= share <= 1:
                raise ConfigError(f"limits.{name} is {share}, expected a share in [0, 1]")

    def mask(self, text: str) -> tuple[str, Counter[PersonalKind]]:
        """A text with personal data and keys replaced, and how many of which kind.

        Unchanged, and nothing counted, unless `personal_data` is `mask`.
        """
        if self.personal_data != "mask":
            return text, Counter()
        return mask(text, self.personal_kinds, phone_regions=self.phone_regions)

    def mask_item(self, item: Item) -> tuple[Item, Counter[PersonalKind]]:
        """An item whose query and notes are masked, the same one where nothing is; and what was found.

        Notes quote the query, and go where it goes: to a judge, and into rows of prompts.
        """
        found: Counter[PersonalKind] = Counter()

        def masked(text: str) -> str:
            text, of_text = self.mask(text)
            found.update(of_text)
            return text

        update: dict[str, Any] = {
            "query": masked(item.query)
            if isinstance(item.query, str)
            else tuple(Message(role=m.role, content=masked(m.content)) for m in item.query)
        }
        for name in ("stated_request", "intended_request", "misconception"):
            update[name] = masked(getattr(item, name))
        for name in ("stated_solutions", "intended_solutions"):
            update[name] = tuple(map(masked, getattr(item, name)))
        return (item.model_copy(update=update) if found else item), found

    def objection(
        self,
        item: Item,
        chosen: Judged,
        rejected: Judged,
        *,
        prompt: Messages | None = None,
        tokens: TokenGuard | None = None,
        held_out: HeldOut | None = None,
        told: Told = NOTHING,
    ) -> str | None:
        """Why a pair must not be trained on, in words that are the same for all such pairs; else None.

        The first of several reasons. Which side is chosen does not matter.

        Args:
            item: what both answer.
            chosen: one side.
            rejected: the other.
            prompt: what is trained on, where personal data in the query is masked. None: the query.
            tokens: what the trainer's tokenizer makes of the pair. None: not looked at.
            held_out: what is evaluated. None: not looked at.
            told: languages of queries and answers, from a caller who has many of them.
        """
        one, other = chosen.text, rejected.text
        if held_out and (reason := held_out.item_objection(item)):
            return reason
        if _folded(one) == _folded(other):
            return SAME
        if self.nearly_identical is not None and alike(one, other, self.nearly_identical):
            return NEARLY_IDENTICAL
        if held_out and any(map(held_out.answer_objection, (one, other))):
            return ANSWER_IS_HELD_OUT
        if self.language and any(answers_in_another(item, text, told) for text in (one, other)):
            return LANGUAGE
        if self.personal_data == "drop" and any(
            mask(text, self.personal_kinds, phone_regions=self.phone_regions)[1]
            for text in (one, other, item.query_text)
        ):
            return PERSONAL_DATA
        return tokens.objection(prompt or item.messages, one, other) if tokens else None

    def limit(self, guard: Guard) -> float:
        """Share of the examined pairs, in [0, 1], that a guard may drop."""
        return self.limits.get(guard, LIMITS[guard])

    def problems(self, dropped: Mapping[str, int], examined: int) -> tuple[str, ...]:
        """A line for each guard that dropped more than its limit.

        Args:
            dropped: reason -> count, as in `PairSet.dropped`; reasons of others than guards are left alone.
            examined: pairs that the guards looked at: kept ones and those that guards dropped.
        """
        lines = []
        for guard in GUARDS:
            count = sum(dropped.get(reason, 0) for reason in REASONS[guard])
            if count > self.limit(guard) * examined:
                lines.append(
                    f"guard {guard}: {count} of {counted(examined, 'pair')} dropped "
                    f"({count / max(examined, 1):.1%}; {' or '.join(REASONS[guard])}), expected at most "
                    f"{self.limit(guard):.1%}; {_NEXT_STEP[guard]}, or set limits.{guard}"
                )
        return tuple(lines)


@lru_cache(maxsize=256)
def _folded(text: str) -> str:
    """As `items.text_hash` reads it."""
    return " ".join(unicodedata.normalize("NFC", text).split())


def alike(one: str, other: str, threshold: float) -> bool:
    """Whether two texts have a similarity of at least `threshold`, in (0, 1], white space folded."""
    score = fuzz.ratio(" ".join(one.split()), " ".join(other.split()), score_cutoff=100 * threshold)
    return score >= 100 * threshold


def answers_in_another(item: Item, answer: str, told: Told = NOTHING) -> bool:
    """Whether an answer is surely in another language than the query.

    An answer that is mostly code, or too short to tell, is not. `told`: see `Guards.objection`.
    """
    query = item.query_text
    asked_in = told.wholes[query] if query in told.wholes else language_of(query)
    if speaks_another(answer, asked_in or item.language, told):
        # `en` is also what an item has whose source does not say; any other was said by someone, who may
        # know better than the words of a query full of English terms.
        return item.language == "en" or speaks_another(answer, item.language, told)
    return False


class TokenGuard:
    """What a trainer sees of a pair: tokens of the chat template, the first `max_length` of them.

    Args:
        tokenizer: of the policy that is trained; a `Policy` is one.
        max_length: tokens of prompt and answer together that the trainer keeps, >= 2. None: all.

    Raises:
        ConfigError: `max_length` is below 2.
    """

    def __init__(self, tokenizer: ChatTokenizer, max_length: int | None) -> None:
        if max_length is not None and max_length < 2:
            raise ConfigError(f"max_length is {max_length}, expected >= 2, or None for all tokens")
        self.tokenizer = tokenizer
        self.max_length = max_length
        # An answer is in several pairs of its item.
        self._prompt = lru_cache(maxsize=256)(self._prompt_ids)
        self._fits = lru_cache(maxsize=256)(self._prompt_fits)
        self._text = lru_cache(maxsize=256)(self._full_text)
        self._answer = lru_cache(maxsize=4096)(self._answer_ids)
        self._cut = lru_cache(maxsize=4096)(self._is_cut)

    @classmethod
    def load(
        cls,
        name: str = POLICY_NAME,
        max_length: int | None = None,
        *,
        revision: str | None = None,
        chat_template_kwargs: Mapping[str, object] | None = None,
    ) -> Self:
        """Make one from a policy's name, without loading its weights; see `load_chat_tokenizer`."""
        tokenizer = load_chat_tokenizer(
            name, revision=revision, chat_template_kwargs=chat_template_kwargs
        )
        return cls(tokenizer, max_length)

    def objection(self, prompt: Messages, one: str, other: str) -> str | None:
        """Why a trainer would drop this pair or learn nothing from it; None where it would not."""
        length, key = self.max_length, _key(prompt)
        if (
            length is not None
            and self._fits(key)
            and self.tokenizer.surely_differ(self._text(key, one), self._text(key, other), length)
        ):
            return None  # as nearly always; tokenising would be most of what all guards take
        (ids, begin), (other_ids, other_begin) = self._both(prompt, one, other)
        if length is not None and max(begin, other_begin) >= length:
            return PROMPT_LENGTH
        return SAME_TOKENS if ids[:length] == other_ids[:length] else None

    def cuts(self, prompt: Messages, one: str, other: str) -> bool:
        """Whether an answer reaches beyond `max_length`."""
        if self.max_length is None:
            return False
        key = _key(prompt)
        return self._cut(key, one) or self._cut(key, other)

    def _both(self, prompt: Messages, one: str, other: str) -> list[tuple[tuple[int, ...], int]]:
        key = _key(prompt)
        return [self._answer(key, text) for text in (one, other)]

    def _prompt_ids(self, prompt: _Prompt) -> tuple[int, ...]:
        return tuple(self.tokenizer.prompt_ids(_messages(prompt)))

    def _prompt_fits(self, prompt: _Prompt) -> bool:
        assert self.max_length is not None
        if self.tokenizer.surely_shorter(_messages(prompt), self.max_length):
            return True
        return len(self._prompt(prompt)) < self.max_length

    def _full_text(self, prompt: _Prompt, answer: str) -> str:
        return self.tokenizer.text(_messages(prompt), answer)

    def _is_cut(self, prompt: _Prompt, answer: str) -> bool:
        assert self.max_length is not None
        text = self._text(prompt, answer)
        if self.tokenizer.surely_at_most(text, self.max_length) or self.tokenizer.surely_fits(
            _messages(prompt), text, self.max_length, prompt_ids=len(self._prompt(prompt))
        ):
            return False
        return len(self._answer(prompt, answer)[0]) > self.max_length

    def _answer_ids(self, prompt: _Prompt, answer: str) -> tuple[tuple[int, ...], int]:
        ids, begin = self.tokenizer.answer_ids(
            _messages(prompt), answer, prompt=self._prompt(prompt)
        )
        return tuple(ids), begin


_Prompt = tuple[tuple[str, str], ...]


def _key(prompt: Messages) -> _Prompt:
    return tuple((message["role"], message["content"]) for message in prompt)


def _messages(prompt: _Prompt) -> list[dict[str, str]]:
    return [{"role": role, "content": content} for role, content in prompt]
