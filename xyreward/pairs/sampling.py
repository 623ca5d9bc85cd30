"""On-policy answers: sampled from the model that is to be trained, k for each item.

    sample("runs/sft/policy", items, Sampling(k=8), out="answers.jsonl")       transformers
    sample("chat:qwen3.5-9b@http://127.0.0.1:8000", items, Sampling(k=8))      vLLM, any chat API
    sample("anthropic:claude-haiku-5-5", items, Sampling(k=4))                 temperature 1, no choice

A policy in this process writes its file as it goes and goes on after whatever stopped it, with the
same bytes in the end. A policy behind an API has its answers in the store, like verdicts: what was
paid for is not paid for again, within a budget, and an answer that did not come is counted, never
made up.

Not here: files of answers (`answers.py`), judging (`build.py`).
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from xyreward import locate
from xyreward.errors import ConfigError, DataError
from xyreward.items import Item, folded, items_hash
from xyreward.judges import load_asker
from xyreward.judges.asking import Estimate, ModelAsker, Question
from xyreward.judges.calls import Call, Reply
from xyreward.pairs.answers import (
    Growing,
    check_job,
    locked,
    read_answers,
    write_answers,
    write_job,
)
from xyreward.pairs.candidates import Candidate
from xyreward.policy import Policy, default_device, dtype_on, load_policy, visible
from xyreward.reading import ReadingProblem
from xyreward.rubric import TYPICAL_OUTPUT_TOKENS
from xyreward.scoring import run_sync
from xyreward.verdict import JudgeFailure
from xyreward.words import is_empty, whole

REMOTE = ("chat:", "anthropic:")


@dataclass(frozen=True, slots=True)
class Sampling:
    """How answers are drawn.

    Raises:
        ConfigError: a field outside its range.
    """

    k: int = 8
    """Answers to each item, > 0."""
    temperature: float | None = 1.0
    """> 0; below 1 likely tokens become likelier. None: the server's default, for a chat API only."""
    top_p: float = 1.0
    """In (0, 1]: only the likeliest tokens with together this probability."""
    max_new_tokens: int = 512
    """An answer is cut there, and marked `truncated`."""
    seed: int | None = 0
    """Of all random numbers. None: none is sent, for an API that takes none."""

    def __post_init__(self) -> None:
        problems = [
            f"{name} is {value!r}, expected a whole number above 0"
            for name, value in (("k", self.k), ("max_new_tokens", self.max_new_tokens))
            if type(value) is not int or value < 1
        ]
        if self.temperature is not None and not 0 < self.temperature < math.inf:
            problems.append(f"temperature is {self.temperature!r}, expected above 0")
        if not 0 < self.top_p <= 1:
            problems.append(f"top_p is {self.top_p!r}, expected in (0, 1]")
        if self.seed is not None and type(self.seed) is not int:
            problems.append(f"seed is {self.seed!r}, expected a whole number, or None for none")
        if problems:
            raise ConfigError(f"sampling: {'; '.join(problems)}")


@dataclass(frozen=True, slots=True)
class Sampled:
    """What came of sampling."""

    candidates: tuple[Candidate, ...]
    """Item by item, in order of sample; without those that were cut, unless they were to be kept."""
    wanted: int
    """candidates + truncated (where left out) + failed."""
    truncated: int = 0
    """Answers that reached max_new_tokens, left out or not. Of many, raise it."""
    empty: int = 0
    """Answers without a text. They are candidates; no pair is made of them."""
    repeated: int = 0
    """Answers that say what an earlier one to their item says. They are candidates; see `Answers`."""
    failed: Mapping[str, int] = field(default_factory=dict)
    """By kind of failure (`verdict.FailureKind`): answers that an API did not give."""
    resumed: int = 0
    """Answers that were there before: in the file, or in the store."""
    cost_usd: float | None = 0.0
    """What was paid for now; None where the price is unknown."""


def sample(
    policy: str | Policy | ModelAsker,
    items: Sequence[Item],
    sampling: Sampling | None = None,
    *,
    out: str | os.PathLike[str] | None = None,
    keep_truncated: bool = False,
    batch_size: int = 16,
    origin: str | None = None,
    on_answers: Callable[[int], object] | None = None,
    **options: Any,
) -> Sampled:
    """Let a policy answer each item `sampling.k` times.

    Args:
        policy: a name as in `locate.py`, `chat:<model>@<base_url>` or `anthropic:<model>`; or what was
            loaded with `load_policy` or `load_asker(..., schema="plain")`.
        items: N, each id once.
        sampling: how.
        out: a file of answers, all of them. Where it is there already, made by the same job, it is
            read; where it is half made, it is gone on with.
        keep_truncated: an answer that was cut at its limit would teach to stop anywhere, so it is no
            candidate. True: it is one.
        batch_size: answers that a policy in this process writes at a time; rounded down to whole items,
            at least one. Part of the job: it can change an answer's last digits (`Policy.sample`).
        origin: who is said to have written the answers. None: the policy's name, without an address.
        on_answers: told how many more answers are there.
        options: of `load_policy` (`revision`, `dtype`, `device`, `chat_template_kwargs`) or of
            `load_asker` (`store`, `budget_usd`, `run`, `max_concurrency`, ...), where a name was given.

    Raises:
        ConfigError: a setting that the policy does not have, or whatever `load_policy` raises.
        DataError: an id occurs twice.
        RunFolderError: `out` is of another job, is damaged, or cannot be written.
        JudgeError, StoreError: no call can succeed, or the store cannot be used.
    """
    sampling = sampling or Sampling()
    twice = [name for name, n in Counter(item.id for item in items).items() if n > 1]
    if twice:
        raise DataError([f"item {name!r} is there twice, expected once" for name in twice])
    path = None if out is None else Path(out)
    if isinstance(policy, ModelAsker) or (isinstance(policy, str) and policy.startswith(REMOTE)):
        asker = load_sampler(policy, sampling, **options)
        return run_sync(
            _of_api(asker, items, sampling, path, origin, on_answers, keep=keep_truncated)
        )
    if isinstance(policy, Policy) and options:
        raise ConfigError(
            f"{', '.join(options)}: policy {policy.name!r} is loaded already; give its name"
        )
    return _here(
        policy, items, sampling, path, batch_size, origin, on_answers, options, keep=keep_truncated
    )


def estimate_samples(
    policy: str | ModelAsker, items: Sequence[Item], sampling: Sampling, **options: Any
) -> Estimate | None:
    """What sampling would take now, with what the store has. None for a policy in this process.

    Sends nothing. Answers are assumed to have 350 tokens, or `max_new_tokens` where that is less.

    Raises:
        ConfigError, JudgeError, StoreError: see `sample`.
    """
    if isinstance(policy, str) and not policy.startswith(REMOTE):
        return None
    return estimate_completions(load_sampler(policy, sampling, **options), items, sampling)


@dataclass(frozen=True, slots=True)
class Completion:
    """An answer that an API gave."""

    text: str
    tokens: int
    """Of the reply, thinking included, as the server counts."""
    truncated: bool
    """It reached `max_new_tokens`."""
    paid: bool
    """It was asked for now and here, and is not from the store."""


async def complete(
    asker: ModelAsker, items: Sequence[Item], sampling: Sampling, typical: int | None = None
) -> list[Completion | JudgeFailure]:
    """Answers of a model behind an API, from the store where it has them.

    The asker decides the temperature: `sampling` says how many answers, how long, and with which seeds.

    Args:
        asker: loaded with `schema="plain"`.
        items: N; only their messages count.
        typical: tokens of a usual reply, for rates. None: see `estimate_samples`.

    Returns:
        N * k, item by item, in order of sample.

    Raises:
        DataError: an item that an API cannot be asked.
        JudgeError, StoreError: no call can succeed, or the store cannot be used.
    """
    decided = await asker.decide(
        lambda parameters: _questions(asker, parameters, items, sampling, typical)
    )
    found: list[Completion | JudgeFailure] = []
    for _, outcome, paid in decided:
        if isinstance(outcome, JudgeFailure):
            found.append(outcome)
            continue
        with asker.reading(outcome):
            said = json.loads(outcome.payload)
            found.append(
                Completion(said["text"], int(said["tokens"]), bool(said["truncated"]), paid)
            )
    return found


def estimate_completions(
    asker: ModelAsker, items: Sequence[Item], sampling: Sampling, typical: int | None = None
) -> Estimate:
    """What `complete` would take now, with what the store has. Sends nothing.

    Raises:
        DataError: an item that an API cannot be asked.
        StoreError: the store cannot be used.
    """
    return asker.estimate_of(
        lambda parameters: _questions(asker, parameters, items, sampling, typical)
    )


def answer_seed(seed: int, item: Item, number: int, bits: int = 63) -> int:
    """The seed of one answer: of the job's seed, the query's hash and the sample's number alone.

    So neither the other items of a job nor k change an answer.
    """
    text = f"{seed} {item.content_hash} {number}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> (64 - bits)


# ---------------------------------------------------------------- in this process


def _here(
    policy: str | Policy,
    items: Sequence[Item],
    sampling: Sampling,
    out: Path | None,
    batch_size: int,
    origin: str | None,
    on_answers: Callable[[int], object] | None,
    options: Mapping[str, Any],
    *,
    keep: bool,
) -> Sampled:
    if sampling.temperature is None or sampling.seed is None:
        raise ConfigError(
            "sampling: temperature and seed are None, which is for APIs; a policy in this process "
            "needs both"
        )
    name = policy if isinstance(policy, str) else policy.name
    loaded = None if isinstance(policy, str) else policy
    revision = options.get("revision")
    made_by = origin or name
    # k first: whole items only, so that a file is cut between two items.
    group = max(1, batch_size // sampling.k)

    def answered(of: Sequence[Item]) -> list[Candidate]:
        nonlocal loaded
        if loaded is None:
            loaded = load_policy(name, **options)
        return _answered(loaded, of, sampling, made_by)

    batches = [items[start : start + group] for start in range(0, len(items), group)]
    if out is None:
        candidates: list[Candidate] = []
        for batch in batches:
            candidates += answered(batch)
            if on_answers:
                on_answers(len(batch) * sampling.k)
        return _sampled(candidates, len(items) * sampling.k, keep=keep)

    job = {
        "items": items_hash(items),
        "order": hashlib.sha256("\n".join(item.id for item in items).encode()).hexdigest()[:12],
        "policy": made_by,  # not its path where it has a name: the fingerprint decides
        "origin": made_by,
        "fingerprint": locate.fingerprint(name, revision),
        **_loaded_as(loaded, name, options),
        "items_per_batch": group,
        **asdict(sampling),
    }
    with locked(out):
        expected = [item.id for item in items for _ in range(sampling.k)]
        growing = Growing(out, job, expected)
        resumed = growing.rows
        if not growing.complete:
            done = growing.rows // (group * sampling.k)
            growing.keep(done * group * sampling.k)
            resumed = growing.rows
            if on_answers:
                on_answers(resumed)
            for batch in batches[done:]:
                growing.append(answered(batch))
                if on_answers:
                    on_answers(len(batch) * sampling.k)
            growing.finish()
    read = read_answers(out, items, keep_truncated=True)
    return _sampled(read.candidates, len(expected), keep=keep, resumed=resumed)


def _loaded_as(loaded: Policy | None, name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """How a policy is loaded, where that changes its answers; the same for a name and what it names."""
    if loaded is not None:
        return {
            "chat_template_kwargs": dict(loaded.chat_template_kwargs),
            "dtype": str(loaded.model.dtype).removeprefix("torch."),
        }
    kwargs = options.get("chat_template_kwargs")
    if kwargs is None:
        revision = options.get("revision")
        folder = locate.folder_of(name, revision)
        adapter = locate.is_adapter(name, revision)
        mark = locate.base_of_adapter(folder) if adapter else locate.mark_in(folder)
        kwargs = mark.chat_template_kwargs if mark else {}
    device = options.get("device") or default_device()
    return {
        "chat_template_kwargs": dict(kwargs),
        "dtype": dtype_on(device, options.get("dtype", "auto")),
    }


def _answered(
    policy: Policy, items: Sequence[Item], sampling: Sampling, origin: str
) -> list[Candidate]:
    assert sampling.temperature is not None
    assert sampling.seed is not None
    answers = policy.sample(
        [item.messages for item in items],
        seeds=[[answer_seed(sampling.seed, item, n) for n in range(sampling.k)] for item in items],
        max_new_tokens=sampling.max_new_tokens,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
    )
    return [
        _candidate(item, answer.text, origin, sampling, n, answer.tokens, cut=answer.truncated)
        for item, several in zip(items, answers, strict=True)
        for n, answer in enumerate(several)
    ]


def _candidate(
    item: Item, text: str, origin: str, sampling: Sampling, number: int, tokens: int, *, cut: bool
) -> Candidate:
    return Candidate(
        item_id=item.id,
        # As a file of UTF-8 has it: the same candidate, whether it was read from one or not.
        text=whole(text),
        source="on_policy",
        origin=origin,
        details={
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "max_new_tokens": sampling.max_new_tokens,
            "seed": sampling.seed,
            "sample": number,
            "tokens": tokens,
            "truncated": cut,
        },
    )


def _sampled(
    candidates: Sequence[Candidate],
    wanted: int,
    *,
    keep: bool,
    resumed: int = 0,
    failed: Mapping[str, int] | None = None,
    cost_usd: float | None = 0.0,
) -> Sampled:
    kept = [c for c in candidates if keep or not c.details["truncated"]]
    distinct = {(c.item_id, folded(c.text)) for c in kept}
    return Sampled(
        candidates=tuple(kept),
        wanted=wanted,
        truncated=sum(bool(c.details["truncated"]) for c in candidates),
        empty=sum(is_empty(c.text) for c in kept),
        repeated=len(kept) - len(distinct),
        failed=dict(sorted((failed or {}).items())),
        resumed=resumed,
        cost_usd=cost_usd,
    )


# ---------------------------------------------------------------- behind an API


def load_sampler(policy: str | ModelAsker, sampling: Sampling, **options: Any) -> ModelAsker:
    """A policy behind an API, ready to answer as `sampling` says; `sample` takes it.

    Raises:
        ConfigError: a setting that the policy does not have, or an option that `sampling` sets.
        JudgeError: an unknown or impossible option.
    """
    name = policy if isinstance(policy, str) else policy.name
    if name.startswith("anthropic:") and (
        sampling.temperature not in (None, 1.0) or sampling.top_p != 1
    ):
        raise ConfigError(
            f"sampling: temperature is {sampling.temperature}, top_p is {sampling.top_p}, but "
            f"{name} samples at 1 and takes neither; expected 1 and 1"
        )
    if isinstance(policy, ModelAsker):
        if options:
            raise ConfigError(f"{', '.join(options)}: {name} is loaded already; give its name")
        told = policy.endpoint.possible_parameters
        wanted: dict[str, Any] = {"schema": "plain"}
        if name.startswith("chat:"):
            wanted["temperature"] = sampling.temperature
            wanted["top_p"] = None if sampling.top_p == 1 else sampling.top_p
        for key, value in wanted.items():
            if len(told) > 1 or told[0].get(key) != value:
                raise ConfigError(
                    f"{name} was loaded with {key} {told[0].get(key)!r}, expected {value!r}; load it so, "
                    "or give its name"
                )
        return policy
    if clashing := sorted({"schema", "temperature", "top_p", "max_tokens"} & set(options)):
        raise ConfigError(f"{', '.join(clashing)}: set by Sampling; take it out of the options")
    options = {**options, "schema": "plain"}
    if name.startswith("chat:"):
        options["temperature"] = sampling.temperature
        options["top_p"] = None if sampling.top_p == 1 else sampling.top_p
    return load_asker(name, **options)


async def _of_api(
    asker: ModelAsker,
    items: Sequence[Item],
    sampling: Sampling,
    out: Path | None,
    origin: str | None,
    on_answers: Callable[[int], object] | None,
    *,
    keep: bool,
) -> Sampled:
    made_by = origin or asker.name_without_url
    wanted = len(items) * sampling.k
    if out is None:
        return await _asked(asker, items, sampling, None, made_by, on_answers, keep=keep)
    job = {
        "items": items_hash(items),
        "order": hashlib.sha256("\n".join(item.id for item in items).encode()).hexdigest()[:12],
        "policy": asker.name_without_url,
        "origin": made_by,
        "parameters": dict(asker.endpoint.possible_parameters[0]),
        **asdict(sampling),
    }
    job = json.loads(json.dumps(job))
    with locked(out):
        if out.exists() and check_job(out, job) == 0:
            read = read_answers(out, items, keep_truncated=True)
            if on_answers:
                on_answers(wanted)
            return _sampled(read.candidates, wanted, keep=keep, resumed=wanted)
        # First, so that whatever stops this leaves a file that says of what it is a part.
        write_job(out, job, wanted)
        found = await _asked(asker, items, sampling, out, made_by, on_answers, keep=keep)
        write_job(out, job, sum(found.failed.values()))
        return found


async def _asked(
    asker: ModelAsker,
    items: Sequence[Item],
    sampling: Sampling,
    out: Path | None,
    origin: str,
    on_answers: Callable[[int], object] | None,
    *,
    keep: bool,
) -> Sampled:
    cost_before, unpriced_before = asker.stats.cost_usd, asker.stats.unpriced_calls
    before = asker.on_outcome
    if on_answers:
        told = on_answers
        asker.on_outcome = lambda: told(1)
    try:
        replies = await complete(asker, items, sampling)
    finally:
        asker.on_outcome = before
    candidates: list[Candidate] = []
    failed: Counter[str] = Counter()
    resumed = 0
    samples = ((item, number) for item in items for number in range(sampling.k))
    for (item, number), reply in zip(samples, replies, strict=True):
        if isinstance(reply, JudgeFailure):
            failed[reply.kind] += 1
            continue
        resumed += not reply.paid
        candidates.append(
            _candidate(
                item, reply.text, origin, sampling, number, reply.tokens, cut=reply.truncated
            )
        )
    if out is not None:
        write_answers(out, candidates)
    unpriced = asker.stats.unpriced_calls > unpriced_before
    return _sampled(
        candidates,
        len(items) * sampling.k,
        keep=keep,
        resumed=resumed,
        failed=failed,
        cost_usd=None if unpriced else asker.stats.cost_usd - cost_before,
    )


def _questions(
    asker: ModelAsker,
    parameters: Mapping[str, Any],
    items: Sequence[Item],
    sampling: Sampling,
    typical: int | None = None,
) -> list[Question]:
    told = asker.asked_of(parameters)
    usual = min(sampling.max_new_tokens, typical or TYPICAL_OUTPUT_TOKENS)
    questions = []
    for item in items:
        for number in range(sampling.k):
            call = _call(item, sampling, number, seeded=parameters.get("api") == "chat")
            questions.append(
                Question(
                    key=asker.key(call, number, told),
                    call=call,
                    identity={
                        "judge": asker.name_without_url,
                        "rubric_version": "sample",
                        "query": item.content_hash[:16],
                        "answer": "",
                        "vote": str(number),
                    },
                    record="completion",
                    read=read_sample,
                    again=lambda call, _: call,
                    output_tokens=usual,
                )
            )
    return questions


_NO_SCHEMA: Mapping[str, Any] = {}


def _call(item: Item, sampling: Sampling, number: int, *, seeded: bool) -> Call:
    messages = item.messages
    system = []
    while messages and messages[0]["role"] == "system":
        system.append(messages.pop(0)["content"])
    turns: list[Any] = [(m["role"], m["content"]) for m in messages[:-1]]
    if any(role == "system" for role, _ in turns):
        raise DataError(
            [f"item {item.id!r}: a system turn between others, which an API does not take"]
        )
    seed = None
    if seeded and sampling.seed is not None:
        seed = answer_seed(sampling.seed, item, number, bits=31)  # some servers have 32-bit seeds
    return Call(
        prefix="\n\n".join(system),
        text=messages[-1]["content"],
        schema=_NO_SCHEMA,
        max_tokens=sampling.max_new_tokens,
        turns=tuple(turns),
        seed=seed,
    )


def read_sample(reply: Reply) -> Mapping[str, Any] | ReadingProblem:
    """The answer; a refusal of the API itself (a filter) is none of the policy's words."""
    if reply.stop == "refused":
        return ReadingProblem("refused", reply.detail or "the API refused and gave no reason")
    if not reply.has_text:  # taken for an empty answer it would be the worst one
        return ReadingProblem("unparseable", "`content` of the reply is no text, expected one")
    return {
        "text": visible(reply.text),
        "truncated": reply.stop == "truncated",
        "tokens": reply.usage.output_tokens,
    }
