"""Who wrote a forum's posts: names from a dump's `Users.xml`, and links to authors' pages, in items.

A dump's posts have the number of their author alone. Only the authors of items are looked up, so that all of
a site's users, streamed, take no memory. Deleted users have no number; the name that a post may have kept
(`OwnerDisplayName`) is there already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from xyreward.construct.posts_xml import xml_rows
from xyreward.items import Item
from xyreward.pairs.personal_data import mask


def user_rows(path: Path, tell: Callable[[str], None]) -> Iterator[tuple[str, str]]:
    """Number and name of each user of a `Users.xml`.

    Args:
        path: the file; may be packed as `Posts.xml` may.
        tell: called with what is wrong, as by `xml_rows`. It may raise, which ends reading.

    Raises:
        OSError: the file cannot be read.
    """
    for line, row in xml_rows(path, tell, root="users"):
        number, name = row.get("Id"), row.get("DisplayName")
        if number is None or name is None:
            missing = "Id" if number is None else "DisplayName"
            tell(f"{path.name} line {line}: has no {missing}; left out")
        else:
            yield number, name


def with_authors(
    items: Sequence[Item], site: str, users: Path | None, tell: Callable[[str], None]
) -> tuple[Item, ...]:
    """The items, with names and pages of the authors of their texts.

    Args:
        items: as `forum.to_item` makes them.
        site: host of the forum. Empty: no links to pages.
        users: `Users.xml`. None: names are left as they are.
        tell: called with what is wrong with it.
    """
    wanted = {
        text["author_id"]
        for item in items
        for text in _texts(item.meta)
        if text.get("author_id") and not text.get("author")
    }
    names: dict[str, str] = {}
    if users is not None and wanted:
        names = {
            number: mask(name)[0] for number, name in user_rows(users, tell) if number in wanted
        }
    return tuple(_with_authors(item, site, names) for item in items)


def _with_authors(item: Item, site: str, names: Mapping[str, str]) -> Item:
    def told(text: Mapping[str, str]) -> dict[str, str]:
        number = text.get("author_id", "")
        found = dict(text)
        if number in names and not text.get("author"):
            found["author"] = names[number]
        if number and site:
            found["author_link"] = f"https://{site}/users/{number}"
        return found

    attribution = item.meta["attribution"]
    called = {f"user {number}": name for number, name in names.items()}  # as `to_item` calls them
    references = [
        one.model_copy(update={"author": called.get(one.author or "", one.author)})
        for one in item.references
    ]
    meta = {
        **item.meta,
        "attribution": {
            **attribution,
            "question": told(attribution["question"]),
            "answers": [told(answer) for answer in attribution["answers"]],
        },
    }
    return item.model_copy(update={"references": tuple(references), "meta": meta})


def _texts(meta: Mapping[str, Any]) -> Iterator[Mapping[str, str]]:
    yield meta["attribution"]["question"]
    yield from meta["attribution"]["answers"]
