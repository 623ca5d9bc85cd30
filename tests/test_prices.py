import json
import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xyreward.errors import ConfigError
from xyreward.loading import load_items
from xyreward.prices import Price, Prices, Rates, cost_table, usual_tokens, without_url
from xyreward.rubric import Grounding, estimate_tokens, prefix, verdict_call
from xyreward.verdict import Usage

DOCS = Path(__file__).parent.parent / "docs" / "cost.md"
PACKAGED = Prices.load({"models": {}})
million = 1_000_000
tokens = st.integers(0, 2_000_000)
rate = st.floats(0, 100)


@pytest.fixture(autouse=True)
def no_prices_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XYREWARD_PRICES", raising=False)


def usage(**counts: int) -> Usage:
    return Usage(**counts)


def cost(one: Usage, judge: str, *, batch: bool = False) -> float | None:
    return Prices.load().cost(one, judge, batch=batch)


# ---------------------------------------------------------------- cost


def test_a_million_tokens_of_each_kind_cost_the_listed_prices() -> None:
    judge = "anthropic:claude-sonnet-5-5"
    assert cost(usage(input_tokens=million), judge) == pytest.approx(2.0)
    assert cost(usage(output_tokens=million), judge) == pytest.approx(10.0)
    assert cost(usage(cache_write_tokens=million), judge) == pytest.approx(2.5)
    assert cost(usage(cache_read_tokens=million), judge) == pytest.approx(0.1)


def test_the_cost_of_one_verdict_by_hand() -> None:
    # 900 x 2 + 350 x 10 + 4,500 x 0.1 = 5,750 millionths of a dollar
    one = usage(input_tokens=900, output_tokens=350, cache_read_tokens=4500)
    assert cost(one, "claude-sonnet-5-5") == pytest.approx(0.00575)
    assert cost(one, "claude-sonnet-5-5", batch=True) == pytest.approx(0.00575 / 2)


def test_nothing_costs_nothing_but_an_unknown_model_is_unknown() -> None:
    assert cost(Usage(), "claude-sonnet-5-5") == 0
    for judge in (
        "anthropic:claude-sonnet-9",
        "claude-sonnet-5-6",
        "panel:a,b",
        "",
        "chat:gpt-x@u",
    ):
        assert cost(Usage(), judge) is None
        assert Prices.load().worst_case(10, 10, judge) is None
        assert PACKAGED.find(judge) is None


def test_a_dated_snapshot_costs_what_its_model_does() -> None:
    dated = PACKAGED.find("anthropic:claude-sonnet-4-5-20250929")
    assert dated is not None
    assert dated == PACKAGED.find("claude-sonnet-4-5")
    assert PACKAGED.find("claude-sonnet-4-5-2025") is None


def test_a_chat_endpoint_has_no_price_even_under_a_known_name() -> None:
    judge = "chat:claude-sonnet-5-5@http://127.0.0.1:8000/v1"
    assert cost(usage(input_tokens=5), judge) is None
    free = Prices.load({"models": {"chat:claude-sonnet-5-5": {"input": 0, "output": 0}}})
    assert free.cost(usage(input_tokens=5, output_tokens=5), judge) == 0
    assert free.cost(usage(input_tokens=million), "claude-sonnet-5-5") == pytest.approx(2.0)


def test_a_long_prompt_costs_more_from_the_first_token_on() -> None:
    short = usage(input_tokens=60_000, cache_read_tokens=40_000, output_tokens=1000)
    long = usage(input_tokens=60_001, cache_read_tokens=40_000, output_tokens=1000)
    # (60,000 x 0.10 + 40,000 x 0.01 + 1,000 x 0.50) millionths, and five times as much above 100,000
    assert cost(short, "claude-haiku-5-5") == pytest.approx(0.0069)
    assert cost(long, "claude-haiku-5-5") == pytest.approx(0.0345005)


@given(tokens, tokens, tokens, tokens, st.sampled_from(PACKAGED.names()))
def test_no_call_costs_more_than_its_worst_case(
    plain: int, written: int, read: int, out: int, judge: str
) -> None:
    counts = Usage(plain, out, cache_read_tokens=read, cache_write_tokens=written)
    for batch in (False, True):
        paid = PACKAGED.cost(counts, judge, batch=batch)
        most = PACKAGED.worst_case(plain + written + read, out, judge, batch=batch)
        assert paid is not None
        assert most is not None
        assert 0 <= paid <= most * (1 + 1e-9)


@given(rate, rate, rate, rate, tokens, tokens)
def test_the_worst_case_holds_for_any_prices(
    a: float, b: float, c: float, d: float, count: int, out: int
) -> None:
    price = Price(Rates(a, b, c, d))
    worst = price.worst_case(count, out)
    for one in (
        Usage(count, out),
        Usage(0, out, cache_read_tokens=count),
        Usage(0, out, cache_write_tokens=count),
    ):
        paid = price.cost(one)
        assert paid is not None
        assert worst is not None
        assert paid <= worst + 1e-9


def test_without_a_batch_price_the_cost_in_a_batch_is_unknown() -> None:
    own = Prices.load({"models": {"chat:mine": {"input": 1, "output": 2}}})
    assert own.cost(usage(input_tokens=million), "chat:mine@http://h") == pytest.approx(1.0)
    assert own.cost(usage(input_tokens=million), "chat:mine@http://h", batch=True) is None
    assert own.worst_case(1, 1, "chat:mine", batch=True) is None


def test_cached_tokens_without_a_price_cost_what_input_costs() -> None:
    own = Prices.load({"models": {"chat:mine": {"input": 3, "output": 2}}})
    assert own.cost(usage(cache_read_tokens=million), "chat:mine") == pytest.approx(3.0)
    assert own.cost(usage(cache_write_tokens=million), "chat:mine") == pytest.approx(3.0)


# ---------------------------------------------------------------- the packaged file


def test_the_file_names_its_date_and_source() -> None:
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", PACKAGED.checked)
    assert "https://platform.claude.com/docs/en/about-claude/pricing" in PACKAGED.source


@pytest.mark.parametrize("name", PACKAGED.names())
def test_packaged_prices_are_plausible(name: str) -> None:
    price = PACKAGED.find(name)
    assert price is not None
    assert price.batch == 0.5
    for rates in filter(None, (price.rates, price.long_prompt)):
        # As the vendor documents them: a cache write is 1.25 times the input, output five times.
        assert rates.cache_write == pytest.approx(1.25 * rates.input)
        assert rates.output == pytest.approx(5 * rates.input)
        assert 0 < rates.cache_read <= 0.1 * rates.input


# ---------------------------------------------------------------- overrides


def test_a_file_named_by_the_environment_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "mine.json"
    file.write_text('{"models": {"claude-sonnet-5-5": {"input": 1, "output": 4}}}')
    monkeypatch.setenv("XYREWARD_PRICES", str(file))
    assert cost(usage(input_tokens=million), "anthropic:claude-sonnet-5-5") == pytest.approx(1.0)
    assert cost(usage(input_tokens=million), "claude-opus-5-5") == pytest.approx(4.0)
    given_too = Prices.load({"models": {"claude-sonnet-5-5": {"input": 7, "output": 7}}})
    assert given_too.cost(usage(input_tokens=million), "claude-sonnet-5-5") == pytest.approx(7.0)


def test_the_address_is_more_special_than_the_model() -> None:
    own = Prices.load(
        {
            "models": {
                "chat:m": {"input": 1, "output": 1},
                "chat:m@https://a.example/v1": {"input": 2, "output": 2},
            }
        }
    )
    assert own.cost(usage(input_tokens=million), "chat:m@https://a.example/v1") == pytest.approx(
        2.0
    )
    assert own.cost(usage(input_tokens=million), "chat:m@https://b.example/v1") == pytest.approx(
        1.0
    )


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"input": 1}, "m: output is None, expected US dollars per million tokens, 0 to 1,000,000"),
        ({"input": -1, "output": 1}, "m: input is -1"),
        ({"input": "1", "output": 1}, "m: input is '1'"),
        ({"input": 1, "output": math.inf}, "m: output is inf"),
        ({"input": 1, "output": 1, "cache_read": "x"}, "m: cache_read is 'x'"),
        ({"input": 1, "output": 1, "ouput": 1}, "m: unknown field 'ouput'"),
        ({"input": 1, "output": 1, "batch": 2}, "m: batch is 2, expected a factor in [0, 1]"),
        ({"input": 1, "output": 1, "long_prompt": 3}, "m: long_prompt is 3, expected an object"),
        (
            {"input": 1, "output": 1, "long_prompt": {"input": 1}},
            "m: long_prompt.above_tokens is None, expected a whole number above 0; "
            "m: long_prompt.output is None",
        ),
        (5, "m: found 5, expected an object with input and output"),
        ({"input": 1e300, "output": 1}, "m: input is 1e+300"),
    ],
)
def test_a_malformed_price_is_named(entry: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        Prices.load({"models": {"m": entry}})


def test_a_missing_or_broken_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"none\.json: no such price file"):
        Prices.load(tmp_path / "none.json")
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(ConfigError, match=r"broken\.json: expected a JSON file with prices"):
        Prices.load(tmp_path / "broken.json")
    (tmp_path / "other.json").write_text("[]")
    monkeypatch.setenv("XYREWARD_PRICES", str(tmp_path / "other.json"))
    with pytest.raises(ConfigError, match=r'XYREWARD_PRICES=.*other\.json: expected {"models"'):
        Prices.load()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            '{"models": {"m": {"input": 3, "output": 1, "input": 0}}}',
            "models.m.input is there twice",
        ),
        ('{"models": {"m": {"input": 3, "output": 1}, "m": {"input": 0, "output": 0}}}', "twice"),
        ('{"models": {}, "modles": {"m": {"input": 3, "output": 1}}}', "unknown field 'modles'"),
        (
            '{"models": {"m": {"input": 3, "output": 1}, "anthropic:m": {"input": 0, "output": 0}}}',
            "is anthropic:m, which has a price already",
        ),
        ('{"models": {"m": {"input": NaN, "output": 1}}}', "NaN is not a number"),
        ("[" * 100_000, "nested more than"),
    ],
)
def test_what_a_price_file_says_twice_or_beside_is_refused(
    tmp_path: Path, text: str, message: str
) -> None:
    (tmp_path / "p.json").write_text(text, "utf-8")
    with pytest.raises(ConfigError, match=re.escape(message)):
        Prices.load(tmp_path / "p.json")


def test_a_price_file_may_have_the_mark_of_other_systems(tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text('{"models": {"m": {"input": 3, "output": 1}}}', "utf-8-sig")
    assert Prices.load(tmp_path / "p.json").find("anthropic:m") is not None


def test_a_models_own_at_sign_is_part_of_its_name() -> None:
    own = Prices.load(
        {"models": {"chat:m": {"input": 1, "output": 1}, "chat:a@b": {"input": 2, "output": 2}}}
    )
    assert own.find("chat:m@fp8@https://h/v1") is None
    found = own.find("chat:a@b@https://h/v1")
    assert found is not None
    assert found.rates.input == 2


# ---------------------------------------------------------------- the docs


def test_the_table_in_the_docs_is_what_the_prices_give() -> None:
    assert cost_table(PACKAGED) in DOCS.read_text("utf-8")


def test_a_row_of_the_table_by_hand() -> None:
    # Sonnet 5.5, 1,000 verdicts: 850,000 x 2 + 350,000 x 10 = 5.20 dollars without the prefix, which
    # is 7,400,000 x 2 = 14.80 uncached; cached, 7,400 x 2.5 + 999 x 7,400 x 0.1 = 0.76 dollars.
    row = "| `anthropic:claude-sonnet-5-5` | 20.00 | 5.96 | 10.00 | 2.98 |"
    assert row in cost_table(PACKAGED).splitlines()


def test_the_command_in_the_docs_prints_the_table() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "xyreward.prices"], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == cost_table(PACKAGED)


def test_the_tokens_that_the_docs_name_are_those_of_the_rubric() -> None:
    text = " ".join(DOCS.read_text("utf-8").split())
    usual = usual_tokens()
    control = round(estimate_tokens(prefix("control")), -2)
    assert f"- {usual['prefix_tokens']:,} tokens of instructions" in text
    assert f"{control:,} for controls" in text
    assert f"{usual['unique_tokens']} tokens of query" in text
    assert f"{usual['output_tokens']} tokens of reply" in text
    rubric = " ".join((DOCS.parent / "rubric.md").read_text("utf-8").split())
    assert (
        f"{usual['prefix_tokens']:,} tokens (items with a hidden goal), {control:,} (cont" in rubric
    )
    texts = []
    for item in load_items("mini", split="test"):
        grounding = Grounding.of(item)
        assert grounding is not None
        texts += [verdict_call(item, grounding, r.text) for r in item.references]
    unique = sum(estimate_tokens(call.text) for call in texts) / len(texts)
    assert unique == pytest.approx(usual["unique_tokens"], rel=0.1)
    size = sum(len((c.prefix + c.text + json.dumps(c.schema)).encode()) for c in texts) / len(texts)
    assert size + 500 == pytest.approx(25_000, rel=0.05)


def test_the_other_figures_in_the_docs() -> None:
    text = " ".join(DOCS.read_text("utf-8").split())
    assert PACKAGED.checked in text
    most = PACKAGED.worst_case(25_000, 4096, "claude-sonnet-5-5")
    assert f"with `claude-sonnet-5-5` and `max_tokens=4096` that is {most:.3f} dollars" in text
    thinking = PACKAGED.cost(usage(output_tokens=1000), "claude-sonnet-5-5")
    assert thinking is not None
    assert f"are {1000 * thinking:.0f} dollars per 1,000 verdicts of `claude-sonnet-5-5`" in text
    example = re.search(r"```json\n(.*?)```", DOCS.read_text("utf-8"), re.DOTALL)
    assert example is not None
    own = Prices.load(json.loads(example[1]))
    assert own.cost(usage(output_tokens=million), "anthropic:claude-sonnet-5-5") == pytest.approx(
        9.0
    )


@given(st.integers(0, 5000), st.integers(0, 50))
def test_many_calls_cost_what_single_ones_add_up_to(calls: int, writes: int) -> None:
    judge = "claude-opus-5-5"
    expected = PACKAGED.expected(
        judge,
        calls,
        prefix_tokens=4000,
        unique_tokens=100,
        output_tokens=10,
        cached=True,
        cache_writes=writes,
    )
    first = cost(Usage(100, 10, cache_write_tokens=4000), judge)
    later = cost(Usage(100, 10, cache_read_tokens=4000), judge)
    assert first is not None
    assert later is not None
    assert expected == pytest.approx(
        sum([first] * min(calls, writes) + [later] * (calls - min(calls, writes)))
    )


def test_an_unknown_model_has_an_unknown_estimate() -> None:
    unknown = PACKAGED.expected(
        "chat:x", 10, prefix_tokens=1, unique_tokens=1, output_tokens=1, cached=True
    )
    assert unknown is None
    own = Prices({"chat:x": Price(Rates(1, 1, 1, 1))})
    assert "| `chat:x` | 8.60 | 8.60 | unknown | unknown |" in cost_table(own)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("local", "local"),
        ("chat:m@http://127.0.0.1:8000", "chat:m"),
        ("chat:org/m@v2@https://host/v1", "chat:org/m@v2"),
        ("panel:chat:a@http://x:1,chat:b@http://y:2,local", "panel:chat:a,chat:b,local"),
    ],
)
def test_a_judges_name_is_told_without_any_address(name: str, told: str) -> None:
    assert without_url(name) == told
