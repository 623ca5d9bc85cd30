"""The model under training or evaluation: load it, let it answer, ask it how likely answers are.

Not here: what a policy's name may be and where it lies (`locate.py`); its tokens (`chat_tokenizer.py`);
training (TRL's trainers, see `recipes/`); judging (`judges/`).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from xyreward.chat_tokenizer import ChatTokenizer, Messages, load_chat_tokenizer, loading
from xyreward.embedded import POLICY_NAME
from xyreward.errors import ConfigError, MissingDependency
from xyreward.locate import base_of_adapter, check_writes, folder_of, is_adapter
from xyreward.partial import Through, directly

Progress = Callable[[int], object]
"""Called with the number of pieces of work just done."""

THINK = "<think>"
"""How the models that think aloud open it."""

TOKENS_PER_BATCH = 4096
"""Bound on padded tokens in one scoring batch: float32 logits of a 50k vocabulary stay below 0.8 GB."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What the policy wrote."""

    text: str
    tokens: int
    truncated: bool
    """It reached max_new_tokens before it ended."""


@dataclass(frozen=True, slots=True)
class LogProb:
    """How likely the policy finds a given answer."""

    total: float
    """Sum over the answer's tokens, end of turn included, in nats; <= 0, higher is likelier."""
    tokens: int

    @property
    def per_token(self) -> float:
        """Length-normalised, in nats per token; <= 0, higher is likelier."""
        return self.total / self.tokens


def default_device() -> str:
    """`cuda`, `mps` or `cpu`: the first that is there."""
    import torch

    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def bf16_is_fast(device: str) -> bool:
    """Whether bfloat16 arithmetic is worth it: on a CPU only with AMX or AVX512-BF16."""
    import torch

    if device == "cuda":
        return bool(torch.cuda.is_bf16_supported())
    if device == "cpu":
        flags = ("avx512_bf16", "amx_bf16")
        try:
            return any(flag in Path("/proc/cpuinfo").read_text() for flag in flags)
        except OSError:
            return False
    return False


def dtype_on(device: str, dtype: str = "auto") -> str:
    """The type of weights that `load_policy` takes there: `auto` is bfloat16 on a CUDA device that has it."""
    if dtype != "auto":
        return dtype
    return "bfloat16" if device.startswith("cuda") and bf16_is_fast("cuda") else "float32"


@dataclass
class Policy(ChatTokenizer):
    """A causal language model with its tokenizer. Methods put it in evaluation mode and keep no state."""

    model: Any
    adapter: bool = False
    """The model is a peft model whose adapter came with the name."""

    def answer(
        self,
        prompts: Sequence[Messages],
        *,
        max_new_tokens: int,
        batch_size: int = 16,
        progress: Progress | None = None,
        through: Through[Answer] = directly,
    ) -> list[Answer]:
        """Answer each prompt, greedily, so that the same model gives the same answers.

        Args:
            prompts: N conversations that end with the user's turn.
            max_new_tokens: an answer is cut there and marked `truncated`.
            through: every batch goes through it, and may come from where it is kept; see `partial.py`.

        Returns:
            N answers, in order.
        """
        ids = [self.prompt_ids(messages) for messages in prompts]
        order = sorted(range(len(ids)), key=lambda i: len(ids[i]))
        answers: list[Answer | None] = [None] * len(ids)
        self.model.eval()
        if progress:
            progress(0)
        for start in range(0, len(order), batch_size):
            rows = order[start : start + batch_size]
            batch = partial(self._generate, [ids[i] for i in rows], max_new_tokens)
            for i, answer in zip(rows, through(rows, batch), strict=True):
                answers[i] = answer
            if progress:
                progress(len(rows))
        return [answer for answer in answers if answer is not None]

    def sample(
        self,
        prompts: Sequence[Messages],
        *,
        seeds: Sequence[Sequence[int]],
        max_new_tokens: int,
        temperature: float = 1.0,
        top_p: float = 1.0,
    ) -> list[list[Answer]]:
        """Answer each prompt several times, at random, all in one batch.

        Every answer has a seed and random numbers of its own, so it depends neither on the other rows
        of the batch nor on torch's generators, which are left as they are. What is not covered is
        rounding: with other rows beside it a prompt may be padded to another length, whereby logits
        change in their last digits, and then a token that was drawn at the very border of two may
        be the other. The same prompts and seeds on the same machine give the same answers.

        Args:
            prompts: N conversations that end with the user's turn.
            seeds: N lists, one seed in [0, 2**63) for each answer wanted to that prompt.
            max_new_tokens: an answer is cut there and marked `truncated`.
            temperature: > 0. Logits are divided by it; below 1 likely tokens become likelier.
            top_p: in (0, 1]. Only the likeliest tokens that together have this probability are drawn.

        Returns:
            N lists of answers, as many as there are seeds.

        Raises:
            ConfigError: a temperature or top_p outside its range.
        """
        if not 0 < temperature < math.inf:
            raise ConfigError(f"temperature is {temperature}, expected above 0; answer() is greedy")
        if not 0 < top_p <= 1:
            raise ConfigError(f"top_p is {top_p}, expected in (0, 1]")
        rows = [
            ids
            for messages, several in zip(prompts, seeds, strict=True)
            for ids in [self.prompt_ids(messages)] * len(several)
        ]
        if not rows:
            return [[] for _ in prompts]
        self.model.eval()
        draws = _Draws(
            [seed for several in seeds for seed in several],
            max_new_tokens,
            temperature,
            top_p,
            width=max(map(len, rows)),
        )
        answers = iter(self._generate(rows, max_new_tokens, draws))
        return [[next(answers) for _ in several] for several in seeds]

    def _generate(
        self, ids: Sequence[list[int]], max_new_tokens: int, draws: _Draws | None = None
    ) -> list[Answer]:
        """Answers to a batch of prompts: the likeliest tokens, or those that are drawn."""
        import torch

        end = _end_tokens(self.model, self.tokenizer)
        width, pad = max(map(len, ids)), self._pad_id()
        batch = torch.tensor([[pad] * (width - len(row)) + row for row in ids])
        mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in ids])
        with torch.inference_mode():
            out = self.model.generate(
                input_ids=batch.to(self.model.device),
                attention_mask=mask.to(self.model.device),
                generation_config=_greedy(max_new_tokens, pad, sorted(end)),
                logits_processor=None if draws is None else [draws],
            )
        answers = []
        for prompt, row in zip(ids, out[:, width:].tolist(), strict=True):
            length = next((n for n, token in enumerate(row) if token in end), len(row))
            text = self.tokenizer.decode(row[:length], skip_special_tokens=True)
            text = self._opened_thinking(prompt) + text
            answers.append(Answer(visible(text), length, truncated=length == len(row)))
        return answers

    def log_probs(
        self,
        prompts: Sequence[Messages],
        answers: Sequence[str],
        *,
        progress: Progress | None = None,
        through: Through[LogProb] = directly,
    ) -> list[LogProb]:
        """Log-probability of answers[i] given prompts[i], tokenised as TRL's DPOTrainer does.

        Args:
            through: see `answer`.

        Returns:
            N values, in order, float32.
        """
        sequences = [
            self.answer_ids(messages, answer)
            for messages, answer in zip(prompts, answers, strict=True)
        ]
        results: list[LogProb | None] = [None] * len(sequences)
        self.model.eval()
        if progress:
            progress(0)
        for rows in batches([len(ids) for ids, _ in sequences]):
            batch = partial(self._log_probs, [sequences[i] for i in rows])
            for i, value in zip(rows, through(rows, batch), strict=True):
                results[i] = value
            if progress:
                progress(len(rows))
        return [result for result in results if result is not None]

    def _log_probs(self, sequences: Sequence[tuple[list[int], int]]) -> list[LogProb]:
        """Of a batch: ids of prompt and answer, and where the answer begins."""
        import torch

        values = []
        first = min(begin for _, begin in sequences) - 1
        batch = [ids for ids, _ in sequences]
        logits = self._logits(batch, range(first, max(map(len, batch)) - 1))
        with torch.inference_mode():
            for r, (ids, begin) in enumerate(sequences):
                # Row by row, so that the float32 copy of the logits is one answer long.
                predictions = logits[r, begin - 1 - first : len(ids) - 1 - first].float()
                targets = torch.tensor(ids[begin:], device=predictions.device).unsqueeze(1)
                chosen = predictions.gather(1, targets).squeeze(1)
                total = (chosen - predictions.logsumexp(1)).sum().item()
                values.append(LogProb(total, len(ids) - begin))
        return values

    def option_logits(
        self,
        prompts: Sequence[Messages],
        options: Sequence[str],
        *,
        progress: Progress | None = None,
        through: Through[list[float]] = directly,
    ) -> list[list[float]]:
        """Logits of one-token replies, e.g. options ("A", "B"), right after each prompt.

        Args:
            through: see `answer`.

        Returns:
            Shape (N, len(options)).

        Raises:
            ConfigError: an option is not one token of this tokenizer, or a reply would begin with thinking.
        """
        tokens = []
        for option in options:
            encoded = self.tokenizer.encode(option, add_special_tokens=False)
            if len(encoded) != 1:
                raise ConfigError(f"{self.name}: {option!r} is {len(encoded)} tokens, expected 1")
            tokens.append(encoded[0])
        ids = [self.prompt_ids(messages) for messages in prompts]
        if ids and self._opened_thinking(ids[0]):
            raise ConfigError(
                f"{self.name}: the chat template opens a block of thinking, so the next token is no "
                "reply; switch thinking off (policy.chat_template_kwargs, often enable_thinking: false) "
                "or leave picking out of evaluation.parts"
            )
        results: list[list[float]] = [[] for _ in ids]
        self.model.eval()
        if progress:
            progress(0)
        for rows in batches([len(sequence) for sequence in ids]):
            batch = partial(self._option_logits, [ids[i] for i in rows], tokens)
            for i, value in zip(rows, through(rows, batch), strict=True):
                results[i] = value
            if progress:
                progress(len(rows))
        return results

    def _option_logits(
        self, sequences: Sequence[list[int]], tokens: Sequence[int]
    ) -> list[list[float]]:
        last = [len(ids) - 1 for ids in sequences]
        kept = sorted(set(last))
        logits = self._logits(sequences, kept)
        return [logits[r, kept.index(end), tokens].float().tolist() for r, end in enumerate(last)]

    def _logits(self, sequences: Sequence[Sequence[int]], positions: Sequence[int]) -> Any:
        """Logits at some positions, shape (B, len(positions), V).

        Padded on the right, where a causal model never looks. Only the positions that are needed go
        through the output layer: with a vocabulary of 50k it is a fifth of a small model's work, and
        its result is most of the memory.
        """
        import torch

        width = max(len(ids) for ids in sequences)
        pad = self._pad_id()
        device = self.model.device
        batch = torch.tensor([[*ids, *[pad] * (width - len(ids))] for ids in sequences])
        mask = torch.tensor([[1] * len(ids) + [0] * (width - len(ids)) for ids in sequences])
        with torch.inference_mode():
            output = self.model(
                input_ids=batch.to(device),
                attention_mask=mask.to(device),
                logits_to_keep=torch.tensor(list(positions), device=device),
            )
        return output.logits

    def _opened_thinking(self, prompt: Sequence[int]) -> str:
        """The tag, where the template itself opens a block of thinking at the end of the prompt."""
        end = self.tokenizer.decode(prompt[-8:]).rstrip()
        return THINK if end.endswith(THINK) else ""

    def _pad_id(self) -> int:
        pad = self.tokenizer.pad_token_id
        return int(pad if pad is not None else self.tokenizer.eos_token_id)


def load_policy(
    name: str = POLICY_NAME,
    *,
    revision: str | None = None,
    dtype: str = "auto",
    device: str | None = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    trainable: bool = False,
) -> Policy:
    """Load a policy.

    Args:
        name: see `locate.py`.
        revision: commit of a hub model or adapter.
        dtype: of the weights; `auto` is float32 on CPU and MPS and bfloat16 on a CUDA device that has it.
        device: `cpu`, `cuda`, `cuda:1`, `mps`; None takes what is there.
        chat_template_kwargs: for models whose template has switches, e.g. `enable_thinking`. None: what
            it was trained with where a recipe trained it, else none.
        trainable: load an adapter so that training can go on with it.

    Raises:
        MissingDependency: torch, transformers or peft, or the embedded model's package, is not installed.
        ConfigError: no such folder or hub model, or it holds neither a model nor an adapter, or a reward
            model; no chat template, or one that does not use a key of `chat_template_kwargs`.
        HubUnreachable: a hub name that is neither cached nor reachable.
    """
    try:
        import torch
        import transformers
    except ImportError as error:
        raise MissingDependency(
            f"loading a model needs {error.name}: pip install 'xyreward[local]'"
        ) from None
    device = device or default_device()
    dtype = dtype_on(device, dtype)
    adapter = is_adapter(name, revision)
    folder = folder_of(name, revision)
    check_writes(name, folder)
    base = base_of_adapter(folder) if adapter else None
    base_folder = folder_of(base.name, base.revision) if base else folder
    chat = load_chat_tokenizer(name, revision=revision, chat_template_kwargs=chat_template_kwargs)
    with loading(name, base_folder):
        model, info = transformers.AutoModelForCausalLM.from_pretrained(
            base_folder, dtype=getattr(torch, dtype), output_loading_info=True
        )
        if absent := sorted(info["missing_keys"]):
            # transformers only warns, and fills them with random numbers.
            raise ValueError(f"{len(absent)} weights are not in its files: {', '.join(absent[:3])}")
    if adapter:
        try:
            from peft import PeftModel
        except ImportError:
            raise MissingDependency(
                f"{name} is an adapter and needs peft: pip install 'xyreward[train]'"
            ) from None
        with loading(name, folder), warnings.catch_warnings():
            warnings.filterwarnings("error", message="Found missing adapter keys")
            model = PeftModel.from_pretrained(model, folder, is_trainable=trainable)
            for config in model.peft_config.values():
                # A recipe's adapter names its base; peft looks for the base's files when it saves again.
                config.base_model_name_or_path = base_folder
            if not trainable and dtype == "float32" and _is_lora(model):
                # A sixth of the time of an evaluation. Sums of log-probabilities change by less than
                # 2e-4 nats in float32; in bfloat16 small steps of training would be rounded away.
                model = model.merge_and_unload()
    return Policy(
        name=name,
        tokenizer=chat.tokenizer,
        chat_template_kwargs=chat.chat_template_kwargs,
        model=model.to(device),
        adapter=adapter,
    )


def _is_lora(model: Any) -> bool:
    return all(config.peft_type == "LORA" for config in model.peft_config.values())


def visible(text: str) -> str:
    """What a reader sees of a reply: without a leading block of thinking.

    Thinking that was cut off before it ended leaves nothing, which is an empty answer.
    """
    text = text.strip()
    if text.startswith(THINK):
        _, _, text = text.partition("</think>")
    return text.strip()


def _end_tokens(model: Any, tokenizer: Any) -> set[int]:
    configured = model.generation_config.eos_token_id
    ends = configured if isinstance(configured, list) else [configured]
    return {int(t) for t in (*ends, tokenizer.eos_token_id) if t is not None}


def _greedy(max_new_tokens: int, pad: int, end: list[int]) -> Any:
    """Plain greedy decoding.

    What is left unset here, transformers fills from the model's own configuration, which may ask for
    sampling, beams or a repetition penalty; so all of that is named.
    """
    from transformers import GenerationConfig

    return GenerationConfig(
        do_sample=False,
        num_beams=1,
        repetition_penalty=1.0,
        no_repeat_ngram_size=0,
        min_new_tokens=0,
        max_new_tokens=max_new_tokens,
        pad_token_id=pad,
        eos_token_id=end,
    )


class _Draws:
    """A processor of logits that leaves one token to each row: the one that its random number falls on.

    transformers samples with torch's global generator, for the whole batch at once, so that what a row
    draws depends on all rows. Here each row has its numbers from a generator of its own, one for each
    token, and greedy search can only take what they point at in the cumulated distribution.
    """

    def __init__(
        self, seeds: Sequence[int], tokens: int, temperature: float, top_p: float, *, width: int
    ) -> None:
        import torch

        # On the CPU whatever the model's device: generators of different devices differ.
        self._numbers = torch.stack(
            [torch.rand(tokens, generator=torch.Generator().manual_seed(seed)) for seed in seeds]
        )
        self._temperature = temperature
        self._top_p = top_p
        self._width = width

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        import torch

        number = self._numbers[:, input_ids.shape[1] - self._width].to(scores.device)[:, None]
        p = (scores.float() / self._temperature).softmax(-1)
        if self._top_p < 1:
            p, order = p.sort(dim=-1, descending=True, stable=True)
            # A token stays while those before it have less than top_p; the first one always does.
            p = p.masked_fill(p.cumsum(-1) - p >= self._top_p, 0.0)
        up_to = p.cumsum(-1)
        # Of the sum as it was rounded, so that the last token is not beyond it; a token without
        # probability adds nothing to the sum and is never the first above the number.
        drawn = (up_to > number * up_to[:, -1:]).to(torch.uint8).argmax(-1, keepdim=True)
        if self._top_p < 1:
            drawn = order.gather(-1, drawn)
        return torch.full_like(scores, -math.inf).scatter(-1, drawn, 0.0)


def batches(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Indices in batches of alike lengths, each at most TOKENS_PER_BATCH padded tokens (or one row)."""
    batch: list[int] = []
    for i in sorted(range(len(lengths)), key=lambda i: lengths[i], reverse=True):
        if batch and lengths[batch[0]] * (len(batch) + 1) > TOKENS_PER_BATCH:
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch
