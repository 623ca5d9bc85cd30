"""Work that is kept batch by batch, so that what stops an evaluation costs one batch and not an hour.

A file of JSON lines: the first says what decides the results, each further one holds a batch. A line is
one write, brought to the disk; half of one, which a killed process left, is cut off. What is gone on
with is the same work in the same batches: rows depend in their last digits on the rows beside them.

Not here: what a batch is (`policy.py`), the finished file (`evaluation.py`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from xyreward.errors import RunFolderError, told

T = TypeVar("T")

Through = Callable[[Sequence[int], Callable[[], list[T]]], list[T]]
"""Called with a batch (positions of its rows) and the work that makes its N results; gives the results,
from the work or from where they are kept."""


def directly(_rows: Sequence[int], work: Callable[[], list[T]]) -> list[T]:
    """A `Through` that keeps nothing."""
    return work()


class Partial:
    """A file of finished batches. Without a file it keeps nothing."""

    def __init__(self, path: Path | None = None, job: Mapping[str, Any] | None = None) -> None:
        """Read what is there.

        Args:
            path: the file; it appears with the first batch. None: nothing is kept.
            job: all that decides the results, as JSON has it. A file of another job is not used, and is
                written anew; `other` says what differs.

        Raises:
            RunFolderError: the file is damaged before its end, or cannot be read.
        """
        self.path = path
        self._job = json.loads(json.dumps(dict(job or {})))
        self._found: dict[tuple[str, tuple[int, ...]], list[Any]] = {}
        self._whole = 0
        self.other: tuple[str, ...] = ()
        """Keys of the job that differ from those that the file was made with."""
        if path is not None:
            self._read(path)

    @property
    def batches(self) -> int:
        """Batches that were there at the start."""
        return len(self._found)

    def rows(self, step: str) -> int:
        """Rows of a step that were there at the start."""
        return sum(len(rows) for (name, rows) in self._found if name == step)

    def _read(self, path: Path) -> None:
        try:
            lines = path.read_bytes().split(b"\n")
        except FileNotFoundError:
            return
        except OSError as error:
            raise self._damaged(error) from None
        try:
            # What follows the last line end is nothing, or half a line.
            head, *batches = (json.loads(line) for line in lines[:-1])
            if not isinstance(head, dict):
                raise ValueError("its first line describes no job")
            if head != self._job:
                self.other = tuple(
                    k for k in sorted({*head, *self._job}) if head.get(k) != self._job.get(k)
                )
                return
            for batch in batches:
                rows, results = batch["rows"], batch["results"]
                if len(rows) != len(results):
                    raise ValueError(f"{len(results)} results of {len(rows)} rows")
                self._found[batch["step"], tuple(rows)] = results
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            if len(lines) == 1:  # not even the first line came to its end
                return
            raise self._damaged(error) from None
        self._whole = sum(len(line) + 1 for line in lines[:-1])

    def _damaged(self, error: Exception) -> RunFolderError:
        return RunFolderError(
            f"{self.path}: is not as a run left it ({told(error)}); remove it, and it is computed anew"
        )

    def step(self, name: str, pack: Callable[[T], Any], unpack: Callable[[Any], T]) -> Through[T]:
        """Keep the batches of one kind of work.

        Args:
            name: of the work.
            pack: one result to what JSON has.
            unpack: the way back, to an equal one.
        """

        def through(rows: Sequence[int], work: Callable[[], list[T]]) -> list[T]:
            kept = self._found.get((name, tuple(rows)))
            if kept is not None:
                return [unpack(result) for result in kept]
            results = work()
            self._append({"step": name, "rows": list(rows), "results": [pack(r) for r in results]})
            return results

        return through

    def whole(
        self,
        name: str,
        of: Mapping[str, Any],
        work: Callable[[], list[T]],
        worth: Callable[[list[T]], bool],
    ) -> list[T]:
        """Keep work that is not done in batches, where its results, which are JSON's, are `worth` it.

        Args:
            of: what decides its results beside the job.
        """
        name = f"{name} {json.dumps(dict(of), sort_keys=True)}"
        for (step, _), results in self._found.items():
            if step == name:
                return list(results)
        results = work()
        if worth(results):
            self._append({"step": name, "rows": list(range(len(results))), "results": results})
        return results

    def _append(self, batch: Mapping[str, Any]) -> None:
        if self.path is None:
            return
        # Escaped, so that also half a surrogate that a tokenizer wrote is a text of UTF-8.
        lines = [batch] if self._whole else [self._job, batch]
        data = b"".join(json.dumps(line).encode("ascii") + b"\n" for line in lines)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
            with os.fdopen(handle, "r+b") as stream:
                stream.truncate(self._whole)
                stream.seek(self._whole)
                stream.write(data)
                stream.flush()
                os.fsync(stream.fileno())
        except OSError as error:
            raise RunFolderError(
                f"{self.path}: cannot be written ({error}); make room and run the same again "
                "(a recipe with --resume)"
            ) from error
        self._whole += len(data)

    def remove(self) -> None:
        """The work is done and kept elsewhere."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)
