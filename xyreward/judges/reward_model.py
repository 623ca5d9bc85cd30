"""A distilled judge: a reward model in a folder, as `recipes/reward_model.py` writes one.

It reads an answer once and gives a reward, calibrated to that of the judge whose rewards it was fitted to,
and no labels. It calls nobody. It knows what its training showed it: a policy that is trained on it for long
finds answers that it likes and the judge does not, so look now and then with the judge itself
(`reward_audit.py`).

Not here: training and calibrating it (`recipes/reward_model.py`, `reward_model.py`), the map (`monotone.py`).
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import os
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Literal, get_args

from xyreward.chat_tokenizer import ChatTokenizer, Messages, load_chat_tokenizer, loading
from xyreward.errors import JudgeError, MissingDependency, told
from xyreward.items import Item
from xyreward.locate import (
    base_of_adapter,
    fingerprint,
    fingerprint_of_folder,
    fingerprint_of_weights,
    folder_of,
    is_adapter,
)
from xyreward.monotone import MonotoneMap
from xyreward.reward import Reward
from xyreward.verdict import JudgeFailure, Verdict
from xyreward.words import whole

FILE = "reward_model.json"
"""Beside the weights: what `Distilled` has. What lacks it is no reward model of ours."""

Shown = Literal["query", "goal"]
"""What the model reads before the answer: the query alone, or also both requests."""

GOAL = """{query}

---
Literally asked: {stated}
Really wanted: {intended}"""
"""The last turn where the goal is shown. Of a control both lines say the same."""

HEADS = ("score.", "classifier.")
"""Beginnings of the names of a classification head's weights, which a language model does not have."""
OF_HEAD = (".score", ".classifier")
"""Ends of the names of modules that are heads, with any prefix of peft's."""

PICKLES = frozenset({".bin", ".ckpt", ".joblib", ".pickle", ".pkl", ".pt", ".pth"})
"""Suffixes of files that may run code as they are read."""

AGAIN = (
    f"take the folder as the recipe wrote it, or remove {FILE} and end the run again with --resume"
)


@dataclass(frozen=True, slots=True)
class Distilled:
    """What a reward model stands for."""

    judge: str
    """Whose reward it estimates."""
    rubric_version: str
    """Of that judge."""
    weights: Mapping[str, float]
    """`Reward.shares` of that reward."""
    shown: Shown
    max_length: int
    """Tokens of prompt and answer together. It was trained on nothing longer, and scores nothing longer."""
    scale: MonotoneMap
    """The model's output to the judge's expected reward."""
    calibrated_on: tuple[str, ...]
    """`short_hash` of the items that the scale was fitted on and of their near-duplicates, sorted."""
    weights_of: str
    """`fingerprint_of_folder` of what lies beside it: the scale fits no other weights."""
    base: str | None = None
    """`fingerprint_of_weights` of an adapter's base."""

    @classmethod
    def of(cls, folder: str | os.PathLike[str], **fields: Any) -> Distilled:
        """That of the model in a folder, with fields other than `weights_of` and `base`."""
        return cls(**fields, weights_of=_weights_in(folder), base=_base_in(folder))

    def to_json(self) -> str:
        """The text of a `reward_model.json`."""
        data: dict[str, Any] = {
            "judge": self.judge,
            "rubric_version": self.rubric_version,
            "weights": dict(self.weights),
            "shown": self.shown,
            "max_length": self.max_length,
            "scale": self.scale.to_dict(),
            "calibrated_on": list(self.calibrated_on),
            "weights_of": self.weights_of,
            "base": self.base,
        }
        return json.dumps({**data, "sha256": _sum(data)}, indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Distilled:
        """The inverse of `to_json`.

        Raises:
            ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError: it is not as a
                recipe wrote it.
        """
        data = json.loads(text)
        shown, length = data["shown"], data["max_length"]
        if shown not in get_args(Shown) or type(length) is not int or length < 2:
            raise ValueError(f"shown is {shown!r:.40}, max_length {length!r:.40}")
        weights = {str(name): float(weight) for name, weight in data["weights"].items()}
        if not all(math.isfinite(weight) and weight >= 0 for weight in weights.values()):
            raise ValueError(f"weights are {weights!r:.80}")
        if data.pop("sha256") != _sum(data):
            raise ValueError("it was edited")
        return cls(
            str(data["judge"]),
            str(data["rubric_version"]),
            weights,
            shown,
            length,
            MonotoneMap.from_dict(data["scale"]),
            tuple(map(str, data["calibrated_on"])),
            str(data["weights_of"]),
            None if data["base"] is None else str(data["base"]),
        )


def _sum(data: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


def _weights_in(folder: str | os.PathLike[str]) -> str:
    return fingerprint_of_folder(folder, without={FILE})


def _base_in(folder: str | os.PathLike[str]) -> str | None:
    if not is_adapter(str(folder)):
        return None
    base = base_of_adapter(str(folder))
    return fingerprint_of_weights(base.name, base.revision)


def _there(file: Path) -> bool:
    return os.path.isfile(file)  # noqa: PTH113  # Path's raises for a name longer than a path can be


def _names(file: Path) -> list[str]:
    """Names of the weights in a safetensors file, by its header.

    Raises:
        ValueError: it is none.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="np") as opened:
            return list(opened.keys())
    except SafetensorError as error:
        raise ValueError(f"{file.name} is no safetensors file ({told(error)})") from None


@dataclass
class RowTokenizer(ChatTokenizer):
    """What a reward model reads: item and answer to token ids."""

    shown: Shown

    def ids(self, item: Item, answer: str, query: Messages | None = None) -> list[int]:
        """Token ids of query and answer. Text that reads like the template's own marks stays text.

        Args:
            item: whose requests are shown, where they are.
            answer: to it.
            query: messages in place of the item's own, such as those of a pair with names masked.
        """
        messages = [dict(message) for message in query or item.messages]
        if self.shown == "goal":
            messages[-1]["content"] = GOAL.format(
                query=messages[-1]["content"],
                stated=item.stated_request,
                intended=item.intended_request,
            )
        turns = [*messages, {"role": "assistant", "content": answer}]
        return self._template(
            [{**turn, "content": whole(turn["content"])} for turn in turns],
            sanitize_control_tokens=True,
        )


@dataclass
class Reader(RowTokenizer):
    """A sequence-classification model with its tokenizer: item and answer to one number."""

    model: Any

    def outputs(self, rows: Sequence[Sequence[int]]) -> list[float]:
        """The model's output for each row of token ids, in order; any number, higher is better."""
        import torch

        from xyreward.policy import batches

        pad = self.model.config.get_text_config().pad_token_id
        found = [0.0] * len(rows)
        self.model.eval()
        for batch in batches([len(row) for row in rows]):
            width = max(len(rows[i]) for i in batch)
            ids = [[*rows[i], *[pad] * (width - len(rows[i]))] for i in batch]
            mask = [[1] * len(rows[i]) + [0] * (width - len(rows[i])) for i in batch]
            with torch.inference_mode():
                out = self.model(
                    input_ids=torch.tensor(ids, device=self.model.device),
                    attention_mask=torch.tensor(mask, device=self.model.device),
                ).logits[:, 0]
            for i, value in zip(batch, out.float().tolist(), strict=True):
                found[i] = value
        return found


def load_reader(
    name: str,
    shown: Shown,
    *,
    revision: str | None = None,
    dtype: str = "auto",
    device: str | None = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    seed: int | None = None,
) -> Reader:
    """Load a reward model, or a language model with a new head that is to become one.

    Args:
        name: a folder or hub name; see `locate.py`.
        shown: what it reads.
        revision: commit of a hub model.
        dtype: of the weights; `auto` as `policy.dtype_on` has it.
        device: None: the best there is.
        chat_template_kwargs: see `load_chat_tokenizer`.
        seed: of a new head's weights. None: a new head is an error.

    Raises:
        MissingDependency: torch, transformers or peft is not installed.
        ConfigError, HubUnreachable: see `load_policy`; also a model without a head where `seed` is None.
    """
    try:
        import torch
        import transformers

        from xyreward.policy import default_device, dtype_on
    except ImportError as error:
        raise MissingDependency(
            f"loading a model needs {error.name}: pip install 'xyreward[local]'"
        ) from None
    device = device or default_device()
    dtype = dtype_on(device, dtype)
    adapter = is_adapter(name, revision)
    folder = folder_of(name, revision)
    base = base_of_adapter(folder) if adapter else None
    base_folder = folder_of(base.name, base.revision) if base else folder
    chat = load_chat_tokenizer(name, revision=revision, chat_template_kwargs=chat_template_kwargs)
    if seed is not None:
        torch.manual_seed(seed)
    with loading(name, base_folder), _quiet_about_heads():
        model, info = transformers.AutoModelForSequenceClassification.from_pretrained(
            base_folder,
            num_labels=1,
            dtype=getattr(torch, dtype),
            output_loading_info=True,
            trust_remote_code=False,  # and no question at the terminal whether to
        )
        # Of an adapter the head is in the adapter; whatever else is absent was filled with random numbers.
        expected = HEADS if adapter or seed is not None else ()
        if absent := sorted(k for k in info["missing_keys"] if not k.startswith(expected or "\0")):
            raise ValueError(f"{len(absent)} weights are not in its files: {', '.join(absent[:3])}")
    # The output is read at the last token that is no padding, by the model's configuration. TRL's trainer
    # puts the tokenizer's there, which an adapter does not keep: of a base that names another token it
    # would be read elsewhere than in training.
    pad = chat.tokenizer.pad_token_id
    pad = chat.tokenizer.eos_token_id if pad is None else pad
    model.config.get_text_config().pad_token_id = pad
    if adapter:
        try:
            from peft import PeftModel
        except ImportError:
            raise MissingDependency(
                f"{name} is an adapter and needs peft: pip install 'xyreward[train]'"
            ) from None
        with loading(name, folder), warnings.catch_warnings():
            warnings.filterwarnings("error", message="Found missing adapter keys")
            # Between transformers and peft, at every load.
            warnings.filterwarnings("ignore", "`is_gradient_checkpointing`", FutureWarning)
            model = PeftModel.from_pretrained(model, folder)
            if not any("modules_to_save" in key for key in model.state_dict()):
                raise ValueError("it has no head of its own")
            if dtype == "float32":
                model = model.merge_and_unload()  # a sixth of the time
    return Reader(
        chat.name, chat.tokenizer, chat.chat_template_kwargs, model=model.to(device), shown=shown
    )


@contextmanager
def _quiet_about_heads() -> Iterator[None]:
    """Without transformers' report that the head is new: it is meant to be, and what is not is an error."""
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)


@lru_cache(maxsize=2)
def _shared_reader(folder: str, shown: Shown, device: str, _version: str) -> Reader:
    # One per process: recipes make a judge for every purpose.
    return load_reader(folder, shown, device=device)


_ONE_AT_A_TIME = threading.Lock()
"""Judges of one folder share a model and its tokenizer, which is not made for several threads."""


class RewardModelJudge:
    """The judge `reward_model:<folder>`. Weights are loaded at the first answer. Threads may share it."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        """Read what the folder says of itself.

        Raises:
            JudgeError: it is no reward model that a recipe wrote.
        """
        self.folder = Path(os.path.expanduser(folder))  # noqa: PTH111  # Path's raises without such a user
        file = self.folder / FILE
        if not _there(file):
            within = [part for part in ("adapter", "model") if _there(self.folder / part / FILE)]
            raise JudgeError(
                f"reward_model:{folder!s:.200}: no {FILE} there; expected "
                + (
                    f"the folder in it, reward_model:{self.folder / within[0]}"
                    if within
                    else "the folder `adapter` or `model` of a run of recipes/reward_model.py that came to "
                    "its end (accelerate launch recipes/reward_model.py trains one)"
                )
            )
        try:
            self.distilled = Distilled.from_json(file.read_text("utf-8"))
        except (
            OSError,
            ValueError,
            TypeError,
            KeyError,
            AttributeError,
            OverflowError,
            RecursionError,
        ) as error:
            raise JudgeError(
                f"{file}: is not as the recipe wrote it ({told(error)}); {AGAIN}"
            ) from None
        self._check_weights()
        self.reads_query_alone = self.distilled.shown == "query"

    def _check_weights(self) -> None:
        """Make sure, by names and headers, that the folder holds the weights that the scale was fitted to.

        Raises:
            JudgeError: pickles, which may run code as they are read; no head; weights changed since.
        """
        try:
            files = sorted(file for file in self.folder.iterdir() if file.is_file())
            if pickles := [file.name for file in files if file.suffix in PICKLES]:
                raise ValueError(
                    f"it holds {pickles[0]}, a pickle, and expected are safetensors alone"
                )
            names = [
                name for file in files if file.suffix == ".safetensors" for name in _names(file)
            ]
            if not any(f".{name}".rpartition(".")[0].endswith(OF_HEAD) for name in names):
                raise ValueError(
                    f"none of its {len(names)} weights is of a head for rewards (score)"
                )
            if _weights_in(self.folder) != self.distilled.weights_of:
                raise ValueError(f"its files are not those that {FILE} was written for")
        except (OSError, ValueError) as error:
            raise JudgeError(f"{self.name}: {told(error)}; {AGAIN}") from None

    @cached_property
    def _base(self) -> str | None:
        return _base_in(self.folder)  # a hub is asked once, and not for every batch

    def _check_base(self) -> None:
        """Make sure that an adapter's base is the one that it was trained on.

        Raises:
            JudgeError: it is another.
            ConfigError, HubUnreachable: it is not to be had.
        """
        found = self._base
        if found != self.distilled.base:
            raise JudgeError(
                f"{self.name}: its base {base_of_adapter(str(self.folder)).name!r:.120} is another model "
                f"({found}) than at its training ({self.distilled.base}); restore that"
            )

    @property
    def name(self) -> str:
        """`reward_model:<folder>`."""
        return f"reward_model:{self.folder}"

    @cached_property
    def rubric_version(self) -> str:
        """Fingerprint of weights and scale, and the version of what it was fitted to."""
        return f"reward-model-{fingerprint(str(self.folder))}-of-{self.distilled.rubric_version}"

    def check(self, items: Sequence[Item]) -> None:
        """Make sure that it can be loaded and was made for such items, before any answer is generated.

        Raises:
            ConfigError, HubUnreachable: the base of an adapter is not to be had.
            JudgeError: that base is another model than at its training; an item does not tell what is
                wanted, and the model reads that.
        """
        self._check_base()
        bare = [item.id for item in items if item.bare]
        if bare and not self.reads_query_alone:
            raise JudgeError(
                f"item {bare[0]!r} has no stated_request and no intended_request, which judge {self.name!r} "
                "reads; add them, or train one with shown: query"
            )

    def room(self, items: Sequence[Item]) -> list[int]:
        """Tokens that an answer to each item may have; below 1: every answer to it is a failure.

        No weights are loaded for that.

        Raises:
            ConfigError, HubUnreachable, MissingDependency: the tokenizer cannot be loaded.
        """
        chat = load_chat_tokenizer(str(self.folder))
        reader = RowTokenizer(
            chat.name, chat.tokenizer, chat.chat_template_kwargs, self.distilled.shown
        )
        return [self.distilled.max_length - len(reader.ids(item, "")) for item in items]

    async def judge(
        self, items: Sequence[Item], answers: Sequence[str]
    ) -> list[Verdict | JudgeFailure]:
        """There are no labels to be had.

        Raises:
            JudgeError: always.
        """
        from xyreward.judges import check_gives_labels

        check_gives_labels(self)
        raise AssertionError((items, answers))

    async def rewards(
        self, items: Sequence[Item], answers: Sequence[str], reward: Reward
    ) -> list[float | JudgeFailure]:
        """See `RewardJudge.rewards`. The work runs in a thread, so the event loop stays free.

        It estimates the expected reward (`Reward(soft=True)`), also where hard labels are asked for. An
        answer that is longer than what it was trained on is a failure of kind `truncated`.

        Raises:
            JudgeError: see `check` and `check_reward`.
            ConfigError, HubUnreachable, MissingDependency: it cannot be loaded.
        """
        self.check_reward(reward)
        self.check(items)
        return await asyncio.to_thread(self._rewards, list(items), list(answers))

    def check_reward(self, reward: Reward) -> None:
        """Make sure that its weights are those that the model was fitted to.

        Raises:
            JudgeError: they are others, and an estimate of the whole cannot be weighed anew.
        """
        asked, known = reward.shares(), self.distilled.weights
        if any(abs(weight - known.get(name, 0.0)) > 1e-6 for name, weight in asked.items()):
            raise JudgeError(
                f"judge {self.name!r} was fitted to a reward with the shares {_told(known)}, and "
                f"{_told(asked)} is asked for; it cannot be weighed anew. Train one with those weights"
            )

    @property
    def reader(self) -> Reader:
        """The model, loaded once per process."""
        folder = str(self.folder.resolve())
        return _shared_reader(folder, self.distilled.shown, _own_device(), self.rubric_version)

    def _rewards(self, items: list[Item], answers: list[str]) -> list[float | JudgeFailure]:
        with _ONE_AT_A_TIME:
            reader = self.reader
            rows = [reader.ids(i, answer) for i, answer in zip(items, answers, strict=True)]
            longest = self.distilled.max_length
            outputs = iter(reader.outputs([row for row in rows if len(row) <= longest]))
        found: list[float | JudgeFailure] = []
        for row in rows:
            if len(row) > longest:
                detail = f"{len(row)} tokens with its query, and the reward model reads {longest}"
                found.append(JudgeFailure("truncated", detail))
                continue
            output = next(outputs)
            try:
                found.append(self.distilled.scale(output))
            except ValueError as error:
                found.append(JudgeFailure("unparseable", f"the reward model's output {error}"))
        return found


def _own_device() -> str:
    """The device of this process; of several on a machine each has one."""
    from xyreward.policy import default_device

    device = default_device()
    return f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if device == "cuda" else device


def _told(shares: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {share:.3g}" for name, share in shares.items())
