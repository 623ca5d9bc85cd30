"""Thread: one question of a forum with the answers that construction looks at.

Not here: reading files (`posts_xml.py`, `thread_files.py`), what becomes of a thread (`forum.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from xyreward.construct.html_text import html_text, says_something
from xyreward.words import is_empty

HIGHEST = 3
"""So many of the highest-scored answers are looked at beside the accepted one."""


class Post(
    NamedTuple
):  # as the next: a dump has millions, and a frozen dataclass takes twice as long to make
    """A question or an answer, and what its licence wants to be told beside it."""

    id: str
    """Within its source."""
    html: str
    """The body as the source has it; plain text where `is_html` is False."""
    score: int = 0
    """Votes up less votes down; may be negative."""
    author: str = ""
    """Name. Empty where the source has none, as for many deleted users."""
    author_id: str = ""
    licence: str = ""
    """With its version: `CC BY-SA 4.0`. Empty where the source does not say."""
    link: str = ""
    date: str = ""
    """Of creation, as the source has it, ISO 8601."""
    is_html: bool = True

    @property
    def text(self) -> str:
        """The body as a reader sees it: Markdown for code, lists, links and quotes."""
        return html_text(self.html) if self.is_html else self.html

    @property
    def says_something(self) -> bool:
        """Whether a reader sees anything but blanks and markup."""
        return says_something(self.html) if self.is_html else not is_empty(self.html)


class Thread(NamedTuple):
    """A question with its accepted answer and its highest-scored ones."""

    question: Post
    title: str = ""
    tags: tuple[str, ...] = ()
    accepted: str | None = None
    """Id of the accepted answer, where it is among `answers`."""
    answers: tuple[Post, ...] = ()
    """Accepted first, then by falling score; ties by id."""
    answer_count: int = 0
    """Of all answers that the source has, also those that are not looked at."""
    source: str = ""
    """Name of the site or file."""
    meta: tuple[tuple[str, str], ...] = ()
    """What else is known, such as `closed`."""

    @property
    def id(self) -> str:
        """The question's."""
        return self.question.id

    @property
    def query(self) -> str:
        """What the user wrote: title and body."""
        body = self.question.text
        return f"{self.title.strip()}\n\n{body}".strip() if self.title.strip() else body

    def answer(self, answer_id: str) -> Post | None:
        """The answer with this id, or None."""
        return next((post for post in self.answers if post.id == answer_id), None)


def chosen_answers(answers: Iterable[Post], accepted: str | None) -> tuple[Post, ...]:
    """The accepted answer and the three highest-scored ones, each once."""
    ranked = list(answers)
    if len(ranked) > 1:
        ranked.sort(key=lambda post: (-post.score, _as_number(post.id)))
    for n, post in enumerate(ranked):
        if post.id == accepted:
            del ranked[n]
            # It may be one of the three itself.
            return (post, *ranked[: HIGHEST - (n < HIGHEST)])
    return tuple(ranked[:HIGHEST])


def _as_number(name: str) -> tuple[int, str]:
    # ASCII digits only: int() takes others, and the order would hang on who wrote the id.
    return (int(name), "") if name.isascii() and name.isdigit() else (0, name)
