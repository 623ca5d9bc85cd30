"""What tokens cost: US dollars from token counts. An unknown price is None, never 0.

`prices.json` beside this file names its date and its source. Prices change, and yours may differ: a file
of the same form, named by XYREWARD_PRICES or given to `Prices.load`, adds to it and overrides it.

    {"models": {"chat:qwen3.5-9b": {"input": 0, "output": 0}}}

Not here: how many tokens a call has (`rubric.py` estimates, the server counts), the
budget (`store/ledger.py`).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from os import PathLike
from pathlib import Path
from typing import Any, TypeGuard

from xyreward.errors import ConfigError
from xyreward.strict_json import faults, parse_json
from xyreward.verdict import Usage

_PER_TOKEN = 1e-6
_SNAPSHOT = re.compile(r"-\d{8}$")
_FIELDS = ("models", "unit", "checked", "source", "notes")
_MOST = 1_000_000
"""US dollars per million tokens. Above a dollar per token it is a mistake, and sums would be absurd."""
_RATES = ("input", "output", "cache_write", "cache_read")


@dataclass(frozen=True, slots=True)
class Rates:
    """US dollars per million tokens, at least 0."""

    input: float
    output: float
    cache_write: float
    """Of the 5-minute cache."""
    cache_read: float


@dataclass(frozen=True, slots=True)
class Price:
    """What one model costs."""

    rates: Rates
    batch: float | None = None
    """Factor on all rates in a message batch, in [0, 1]. None: unknown, or there are no batches."""
    long_prompt_above: int | None = None
    """Prompts of more tokens than this, cached ones included, cost `long_prompt` throughout."""
    long_prompt: Rates | None = None

    def cost(self, usage: Usage, *, batch: bool = False) -> float | None:
        """US dollars for the tokens of one call. None where its batch price is unknown."""
        prompt = usage.input_tokens + usage.cache_write_tokens + usage.cache_read_tokens
        rates = self._rates(prompt)
        dollars = _PER_TOKEN * (
            rates.input * usage.input_tokens
            + rates.output * usage.output_tokens
            + rates.cache_write * usage.cache_write_tokens
            + rates.cache_read * usage.cache_read_tokens
        )
        return self._in_batch(dollars, batch)

    def worst_case(
        self, input_tokens: int, max_tokens: int, *, batch: bool = False
    ) -> float | None:
        """US dollars that one sending can cost at most: all input written to the cache, all output used.

        It is as good a bound as `input_tokens` is. A byte of UTF-8 text is at most one token; the
        server adds a few hundred of its own for a system prompt and a schema.
        """
        rates = self._rates(input_tokens)
        dearest = max(rates.input, rates.cache_write, rates.cache_read)
        dollars = _PER_TOKEN * (dearest * input_tokens + rates.output * max_tokens)
        return self._in_batch(dollars, batch)

    def _rates(self, prompt_tokens: int) -> Rates:
        if self.long_prompt is None or prompt_tokens <= (self.long_prompt_above or 0):
            return self.rates
        return self.long_prompt

    def _in_batch(self, dollars: float, batch: bool) -> float | None:
        if not batch:
            return dollars
        return None if self.batch is None else dollars * self.batch


class Prices:
    """Prices by judge name, as `load_judge` takes it: "anthropic:claude-sonnet-5-5".

    A name without a scheme means a model of Anthropic's, here and in price files. A `chat:` judge has a
    price only from an override, as "chat:model@url" or "chat:model": who serves a model under a known
    name is not who sets its price.
    """

    def __init__(self, prices: Mapping[str, Price], *, checked: str = "", source: str = "") -> None:
        self._prices = dict(prices)
        self.checked = checked
        """Day on which the packaged figures were compared with their source, YYYY-MM-DD."""
        self.source = source

    @classmethod
    def load(cls, override: str | PathLike[str] | Mapping[str, Any] | None = None) -> Prices:
        """The packaged prices, those of XYREWARD_PRICES over them, those of `override` over both.

        Args:
            override: a JSON file, or what such a file would hold.

        Raises:
            ConfigError: an override is missing or malformed; names each entry that is.
        """
        packaged = resources.files("xyreward").joinpath("prices.json").read_text("utf-8")
        table = json.loads(packaged)
        prices = _parse(table, "prices.json")
        from_env = os.environ.get("XYREWARD_PRICES")
        if from_env:
            prices |= _parse(_read(Path(from_env)), f"XYREWARD_PRICES={from_env}")
        if isinstance(override, Mapping):
            prices |= _parse(override, "the given prices")
        elif override is not None:
            prices |= _parse(_read(Path(override)), str(override))
        return cls(prices, checked=table["checked"], source=table["source"])

    def find(self, judge: str) -> Price | None:
        """The price of a judge or an Anthropic model, or None where it is unknown."""
        name = _full(judge)
        names = [name]
        if name.startswith("chat:"):
            names.append(without_url(name))
        else:
            names.append(_SNAPSHOT.sub("", name))  # a dated snapshot costs what its model does
        return next((self._prices[name] for name in names if name in self._prices), None)

    def names(self) -> list[str]:
        """All names that have a price, in the order of the files."""
        return list(self._prices)

    def cost(self, usage: Usage, judge: str, *, batch: bool = False) -> float | None:
        """US dollars for the tokens of one call. None where the price is unknown."""
        price = self.find(judge)
        return None if price is None else price.cost(usage, batch=batch)

    def worst_case(
        self, input_tokens: int, max_tokens: int, judge: str, *, batch: bool = False
    ) -> float | None:
        """US dollars that one sending can cost at most. None where the price is unknown."""
        price = self.find(judge)
        if price is None:
            return None
        return price.worst_case(input_tokens, max_tokens, batch=batch)

    def expected(
        self,
        judge: str,
        calls: int,
        *,
        prefix_tokens: int,
        unique_tokens: int,
        output_tokens: int,
        cached: bool,
        cache_writes: int = 1,
        batch: bool = False,
    ) -> float | None:
        """US dollars for many calls with the same prefix. None where the price is unknown.

        Args:
            judge: its name, or an Anthropic model's.
            calls: how many.
            prefix_tokens: of the part that all calls share.
            unique_tokens: of the rest of one call's input.
            output_tokens: of one reply, thinking included.
            cached: whether the prefix is cached: written by the first calls and read by all others.
            cache_writes: how many calls begin before any reply has come, and one for each pause of over
                5 minutes.
            batch: at the price of message batches.
        """
        writes = min(calls, cache_writes) if cached else 0
        first = Usage(unique_tokens, output_tokens, cache_write_tokens=prefix_tokens)
        later = Usage(unique_tokens, output_tokens, cache_read_tokens=prefix_tokens)
        plain = Usage(prefix_tokens + unique_tokens, output_tokens)
        one_first = self.cost(first, judge, batch=batch)
        one_later = self.cost(later if cached else plain, judge, batch=batch)
        if one_first is None or one_later is None:
            return None
        return writes * one_first + (calls - writes) * one_later


def usual_tokens() -> dict[str, int]:
    """Tokens of a usual verdict, by the names of `Prices.expected`: what the table of docs/cost.md assumes.

    Of the rubric as it is, estimated offline and rounded to hundreds.
    """
    from xyreward import rubric

    return {
        "prefix_tokens": round(rubric.estimate_tokens(rubric.prefix("xy")), -2),
        "unique_tokens": rubric.TYPICAL_UNIQUE_TOKENS,
        "output_tokens": rubric.TYPICAL_OUTPUT_TOKENS,
    }


def cost_table(prices: Prices, calls: int = 1000) -> str:
    """Markdown: dollars for so many usual verdicts, one row per price."""
    usual = usual_tokens()
    lines = [
        f"| US dollars for {calls:,} verdicts | no caching | caching | batch | batch, caching at best |",
        "|---|---:|---:|---:|---:|",
    ]
    for name in prices.names():
        cells = []
        for batch in (False, True):
            for cached in (False, True):
                dollars = prices.expected(
                    name,
                    calls,
                    cached=cached,
                    batch=batch,
                    **usual,
                )
                cells.append("unknown" if dollars is None else f"{dollars:.2f}")
        lines.append(f"| `{name}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def without_url(judge: str) -> str:
    """A judge's name without addresses of servers. A model's name may have an @ of its own."""
    scheme, colon, members = judge.partition(":")
    if scheme == "panel" and colon:
        return f"panel:{','.join(map(without_url, members.split(',')))}"
    return re.sub(r"^(.+)@https?://.+$", r"\1", judge)


def _full(name: str) -> str:
    return name if ":" in name else f"anthropic:{name}"


def _read(path: Path) -> Any:
    try:
        table = parse_json(path.read_text("utf-8-sig"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such price file") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: expected a JSON file with prices, found {error}") from None
    # A price that is given twice: nobody could say which of the two a budget is counted with.
    if isinstance(table, Mapping) and (
        found := [f"{place} {what}" for place, what in faults(table)]
    ):
        raise ConfigError(f"{path}: " + "; ".join(found))
    return table


def _parse(table: Any, where: str) -> dict[str, Price]:
    entries = table.get("models") if isinstance(table, Mapping) else None
    if not isinstance(entries, Mapping):
        raise ConfigError(
            f'{where}: expected {{"models": {{name: {{"input": ..., "output": ...}}}}}} in US '
            "dollars per million tokens"
        )
    problems = [f"unknown field {key!r}" for key in table if key not in _FIELDS]
    prices: dict[str, Price] = {}
    for name, entry in entries.items():
        found: list[str] = []
        price = _price(entry, found)
        if _full(str(name)) in prices:
            found.append(f"is {_full(str(name))}, which has a price already")
        if price is not None and not found:
            prices[_full(str(name))] = price
        problems += [f"{name}: {problem}" for problem in found]
    if problems:
        raise ConfigError(f"{where}: " + "; ".join(problems))
    return prices


def _price(entry: Any, problems: list[str]) -> Price | None:
    if not isinstance(entry, Mapping):
        problems.append(f"found {entry!r}, expected an object with input and output")
        return None
    known = {*_RATES, "batch", "long_prompt"}
    problems += [f"unknown field {name!r}" for name in entry if name not in known]
    long_prompt = entry.get("long_prompt")
    above = None
    if isinstance(long_prompt, Mapping):
        above = long_prompt.get("above_tokens")
        if not isinstance(above, int) or isinstance(above, bool) or above < 1:
            problems.append(
                f"long_prompt.above_tokens is {above!r}, expected a whole number above 0"
            )
    elif long_prompt is not None:
        problems.append(f"long_prompt is {long_prompt!r}, expected an object")
        long_prompt = None
    batch = entry.get("batch")
    factor = float(batch) if _is_number(batch) and batch <= 1 else None
    if factor is None and batch is not None:
        problems.append(f"batch is {batch!r}, expected a factor in [0, 1]")
    rates = _rates(entry, "", problems)
    dear = None if long_prompt is None else _rates(long_prompt, "long_prompt.", problems)
    if problems or rates is None:
        return None
    return Price(rates, factor, above, dear)


def _rates(entry: Mapping[str, Any], prefix: str, problems: list[str]) -> Rates | None:
    values = {name: entry.get(name) for name in _RATES}
    # An endpoint without a price for cached tokens charges them like all others.
    for name in ("cache_write", "cache_read"):
        values[name] = values["input"] if values[name] is None else values[name]
    wrong = [name for name in ("input", "output") if not _is_number(values[name])]
    wrong += [name for name in _RATES[2:] if name in entry and not _is_number(values[name])]
    problems += [
        f"{prefix}{name} is {values[name]!r}, expected US dollars per million tokens, 0 to {_MOST:,}"
        for name in wrong
    ]
    return None if wrong else Rates(*(float(values[name] or 0) for name in _RATES))


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= _MOST


if __name__ == "__main__":
    print(cost_table(Prices.load()))  # noqa: T201
