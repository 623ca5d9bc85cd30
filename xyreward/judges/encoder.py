"""Texts to unit vectors, and answers to the chunks that are worth embedding one by one.

Not here: what the vectors are compared with (`features.py`).
"""

from __future__ import annotations

import re
import threading
import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xyreward.embedded import encoder_dir
from xyreward.errors import MissingDependency
from xyreward.items import without_invisible

Vectors = NDArray[np.float32]
"""Shape (N, 384), rows of length 1."""

DIMENSIONS = 384
MAX_TOKENS = 128
"""Chunks are sentences; the rare longer one is cut here."""
CHUNK_CHARACTERS = 400
"""A longer piece of prose or code is divided: one vector for a page says little."""
FRAGMENT_BYTES = 16
"""A shorter piece ("Sure." or a heading) means little alone; it opens the next of its paragraph."""
BATCH = 16
"""Texts per forward pass: measured fastest on two cores, where 64 no longer fit the cache."""
MAX_CHUNKS = 128
"""What an answer says after so many chunks (some 1,700 words) is not read, so that a policy that
never stops costs a bounded amount. Reaching it is the policy's fault and can only lose it
evidence."""
MAX_CHARACTERS = MAX_CHUNKS * CHUNK_CHARACTERS
"""Not even looked at after this many characters."""

_FENCE = re.compile(r"^[ \t]*(?:```+|~~~+)[ \t]*[\w+#.-]*[ \t\r]*$", re.MULTILINE)
_PARAGRAPH = re.compile(r"\n[ \t]*\n")
_SENTENCE_END = re.compile(r"(?<=[.!?])[\"')\]]*\s+|(?<=[。！？；])|\n+")  # noqa: RUF001
_BULLET = re.compile(r"^\s*(?:[-*+•]|#+|\d+[.)])\s+")


class Encoder:
    """all-MiniLM-L6-v2 with mean pooling, as sentence-transformers computes it, on the CPU."""

    def __init__(self) -> None:
        try:
            import torch
            from transformers import AutoModel, AutoTokenizer
        except ImportError as error:
            raise MissingDependency(
                f"the local judge needs {error.name}: pip install 'xyreward[local]'"
            ) from None
        self._torch = torch
        folder = str(encoder_dir())
        with _no_progress_bar():
            self._tokenizer: Any = AutoTokenizer.from_pretrained(folder)
            self._model: Any = AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
        # A fast tokenizer keeps its truncation setting as state and fails when two threads use it.
        self._lock = threading.Lock()

    def encode(self, texts: Sequence[str]) -> Vectors:
        """One unit vector per text, shape (len(texts), 384). Equal texts are embedded once."""
        unique = sorted(set(texts))
        tokens = self._tokens(unique)
        # Batches of like lengths waste little on padding.
        order = sorted(range(len(unique)), key=lambda i: len(tokens[i]))
        rows = np.empty((len(unique), DIMENSIONS), dtype=np.float32)
        for start in range(0, len(order), BATCH):
            batch = order[start : start + BATCH]
            rows[batch] = self._embed([tokens[i] for i in batch])
        where = {text: i for i, text in enumerate(unique)}
        return rows[[where[text] for text in texts]]

    def _tokens(self, texts: list[str]) -> list[list[int]]:
        # A lone surrogate, as broken decoding leaves it, is not text that a tokenizer accepts.
        clean = [text.encode("utf-8", "replace").decode("utf-8") for text in texts]
        if not clean:
            return []
        with self._lock:
            encoded = self._tokenizer(clean, truncation=True, max_length=MAX_TOKENS)
        ids: list[list[int]] = encoded["input_ids"]
        return ids

    def _embed(self, tokens: list[list[int]]) -> Vectors:
        torch = self._torch
        longest = max(len(ids) for ids in tokens)
        padded = torch.tensor([ids + [0] * (longest - len(ids)) for ids in tokens])
        lengths = torch.tensor([len(ids) for ids in tokens])
        attention = (torch.arange(longest) < lengths[:, None]).long()
        with torch.inference_mode():
            hidden = self._model(input_ids=padded, attention_mask=attention).last_hidden_state
            mask = attention.unsqueeze(-1).to(hidden.dtype)
            mean = (hidden * mask).sum(1) / mask.sum(1)
            unit: Vectors = torch.nn.functional.normalize(mean, dim=1).numpy()
        return unit


@contextmanager
def _no_progress_bar() -> Iterator[None]:
    """Spare the user the bar that transformers draws for 100 small weights; restore it after."""
    from transformers.utils import logging as transformers_logging

    was_on = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if was_on:
            transformers_logging.enable_progress_bar()


def plain(text: str) -> str:
    """The text as it is read: NFKC, without invisible characters (Unicode category Cf).

    Zero-width characters inside words, full-width letters and the like look the same to a reader
    and must not decide what an answer is worth.
    """
    if text.isascii():
        return text
    return unicodedata.normalize("NFKC", without_invisible(text))


def chunks(answer: str) -> list[str]:
    """Sentences of an answer, and lines of its code. At most `MAX_CHUNKS`, never none.

    A chunk depends on its own paragraph only, so text that is added in paragraphs of its own leaves
    the other chunks as they are, whatever it holds. Chunks are `plain`.
    """
    answer = without_invisible(answer[:MAX_CHARACTERS])
    return list(islice(_pieces(answer), MAX_CHUNKS)) or [plain(answer.strip()[:CHUNK_CHARACTERS])]


def _pieces(answer: str) -> Iterator[str]:
    # A line that opens or closes a block of code ends a paragraph and means nothing else. Were what
    # is between two of them divided in another way, one stray mark would change all that follows.
    for paragraph in _PARAGRAPH.split(_FENCE.sub("\n\n", answer)):
        yield from _sentences(paragraph)


def _sentences(paragraph: str) -> list[str]:
    out: list[str] = []
    for raw in _SENTENCE_END.split(paragraph):
        # Not before: NFKC makes a Latin mark of a Chinese question mark, which ends no sentence here.
        piece = _BULLET.sub("", plain(raw)).strip()
        if not any(c.isalnum() for c in piece):
            continue
        if out and len(out[-1].encode("utf-8", "replace")) < FRAGMENT_BYTES:
            out[-1] = f"{out[-1]} {piece}"
        else:
            out.append(piece)
    return [part for piece in out for part in _cut(piece)]


def _cut(piece: str) -> list[str]:
    return [
        part
        for i in range(0, len(piece), CHUNK_CHARACTERS)
        if (part := piece[i : i + CHUNK_CHARACTERS].strip())
    ]
