import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from xyreward.errors import ConfigError, DataError, JudgeError, RunFolderError
from xyreward.judges import load_asker
from xyreward.judges.chat import read_completion
from xyreward.pairs.answers import read_answers
from xyreward.pairs.sampling import (
    Sampled,
    Sampling,
    answer_seed,
    estimate_samples,
    read_sample,
    sample,
)
from xyreward.policy import Policy, _Draws, load_policy
from xyreward.reading import ReadingProblem
from xyreward.testing import FakeAPI, Faults, make_item, tiny_policy

ITEMS = [make_item(id=f"i{n}", query=f"{'long ' * n}question {n}?") for n in range(5)]
FEW = Sampling(k=3, max_new_tokens=8)


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Policy:
    return load_policy(tiny_policy(tmp_path_factory.mktemp("tiny")), device="cpu")


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XYREWARD_STORE", str(tmp_path / "store.sqlite"))
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-test")
    monkeypatch.delenv("XYREWARD_RUN", raising=False)
    monkeypatch.delenv("XYREWARD_CHAT_KEY", raising=False)


# ---------------------------------------------------------------- what is drawn


@pytest.mark.parametrize(
    ("temperature", "top_p"), [(1.0, 1.0), (0.3, 1.0), (0.7, 0.6), (2.0, 0.01)]
)
def test_tokens_are_drawn_with_their_probability(temperature: float, top_p: float) -> None:
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0, 1.5])
    n = 40_000
    draws = _Draws(range(n), 1, temperature, top_p, width=4)
    out = draws(torch.zeros(n, 4), logits.expand(n, -1))
    assert torch.isfinite(out).sum(1).eq(1).all()
    found = torch.bincount(out.argmax(1), minlength=5) / n
    p = (logits / temperature).softmax(0)
    best_first = p.argsort(descending=True)
    # The likeliest tokens, until together they have top_p.
    kept, total = [], 0.0
    for token in best_first.tolist():
        kept.append(token)
        total += p[token].item()
        if total >= top_p:
            break
    expected = torch.zeros(5)
    expected[kept] = p[kept] / p[kept].sum()
    assert (found - expected).abs().max() < 0.012  # five standard errors of the largest
    assert found[expected == 0].sum() == 0


def test_an_answer_depends_on_its_seed_alone(policy: Policy) -> None:
    before = torch.get_rng_state()
    prompts = [item.messages for item in ITEMS]
    several = policy.sample(prompts, seeds=[[1, 2, 3]] * 5, max_new_tokens=16)
    assert torch.equal(before, torch.get_rng_state())
    (alone,) = policy.sample(prompts[4:], seeds=[[2]], max_new_tokens=16)
    assert alone == [several[4][1]]
    assert len({answer.text for answer in several[4]}) == 3
    assert policy.sample(prompts, seeds=[[]] * 5, max_new_tokens=4) == [[]] * 5


def test_the_models_own_generation_settings_change_nothing(policy: Policy) -> None:
    own = policy.model.generation_config
    kept = own.to_dict()
    expected = policy.sample([ITEMS[0].messages], seeds=[[1, 2]], max_new_tokens=12)
    try:
        own.do_sample, own.temperature, own.top_k, own.repetition_penalty = True, 0.01, 1, 9.0
        assert policy.sample([ITEMS[0].messages], seeds=[[1, 2]], max_new_tokens=12) == expected
    finally:
        own.update(**kept)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"temperature": 0.0}, "temperature is 0.0, expected above 0"),
        ({"top_p": 0.0}, r"top_p is 0.0, expected in \(0, 1\]"),
        ({"k": 0}, "k is 0, expected a whole number"),
        ({"max_new_tokens": True}, "max_new_tokens is True"),
        ({"seed": 0.5}, "seed is 0.5"),
    ],
)
def test_impossible_settings_are_refused(
    policy: Policy, settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        Sampling(**settings)
    if settings.keys() & {"temperature", "top_p"}:
        with pytest.raises(ConfigError, match=said):
            policy.sample([], seeds=[], max_new_tokens=2, **settings)


# ---------------------------------------------------------------- a policy in this process


def test_candidates_say_how_they_were_made(policy: Policy) -> None:
    found = sample(policy, ITEMS, FEW, keep_truncated=True)
    assert [c.item_id for c in found.candidates] == [i.id for i in ITEMS for _ in range(3)]
    assert found.wanted == 15
    one = found.candidates[0]
    cut = one.details["truncated"]
    assert cut == (one.details["tokens"] == 8)
    assert (one.source, one.origin, one.kind) == ("on_policy", policy.name, None)
    assert one.details == {
        "temperature": 1.0,
        "top_p": 1.0,
        "max_new_tokens": 8,
        "seed": 0,
        "sample": 0,
        "tokens": one.details["tokens"],
        "truncated": cut,
    }
    assert [c.details["sample"] for c in found.candidates] == [0, 1, 2] * 5


def test_cut_answers_are_counted_and_are_no_candidates_unless_wanted(policy: Policy) -> None:
    kept = sample(policy, ITEMS, FEW, keep_truncated=True)
    found = sample(policy, ITEMS, FEW)
    cut = sum(c.details["truncated"] for c in kept.candidates)
    assert found.truncated == kept.truncated == cut > 0
    assert len(found.candidates) + found.truncated == found.wanted
    assert found.candidates == tuple(c for c in kept.candidates if not c.details["truncated"])


def test_neither_other_items_nor_k_change_an_answer(policy: Policy) -> None:
    everything = sample(policy, ITEMS, FEW, keep_truncated=True)
    fewer = sample(policy, ITEMS[3:], replace(FEW, k=2), keep_truncated=True)
    by_name = {(c.item_id, c.details["sample"]): c.text for c in everything.candidates}
    assert all(by_name[c.item_id, c.details["sample"]] == c.text for c in fewer.candidates)
    other = sample(policy, ITEMS[3:], replace(FEW, seed=1), keep_truncated=True)
    assert {c.text for c in other.candidates}.isdisjoint(by_name.values())
    assert answer_seed(0, ITEMS[0], 1) != answer_seed(0, ITEMS[1], 1) != answer_seed(1, ITEMS[1], 1)


def test_a_file_has_all_answers_and_is_read_the_next_time(policy: Policy, tmp_path: Path) -> None:
    out = tmp_path / "deep/answers.jsonl"
    told: list[int] = []
    first = sample(policy, ITEMS, FEW, out=out, batch_size=6, on_answers=told.append)
    assert sum(told) == 15
    assert first == sample(policy, ITEMS, FEW, batch_size=6)
    assert len(out.read_text().splitlines()) == 15
    before = out.read_bytes(), out.stat().st_mtime_ns
    again = sample(policy.name, ITEMS, FEW, out=out, batch_size=6, device="cpu")
    assert (again.candidates, again.resumed) == (first.candidates, 15)
    assert before == (out.read_bytes(), out.stat().st_mtime_ns)
    assert read_answers(out, ITEMS).candidates == first.candidates
    assert sorted(f.name for f in out.parent.iterdir()) == ["answers.jsonl", "answers.jsonl.job"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"sampling": replace(FEW, seed=1)}, "seed was 0, is 1"),
        ({"sampling": replace(FEW, temperature=0.5)}, r"temperature was 1\.0, is 0\.5"),
        ({"items": ITEMS[:4]}, "items was"),
        ({"items": ITEMS[::-1]}, "order was"),
        ({"origin": "me"}, "origin was"),
        ({"batch_size": 3}, "items_per_batch was 5, is 1"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_file_of_other_settings_is_refused(
    policy: Policy, tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    out = tmp_path / "a.jsonl"
    sample(policy, ITEMS, FEW, out=out)
    items = change.pop("items", ITEMS)
    with pytest.raises(RunFolderError, match=said):
        sample(policy, items, change.pop("sampling", FEW), out=out, **change)


def test_other_weights_under_the_same_name_are_another_job(tmp_path: Path) -> None:
    folder = tiny_policy(tmp_path / "p")
    sample(folder, ITEMS, FEW, out=tmp_path / "a.jsonl", device="cpu")
    tiny_policy(tmp_path / "p", seed=1)
    with pytest.raises(RunFolderError, match="fingerprint was"):
        sample(folder, ITEMS, FEW, out=tmp_path / "a.jsonl", device="cpu")


SCRIPT = """
import sys, time
from xyreward.pairs.sampling import Sampling, sample
from xyreward.testing import make_item
items = [make_item(id=f"i{n}", query=f"question {n}?") for n in range(80)]
sample(sys.argv[1], items, Sampling(k=2, max_new_tokens=24), out=sys.argv[2], batch_size=4,
       device="cpu", on_answers=lambda n: time.sleep(0.05))
"""


def test_a_killed_process_is_gone_on_with_and_ends_in_the_same_bytes(
    policy: Policy, tmp_path: Path
) -> None:
    items = [make_item(id=f"i{n}", query=f"question {n}?") for n in range(80)]
    out, partial = tmp_path / "a.jsonl", tmp_path / "a.jsonl.partial"
    process = subprocess.Popen([sys.executable, "-c", SCRIPT, policy.name, str(out)])
    deadline = time.monotonic() + 240
    while not partial.exists() or partial.read_bytes().count(b"\n") < 8:
        assert process.poll() is None, "it ended before it was killed"
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    done = partial.read_bytes()
    assert not out.exists()
    partial.write_bytes(done[:-5])  # half a line, as a full disk leaves it
    settings = Sampling(k=2, max_new_tokens=24)
    found = sample(policy.name, items, settings, out=out, batch_size=4, device="cpu")
    assert 0 < found.resumed < 160
    assert out.read_bytes().startswith(done[: done.rindex(b"\n", 0, -5)])
    fresh = tmp_path / "fresh.jsonl"
    sample(policy.name, items, settings, out=fresh, batch_size=4, device="cpu")
    assert out.read_bytes() == fresh.read_bytes()


def test_wrong_uses_are_told(policy: Policy) -> None:
    with pytest.raises(DataError, match="item 'i0' is there twice"):
        sample(policy, [ITEMS[0], ITEMS[0]], FEW)
    with pytest.raises(ConfigError, match=r"device: policy .* is loaded already"):
        sample(policy, ITEMS, FEW, device="cpu")
    with pytest.raises(ConfigError, match="temperature and seed are None"):
        sample(policy, ITEMS, replace(FEW, temperature=None))
    assert estimate_samples(policy.name, ITEMS, FEW) is None


# ---------------------------------------------------------------- a policy behind an API


@pytest.fixture
def api() -> Iterator[FakeAPI]:
    with FakeAPI(reply=answered, log_bodies=True) as running:
        yield running


def answered(body: dict[str, Any]) -> str:
    return f"Answer {body.get('seed')} to {body['messages'][-1]['content']}"


def chat(api: FakeAPI) -> str:
    return f"chat:small@{api.base_url}"


def bodies(api: FakeAPI) -> list[dict[str, Any]]:
    return [e.body for e in api.log if e.endpoint in ("chat", "messages") and e.body]


def test_a_chat_api_is_asked_k_times_with_seeds_and_only_once(api: FakeAPI) -> None:
    settings = Sampling(k=3, temperature=0.7, top_p=0.9, max_new_tokens=50)
    found = sample(chat(api), ITEMS, settings)
    assert api.stats.calls == 15
    assert len(found.candidates) == 15
    assert {c.origin for c in found.candidates} == {"chat:small"}
    sent = bodies(api)
    assert {(b["temperature"], b["top_p"], b["max_tokens"]) for b in sent} == {(0.7, 0.9, 50)}
    assert len({b["seed"] for b in sent}) == 15
    assert all(0 <= b["seed"] < 2**31 for b in sent)
    assert not any("response_format" in b for b in sent)
    # Nothing is paid for again, not even where the server has moved.
    with FakeAPI(reply=lambda _: "another") as moved:
        again = sample(chat(moved), ITEMS, settings)
        more = sample(chat(moved), ITEMS[:1], replace(settings, k=4))
        assert moved.stats.calls == 1
    assert again.candidates == found.candidates
    assert again.resumed == 15
    assert again.cost_usd == 0.0
    assert [c.text for c in more.candidates[:3]] == [c.text for c in found.candidates[:3]]
    assert more.candidates[3].text == "another"


def test_anthropic_is_asked_without_a_temperature(api: FakeAPI) -> None:
    name = "anthropic:claude-haiku-5-5"
    settings = Sampling(k=2, max_new_tokens=50)
    found = sample(name, ITEMS[:2], settings, base_url=api.base_url)
    assert len(found.candidates) == 4
    assert found.cost_usd is not None
    assert found.cost_usd > 0
    for body in bodies(api):
        assert body.keys() == {"model", "max_tokens", "messages"}
    assert api.stats.calls == 4  # equal calls are different samples
    with pytest.raises(ConfigError, match=r"temperature is 0\.5.*samples at 1 and takes neither"):
        sample(name, ITEMS, replace(settings, temperature=0.5), base_url=api.base_url)


def test_a_conversation_arrives_as_it_is(api: FakeAPI) -> None:
    turns = [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": "Hi."},
        {"role": "assistant", "content": "Hello."},
        {"role": "user", "content": "How do I fold a map?"},
    ]
    sample(chat(api), [make_item(query=turns)], Sampling(k=1))
    assert bodies(api)[-1]["messages"] == turns
    name = "anthropic:claude-haiku-5-5"
    sample(name, [make_item(query=turns)], Sampling(k=1), base_url=api.base_url)
    body = bodies(api)[-1]
    assert body["messages"] == turns[1:]
    assert [block["text"] for block in body["system"]] == ["Be short."]
    with pytest.raises(DataError, match="a system turn between others"):
        sample(chat(api), [make_item(query=[turns[1], *turns])], Sampling(k=1))


FAILURES = {
    "500": "transport",
    "429": "rate_limited",
    "refusal": "refused",
    "reset_after": "transport",
}


@pytest.mark.parametrize(("fault", "kind"), FAILURES.items(), ids=str)
def test_what_fails_is_counted_and_never_an_answer(tmp_path: Path, fault: str, kind: str) -> None:
    out = tmp_path / "a.jsonl"
    with FakeAPI(reply=answered, faults=Faults({fault: 0.4}), seed=1) as api:
        found = sample(chat(api), ITEMS, FEW, out=out, max_attempts=1)
    failed = found.failed[kind]
    assert found.failed == {kind: failed}
    assert 0 < failed < 15
    assert len(found.candidates) + found.truncated + failed == found.wanted == 15
    assert len(out.read_text().splitlines()) == 15 - failed
    # The next run asks for those alone, and the file is complete.
    with FakeAPI(reply=answered) as healthy:
        whole = sample(chat(healthy), ITEMS, FEW, out=out)
        assert healthy.stats.calls == failed
        assert sample(chat(healthy), ITEMS, FEW, out=out).candidates == whole.candidates
        assert healthy.stats.calls == failed
    assert whole.failed == {}
    assert len(out.read_text().splitlines()) == 15
    with FakeAPI() as healthy, pytest.raises(RunFolderError, match="seed was 0, is 5"):
        sample(chat(healthy), ITEMS, replace(FEW, seed=5), out=out)


def test_cut_and_empty_answers_are_the_policys_own(api: FakeAPI) -> None:
    with FakeAPI(reply=answered, faults=Faults({"max_tokens": 1.0})) as cutting:
        found = sample(chat(cutting), ITEMS[:1], FEW)
        assert (found.truncated, found.candidates, found.failed) == (3, (), {})
    with FakeAPI(faults=Faults({"empty": 1.0})) as silent:
        found = sample(chat(silent), ITEMS[1:2], FEW)
        assert (found.empty, found.failed) == (3, {})
    with FakeAPI(reply=lambda _: "<think>hm") as thinking:
        found = sample(chat(thinking), ITEMS[2:3], FEW)
        assert [c.text for c in found.candidates] == ["", "", ""]


def test_the_budget_holds_and_a_higher_one_goes_on(api: FakeAPI, tmp_path: Path) -> None:
    name = "anthropic:claude-haiku-5-5"
    settings = Sampling(k=2, max_new_tokens=100)
    options: dict[str, Any] = {"base_url": api.base_url, "run": "r", "max_concurrency": 1}
    estimate = estimate_samples(name, ITEMS, settings, base_url=api.base_url)
    assert estimate is not None
    assert (estimate.calls, estimate.in_store) == (10, 0)
    assert estimate.worst_usd is not None
    assert estimate.cost_usd is not None
    assert 0 < estimate.cost_usd < estimate.worst_usd
    assert api.stats.calls == 0
    found = sample(name, ITEMS, settings, budget_usd=estimate.worst_usd / 8, **options)
    assert 0 < found.failed["over_budget"] < 10
    assert found.cost_usd is not None
    assert found.cost_usd <= estimate.worst_usd / 8
    whole = sample(name, ITEMS, settings, budget_usd=1.0, **options)
    assert len(whole.candidates) == 10
    assert whole.resumed == 10 - found.failed["over_budget"]
    again = estimate_samples(name, ITEMS, settings, base_url=api.base_url)
    assert again is not None
    assert (again.calls, again.in_store) == (0, 10)


def test_a_loaded_policy_must_be_loaded_as_it_is_sampled(api: FakeAPI) -> None:
    judge_like = load_asker(chat(api), schema="json_schema")
    with pytest.raises(ConfigError, match="was loaded with schema 'json_schema', expected 'plain'"):
        sample(judge_like, ITEMS, FEW)
    fitting = load_asker(chat(api), schema="plain", temperature=1.0)
    found: Sampled = sample(fitting, ITEMS, FEW)
    assert len(found.candidates) + found.truncated == 15
    with pytest.raises(ConfigError, match="temperature: set by Sampling"):
        sample(chat(api), ITEMS, FEW, temperature=0.2)
    with pytest.raises(JudgeError, match="has no option votes"):
        sample(chat(api), ITEMS, FEW, votes=3)


def test_a_wrong_key_stops_at_once_and_keeps_the_file_for_later(tmp_path: Path) -> None:
    out = tmp_path / "a.jsonl"
    with FakeAPI(api_key="right") as api, pytest.raises(JudgeError, match="401"):
        sample(chat(api), ITEMS, FEW, out=out, api_key="wrong")
    assert not out.exists()
    told = json.loads((tmp_path / "a.jsonl.job").read_text())
    assert told["missing"] == 15


@pytest.mark.parametrize(
    ("message", "reason", "outcome"),
    [
        ({"content": 5}, "stop", "unparseable"),
        ({"content": {"text": "a"}}, "length", "unparseable"),
        # The policy says nothing, which is an answer: the worst one.
        ({"content": ""}, "stop", ""),
        ({"content": None}, "stop", ""),
        ({}, "stop", ""),
    ],
)
def test_a_reply_that_is_no_text_is_a_failure_and_no_empty_answer(
    message: dict[str, Any], reason: str, outcome: str
) -> None:
    reply = read_completion({"choices": [{"message": message, "finish_reason": reason}]})
    assert reply is not None
    found = read_sample(reply)
    assert (found.kind if isinstance(found, ReadingProblem) else found["text"]) == outcome
