"""The model under training or evaluation: load it, let it answer, ask it how likely answers are.

Names: `embedded:smollm2-135m`, a folder or hub name of a model, a folder or hub name of a peft adapter.

Not here: training (TRL's trainers, see `recipes/`); judging (`judges/`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from xyreward.embedded import POLICY_NAME, policy_dir
from xyreward.errors import ConfigError, HubUnreachable, MissingDependency

Messages = Sequence[Mapping[str, str]]
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


@dataclass
class Policy:
    """A causal language model with its tokenizer. Methods put it in evaluation mode and keep no state."""

    name: str
    model: Any
    tokenizer: Any
    chat_template_kwargs: Mapping[str, Any]
    adapter: bool = False
    """The model is a peft model whose adapter came with the name."""

    def prompt_ids(self, messages: Messages) -> list[int]:
        """Token ids of a prompt, up to where the answer begins."""
        return self._template(messages, add_generation_prompt=True)

    def answer_ids(self, messages: Messages, answer: str) -> tuple[list[int], int]:
        """Token ids of prompt and answer, and where the answer begins, as TRL's DPOTrainer has them."""
        prompt = self.prompt_ids(messages)
        full = self._template([*messages, {"role": "assistant", "content": answer}])
        shared = 0
        while shared < min(len(prompt), len(full)) and prompt[shared] == full[shared]:
            shared += 1
        return full, shared

    def _template(self, messages: Messages, **kwargs: Any) -> list[int]:
        ids = self.tokenizer.apply_chat_template(
            [dict(m) for m in messages],
            tokenize=True,
            return_dict=False,
            **kwargs,
            **self.chat_template_kwargs,
        )
        return list(ids)

    def answer(
        self,
        prompts: Sequence[Messages],
        *,
        max_new_tokens: int,
        batch_size: int = 16,
        progress: Progress | None = None,
    ) -> list[Answer]:
        """Answer each prompt, greedily, so that the same model gives the same answers.

        Args:
            prompts: N conversations that end with the user's turn.
            max_new_tokens: an answer is cut there and marked `truncated`.

        Returns:
            N answers, in order.
        """
        import torch

        ids = [self.prompt_ids(messages) for messages in prompts]
        order = sorted(range(len(ids)), key=lambda i: len(ids[i]))
        answers: list[Answer | None] = [None] * len(ids)
        end = _end_tokens(self.model, self.tokenizer)
        self.model.eval()
        if progress:
            progress(0)
        for start in range(0, len(order), batch_size):
            rows = order[start : start + batch_size]
            width = max(len(ids[i]) for i in rows)
            pad = self._pad_id()
            batch = torch.tensor([[pad] * (width - len(ids[i])) + ids[i] for i in rows])
            mask = torch.tensor([[0] * (width - len(ids[i])) + [1] * len(ids[i]) for i in rows])
            with torch.inference_mode():
                out = self.model.generate(
                    input_ids=batch.to(self.model.device),
                    attention_mask=mask.to(self.model.device),
                    generation_config=_greedy(max_new_tokens, pad, sorted(end)),
                )
            for i, row in zip(rows, out[:, width:].tolist(), strict=True):
                length = next((n for n, token in enumerate(row) if token in end), len(row))
                text = self.tokenizer.decode(row[:length], skip_special_tokens=True)
                text = self._opened_thinking(ids[i]) + text
                answers[i] = Answer(visible(text), length, truncated=length == len(row))
            if progress:
                progress(len(rows))
        return [answer for answer in answers if answer is not None]

    def log_probs(
        self,
        prompts: Sequence[Messages],
        answers: Sequence[str],
        *,
        progress: Progress | None = None,
    ) -> list[LogProb]:
        """Log-probability of answers[i] given prompts[i], tokenised as TRL's DPOTrainer does.

        Returns:
            N values, in order, float32.
        """
        import torch

        sequences = [
            self.answer_ids(messages, answer)
            for messages, answer in zip(prompts, answers, strict=True)
        ]
        results: list[LogProb | None] = [None] * len(sequences)
        self.model.eval()
        if progress:
            progress(0)
        for rows in _batches([len(ids) for ids, _ in sequences]):
            batch = [sequences[i][0] for i in rows]
            first = min(sequences[i][1] for i in rows) - 1
            logits = self._logits(batch, range(first, max(map(len, batch)) - 1))
            with torch.inference_mode():
                for r, i in enumerate(rows):
                    ids, begin = sequences[i]
                    # Row by row, so that the float32 copy of the logits is one answer long.
                    predictions = logits[r, begin - 1 - first : len(ids) - 1 - first].float()
                    targets = torch.tensor(ids[begin:], device=predictions.device).unsqueeze(1)
                    chosen = predictions.gather(1, targets).squeeze(1)
                    total = (chosen - predictions.logsumexp(1)).sum().item()
                    results[i] = LogProb(total, len(ids) - begin)
            if progress:
                progress(len(rows))
        return [result for result in results if result is not None]

    def option_logits(
        self,
        prompts: Sequence[Messages],
        options: Sequence[str],
        *,
        progress: Progress | None = None,
    ) -> list[list[float]]:
        """Logits of one-token replies, e.g. options ("A", "B"), right after each prompt.

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
        for rows in _batches([len(sequence) for sequence in ids]):
            last = [len(ids[i]) - 1 for i in rows]
            kept = sorted(set(last))
            logits = self._logits([ids[i] for i in rows], kept)
            for r, i in enumerate(rows):
                results[i] = logits[r, kept.index(last[r]), tokens].float().tolist()
            if progress:
                progress(len(rows))
        return results

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
        name: see the module's docstring.
        revision: commit of a hub model or adapter.
        dtype: of the weights; `auto` is float32 on CPU and MPS and bfloat16 on a CUDA device that has it.
        device: `cpu`, `cuda`, `cuda:1`, `mps`; None takes what is there.
        chat_template_kwargs: for models whose template has switches, e.g. `enable_thinking`. None: what
            the adapter was trained with, else none.
        trainable: load an adapter so that training can go on with it.

    Raises:
        MissingDependency: torch, transformers or peft, or the embedded model's package, is not installed.
        ConfigError: no such folder or hub model, or it holds neither a model nor an adapter; no chat
            template, or one that does not use a key of `chat_template_kwargs`.
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
    if dtype == "auto":
        dtype = "bfloat16" if device.startswith("cuda") and bf16_is_fast("cuda") else "float32"
    adapter = is_adapter(name)
    folder = _folder(name, revision)
    base = base_of_adapter(folder) if adapter else Base(folder)
    base_folder = _folder(base.name, base.revision)
    kwargs = base.chat_template_kwargs if chat_template_kwargs is None else chat_template_kwargs
    has_tokenizer = adapter and (Path(folder) / "tokenizer_config.json").exists()
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            folder if has_tokenizer else base_folder
        )
        model = transformers.AutoModelForCausalLM.from_pretrained(
            base_folder, dtype=getattr(torch, dtype)
        )
    except (OSError, ValueError) as error:
        raise ConfigError(f"policy {name!r}: cannot be loaded from {base.name}: {error}") from error
    if adapter:
        try:
            from peft import PeftModel
        except ImportError:
            raise MissingDependency(
                f"{name} is an adapter and needs peft: pip install 'xyreward[train]'"
            ) from None
        model = PeftModel.from_pretrained(model, folder, is_trainable=trainable)
    _check_template(name, tokenizer.chat_template, kwargs)
    return Policy(
        name=name,
        model=model.to(device),
        tokenizer=tokenizer,
        chat_template_kwargs=dict(kwargs),
        adapter=adapter,
    )


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


def _folder(name: str, revision: str | None) -> str:
    """Where a model or adapter lies on this machine; a hub's is fetched, at its revision.

    Everything is loaded from folders, also by TRL, which reloads the reference model by its path and
    would take the newest revision of a name.

    Raises:
        HubUnreachable: a hub name that is neither cached nor reachable.
        ConfigError: no such model or revision on the hub.
    """
    if name == POLICY_NAME:
        return str(policy_dir())
    if Path(name).is_dir():
        return name
    import huggingface_hub as hub

    try:
        return str(hub.snapshot_download(name, revision=revision, etag_timeout=5))
    except (hub.errors.RepositoryNotFoundError, hub.errors.RevisionNotFoundError) as error:
        raise ConfigError(
            f"policy {name!r}: no such model, or no revision {revision!r}, on the hub "
            f"({type(error).__name__})"
        ) from None
    except Exception as error:  # the hub client raises its HTTP library's own classes
        raise HubUnreachable(
            f"policy {name!r}: it is not in the hub cache and the hub cannot be reached "
            f"({type(error).__name__}); fetch it where there is a network (hf download {name} "
            f"--local-dir DIR) and pass DIR, or use {POLICY_NAME!r}"
        ) from error


def is_adapter(name: str) -> bool:
    """Whether a policy's name is that of an adapter. Loads nothing, so it serves as an early check.

    Raises:
        ConfigError: a name that is neither a folder with a model or an adapter nor a hub name.
    """
    if name == POLICY_NAME:
        return False
    if name.startswith("embedded:"):
        raise ConfigError(f"policy {name!r} is not known; the embedded one is {POLICY_NAME!r}")
    folder = Path(name)
    if folder.is_dir():
        if (folder / "adapter_config.json").is_file():
            return True
        if (folder / "config.json").is_file():
            return False
        raise ConfigError(
            f"policy {name!r}: the folder has neither config.json nor adapter_config.json"
        )
    if name.count("/") != 1 or name.startswith((".", "/", "~")):
        raise ConfigError(
            f"policy {name!r}: no such folder, and not a hub name (owner/name); "
            f"the embedded model is {POLICY_NAME!r}"
        )
    return _hub_has_adapter(name)


def _hub_has_adapter(name: str) -> bool:
    try:
        from transformers.utils import cached_file
    except ImportError as error:
        raise MissingDependency(
            f"loading a model needs {error.name}: pip install 'xyreward[local]'"
        ) from None
    found = cached_file(
        name,
        "adapter_config.json",
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
        _raise_exceptions_for_gated_repo=False,
    )
    return found is not None


MARK = "xyreward.json"
"""Beside an adapter that a recipe trained: on what, as `Base`."""


@dataclass(frozen=True, slots=True)
class Base:
    """The model that an adapter belongs to, and how its prompts were rendered."""

    name: str
    """A policy's name. That of the embedded policy stands for a folder that differs between machines."""
    revision: str | None = None
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)


def base_of_adapter(folder: str) -> Base:
    """The base of an adapter: what the recipe that trained it wrote down, else what peft did.

    Raises:
        ConfigError: neither names one.
    """
    mark = Path(folder) / MARK
    if mark.is_file():
        return Base(**json.loads(mark.read_text("utf-8")))
    config = json.loads((Path(folder) / "adapter_config.json").read_text("utf-8"))
    if not config.get("base_model_name_or_path"):
        raise ConfigError(f"policy {folder!r}: adapter_config.json names no base model")
    return Base(str(config["base_model_name_or_path"]), config.get("revision"))


def base_of(name: str, revision: str | None, chat_template_kwargs: Mapping[str, Any]) -> Base:
    """The base of an adapter that is trained on this policy: the policy, or its own base."""
    if is_adapter(name):
        return replace(
            base_of_adapter(_folder(name, revision)), chat_template_kwargs=chat_template_kwargs
        )
    return Base(name, revision, chat_template_kwargs)


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


def _batches(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Indices in batches of alike lengths, each at most TOKENS_PER_BATCH padded tokens (or one row)."""
    batch: list[int] = []
    for i in sorted(range(len(lengths)), key=lambda i: lengths[i], reverse=True):
        if batch and lengths[batch[0]] * (len(batch) + 1) > TOKENS_PER_BATCH:
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch
