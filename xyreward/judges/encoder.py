"""Texts to unit vectors, and answers to the chunks that are worth embedding one by one.

Not here: what the vectors are compared with (`features.py`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from xyreward.embedded import encoder_dir
from xyreward.errors import MissingDependency

if TYPE_CHECKING:
    pass

Vectors = NDArray[np.float32]
"""Shape (N, 384), rows of length 1."""

DIMENSIONS = 384
MAX_TOKENS = 128
"""Chunks are sentences; the rare longer one is cut here."""
CHUNK_CHARACTERS = 400
"""A longer piece of prose or code is divided: one vector for a page says little."""

_FENCE = re.compile(r"^[ \t]*(```|~~~).*?(?:^[ \t]*\1[ \t]*$|\Z)", re.MULTILINE | re.DOTALL)
_SENTENCE_END = re.compile(r"(?<=[.!?])[\"')\]]*\s+|(?<=[。！？；])|\n+")
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
        self._tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        self._model: Any = AutoModel.from_pretrained(folder, dtype=torch.float32).eval()

    def encode(self, texts: Sequence[str], *, batch_size: int = 64) -> Vectors:
        """One unit vector per text, shape (len(texts), 384). Equal texts are embedded once."""
        unique = sorted(set(texts), key=lambda t: (len(t), t))  # alike lengths waste little padding
        rows = np.empty((len(unique), DIMENSIONS), dtype=np.float32)
        for start in range(0, len(unique), batch_size):
            batch = unique[start : start + batch_size]
            rows[start : start + len(batch)] = self._encode_batch(batch)
        where = {text: i for i, text in enumerate(unique)}
        return rows[[where[text] for text in texts]] if texts else rows

    def _encode_batch(self, texts: list[str]) -> Vectors:
        torch = self._torch
        inputs = self._tokenizer(
            texts, padding=True, truncation=True, max_length=MAX_TOKENS, return_tensors="pt"
        )
        with torch.inference_mode():
            hidden = self._model(**inputs).last_hidden_state
            mask = inputs["attention_mask"].unsqueeze(-1).to(hidden.dtype)
            mean = (hidden * mask).sum(1) / mask.sum(1).clamp(min=1)
            unit: Vectors = torch.nn.functional.normalize(mean, dim=1).numpy()
        return unit


def chunks(answer: str) -> list[str]:
    """Sentences of an answer; code in pieces of a few lines. Never empty for a non-blank answer."""
    pieces: list[str] = []
    position = 0
    for match in _FENCE.finditer(answer):
        pieces += _sentences(answer[position : match.start()])
        pieces += _code(match[0])
        position = match.end()
    pieces += _sentences(answer[position:])
    return pieces or [answer.strip()[:CHUNK_CHARACTERS]]


def _sentences(prose: str) -> list[str]:
    out: list[str] = []
    for raw in _SENTENCE_END.split(prose):
        piece = _BULLET.sub("", raw).strip()
        if not any(c.isalnum() for c in piece):
            continue
        # A fragment of one or two words ("Sure." or a heading) means little alone; it opens the next.
        if out and len(out[-1]) < 16 and len(out[-1]) + len(piece) < CHUNK_CHARACTERS:
            out[-1] = f"{out[-1]} {piece}"
        else:
            out.append(piece)
    return [part for piece in out for part in _cut(piece)]


def _code(block: str) -> list[str]:
    lines = [ln for ln in block.splitlines() if ln.strip() and not ln.strip().startswith(("```", "~~~"))]
    out: list[str] = []
    for line in lines:
        if out and len(out[-1]) + len(line) < CHUNK_CHARACTERS // 2:
            out[-1] = f"{out[-1]}\n{line}"
        else:
            out.append(line)
    return [part for piece in out for part in _cut(piece)]


def _cut(piece: str) -> list[str]:
    return [
        piece[i : i + CHUNK_CHARACTERS].strip()
        for i in range(0, len(piece), CHUNK_CHARACTERS)
        if piece[i : i + CHUNK_CHARACTERS].strip()
    ]
