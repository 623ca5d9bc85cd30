"""A forum by plan: threads whose fate in `xyreward build forum` is known, as the files that forums have.

    plan = forum_plan()                       1,000 threads
    plan.write_posts_xml(folder / "Posts.xml")
    with FakeAPI(reply=plan.reply) as api:    a model that says what the plan says
        ...
    plan.counts                               kind of thread -> how many

The dump has what real ones have: every attribute, posts of other types, deleted users, missing accepted
answers, entities, code, negative scores, answers far from their questions. Its words mean nothing.
"""

from __future__ import annotations

import json
import os
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.sax.saxutils import quoteattr

from xyreward.fence import parse_fences

FORUM_KINDS: Mapping[str, int] = {
    "xy": 124,  # an answer turns to another goal and says why, in phrases that the pre-filter knows
    "xy_quiet": 20,  # in none of these phrases
    "says_goal": 5,  # as xy; the query says the goal
    "says_why": 4,  # as xy; the query says why what is asked will not do
    "not_inferred": 6,  # as xy; nobody infers the goal from the query
    "relabelled": 4,  # as xy; a second reading sees no hidden goal
    "weak_goal": 4,  # as xy; to the judge the goal-focused answer has another focus
    "weak_literal": 3,  # as xy; to the judge the literal answer serves the goal, too
    "duplicate": 30,  # as xy; the query is that of an xy thread, but for a word
    "unlicensed": 10,  # as xy; a post has no licence
    "sufficient": 480,  # the answers do what was asked; to the judge, not in every tenth
    "sufficient_marked": 120,  # with phrases that the pre-filter knows
    "says_no": 10,  # no answer does it, and none serves another goal
    "no_other_goal": 40,  # the answers say why it will not do, and no more
    "no_evidence": 10,  # another goal is served, and no answer says why
    "unanswered": 80,
    "voted_down": 20,  # every answer has a negative score
    "too_long": 5,  # a post of 30,000 characters
    "invents_quote": 15,  # the model insists on a quote that no answer has
    "talks": 10,  # the model answers in plain sentences
}
"""Kind of thread -> how many `forum_plan` makes where it is not told otherwise."""

SITE = "forum.example"

NOUNS = (
    "anchor arrow atlas badge basket beacon bellow bracket bridge bucket buffer cabin cable candle "
    "canvas carton cellar chapel cinder circle clamp cobalt column compass copper corner cradle "
    "crystal curtain dagger danube decoy diesel dipper donkey drawer easel ember engine fabric falcon "
    "feather ferry filter flange folder forest funnel gadget garden gasket geyser ginger goblet "
    "gravel gutter hammer harbor hazel helmet hinge hollow indigo island ivory jacket jasper jigsaw "
    "kernel kettle ladder lagoon lantern lattice ledger lentil lichen locket magnet mantle marble "
    "market meadow mortar nectar needle nickel nozzle oasis octave orchid oyster packet paddle palace "
    "parcel pebble pencil pepper pillar piston planet plasma pocket prism pulley puzzle quarry quiver "
    "rabbit radish ribbon ripple rocket saddle salmon sandal satchel shovel signal silver socket "
    "spiral spring summit tablet tackle temple thimble ticket timber tunnel turbine valley velvet "
    "vessel walnut wicker willow window zenith zipper "
)
VERBS = (
    "align bundle carve divide empty fasten gather index join label measure pack rotate sort trim "
    "wrap "
)

_TELLS = {
    "says_goal": "<p>I must reach that goal.</p>\n",
    "says_why": "<p>I know that it does not lead to any goal.</p>\n",
}

Role = str
"""Of an answer: `literal`, `goal` (with its reason), `goal_only`, `why`, `noise`."""

_ROLES: Mapping[str, Sequence[Role]] = {
    "xy": ("goal", "literal", "noise"),
    "sufficient": ("literal", "noise"),
    "says_no": ("noise", "noise"),
    "no_other_goal": ("why", "literal"),
    "no_evidence": ("goal_only", "literal"),
    "unanswered": (),
    "voted_down": ("literal", "noise"),
}
_AS_XY = frozenset(
    {
        "xy",
        "xy_quiet",
        "says_goal",
        "says_why",
        "not_inferred",
        "relabelled",
        "weak_goal",
        "weak_literal",
        "duplicate",
        "unlicensed",
        "too_long",
        "invents_quote",
        "talks",
    }
)


@dataclass(frozen=True, slots=True)
class PlannedAnswer:
    """One answer."""

    id: int
    role: Role
    html: str
    score: int
    accepted: bool = False


@dataclass(frozen=True, slots=True)
class PlannedThread:
    """One thread, and its fate."""

    number: int
    id: int
    kind: str
    title: str
    html: str
    answers: tuple[PlannedAnswer, ...]


@dataclass(frozen=True)
class ForumPlan:
    """Threads, their files, and what a model is to say of them."""

    threads: tuple[PlannedThread, ...]

    @property
    def counts(self) -> dict[str, int]:
        """Kind -> how many."""
        kinds = [thread.kind for thread in self.threads]
        return {kind: kinds.count(kind) for kind in FORUM_KINDS if kind in kinds}

    def rows(self, *, offset: int = 0) -> Iterator[dict[str, str]]:
        """The attributes of each `<row>`, in order of Id, which is that of writing.

        Args:
            offset: added to every id: of a dump that repeats the plan.
        """
        rng = random.Random(7)  # noqa: S311
        rows = [row for thread in self.threads for row in _rows(thread, rng)]
        rows += (
            _base(900_000_000 + int(name), name, "<p>A page about a tag.</p>", 0, rng)
            for name in ("4", "5", "6", "7")
        )
        for row in sorted(rows, key=lambda row: int(row["Id"])):
            for name in ("Id", "ParentId", "AcceptedAnswerId"):
                if offset and name in row:
                    row[name] = str(int(row[name]) + offset)
            yield row

    def write_posts_xml(self, path: str | os.PathLike[str]) -> None:
        """Write a `Posts.xml` as dumps have it."""
        with Path(path).open("w", encoding="utf-8", newline="") as file:
            file.write('\ufeff<?xml version="1.0" encoding="utf-8"?>\r\n<posts>\r\n')
            file.writelines(xml_row(row) for row in self.rows())
            file.write("</posts>")

    def write_users_xml(self, path: str | os.PathLike[str]) -> None:
        """Write the `Users.xml` beside it; every tenth user has gone since."""
        with Path(path).open("w", encoding="utf-8", newline="") as file:
            file.write('\ufeff<?xml version="1.0" encoding="utf-8"?>\r\n<users>\r\n')
            for number in range(-1, 10_000):
                if number % 10:
                    row = {
                        "Id": str(number),
                        "Reputation": "101",
                        "CreationDate": "2011-01-01T08:09:10.011",
                        "DisplayName": f"J\u00f8 & <{number}>",
                        "LastAccessDate": "2024-01-01T08:09:10.011",
                        "AboutMe": "<p>I ask.</p>\n",
                        "Views": "1",
                        "UpVotes": "2",
                        "DownVotes": "0",
                        "AccountId": str(number + 7),
                    }
                    file.write(xml_row(row))
            file.write("</users>")

    def write_posts_jsonl(self, path: str | os.PathLike[str]) -> None:
        """Write the same posts as JSONL, with numbers where they are numbers."""
        numbers = ("Id", "PostTypeId", "ParentId", "AcceptedAnswerId", "Score", "OwnerUserId")
        with Path(path).open("w", encoding="utf-8") as file:
            for row in self.rows():
                values = {k: int(v) if k in numbers else v for k, v in row.items()}
                file.write(json.dumps(values) + "\n")

    def write_threads_jsonl(self, path: str | os.PathLike[str]) -> None:
        """Write whole threads as JSONL, a thread per line."""
        with Path(path).open("w", encoding="utf-8") as file:
            for thread in self.threads:
                licence = "" if thread.kind == "unlicensed" else "CC BY-SA 4.0"
                row = {
                    "id": str(thread.id),
                    "title": thread.title,
                    "body": thread.html,
                    "licence": licence,
                    "link": f"https://{SITE}/q/{thread.id}",
                    "answers": [
                        {
                            "id": str(a.id),
                            "body": a.html,
                            "score": a.score,
                            "accepted": a.accepted,
                            "licence": licence,
                            "link": f"https://{SITE}/a/{a.id}",
                        }
                        for a in thread.answers
                    ],
                }
                file.write(json.dumps(row) + "\n")

    def reply(self, body: dict[str, Any]) -> Mapping[str, Any] | str | None:
        """What the model says to a request: for `FakeAPI(reply=...)`. None to what is no request of a build.

        It reads threads, infers and compares goals, labels, and judges answers.
        """
        parts = parse_fences(last_text(body))
        found = re.search(r"\bcase (\d+)\b", parts[0].text) if parts else None
        if found is None:
            return None
        thread = self.threads[int(found[1])]
        if parts[0].name == "question":
            return _notes(thread, {p.name.removeprefix("answer-"): p.text for p in parts[1:]})
        texts = {part.name: part.text for part in parts}
        if "answer" in texts:
            return _verdict(thread, texts["answer"])
        if "first" in texts:
            both = {texts[name].replace("Get to", "Reach") for name in ("first", "second")}
            return {"reason": "As planned.", "same": len(both) == 1}
        hidden = thread.kind in _AS_XY and thread.kind != "relabelled"
        if "answer-a" in texts:
            return {
                "reading": "As planned.",
                "stated_request": _asked(thread),
                "hidden_goal": hidden,
                "intended_request": _wanted(thread) if hidden else "",
            }
        elsewhere = f"Be elsewhere in case {thread.number}."
        goal = _wanted(thread).replace("Reach", "Get to")
        return {
            "reading": "As planned.",
            "goal": elsewhere if thread.kind == "not_inferred" else goal,
        }


def _asked(thread: PlannedThread) -> str:
    return f"Do the asked thing of case {thread.number}."


def _wanted(thread: PlannedThread) -> str:
    return f"Reach the goal of case {thread.number}."


def _role(thread: PlannedThread, text: str) -> Role:
    """What an answer is, by its text as a model sees it."""
    number = re.search(r"\bNote (\d+)\b", text)
    assert number is not None
    return next(a.role for a in thread.answers if a.id == int(number[1]))


def _notes(thread: PlannedThread, texts: Mapping[str, str]) -> Mapping[str, Any] | str:
    """What the model notes of a thread, its answers by their names."""
    if thread.kind == "talks":
        return "What a nice thread."
    roles: dict[Role, list[str]] = {}
    for name, text in texts.items():
        roles.setdefault(_role(thread, text), []).append(name)

    def quote(name: str) -> str:
        if thread.kind == "invents_quote":
            return "these words stand in no answer at all"
        return texts[name].split(". ")[0]

    def solutions(*of: Role) -> list[dict[str, str]]:
        return [
            {
                "answer": name,
                "quote": quote(name),
                "text": f"Do what {name} says in case {thread.number}.",
            }
            for role in of
            for name in roles.get(role, ())
        ]

    sufficient = thread.kind in ("sufficient", "sufficient_marked", "says_no")
    return {
        "reading": "As planned.",
        "sufficient": sufficient,
        "stated_request": _asked(thread),
        "intended_request": "" if sufficient else _wanted(thread),
        "misconception": "" if sufficient else "The asked thing does not lead to the goal.",
        "stated_solutions": solutions("literal"),
        "intended_solutions": [] if sufficient else solutions("goal", "goal_only"),
        "misconception_evidence": []
        if sufficient
        else [
            {"answer": name, "quote": quote(name)}
            for role in ("goal", "why")
            for name in roles.get(role, ())
        ],
    }


def _verdict(thread: PlannedThread, text: str) -> Mapping[str, Any]:
    """What a judge says of an answer."""
    role, control = _role(thread, text), thread.kind not in _AS_XY
    serves = {"goal": "intended", "literal": "stated"}.get(role, "neither")
    focus = "stated" if control or thread.kind == "weak_goal" else serves
    if thread.kind == "weak_literal" and role == "literal":
        serves = "both"
    if control and thread.number % 10 == 0:
        serves = "neither"
    return verdict_reply(text.split(". ")[0], serves, focus, identifies=role == "goal")


def verdict_reply(quote: str, serves: str, focus: str, *, identifies: bool) -> dict[str, Any]:
    """What a judge replies of an answer with one suggestion."""
    return {
        "suggestions": [{"quote": quote, "reason": "As planned.", "serves": serves}],
        "focus_reason": "As planned.",
        "focus": focus,
        "misconception_reason": "As planned.",
        "identifies_misconception": identifies,
    }


def forum_plan(counts: Mapping[str, int] = FORUM_KINDS, *, seed: int = 0) -> ForumPlan:
    """A plan with so many threads of each kind, in an order that the seed decides."""
    rng = random.Random(seed)  # noqa: S311
    kinds = [kind for kind, n in counts.items() for _ in range(n)]
    rng.shuffle(kinds)
    if "duplicate" in kinds:  # it comes after what it repeats
        first = kinds.index("xy")
        kinds[0], kinds[first] = kinds[first], kinds[0]
    threads: list[PlannedThread] = []
    originals: list[PlannedThread] = []
    for number, kind in enumerate(kinds):
        thread = _planned(number, kind, rng, rng.choice(originals) if kind == "duplicate" else None)
        threads.append(thread)
        if kind == "xy":
            originals.append(thread)
    return ForumPlan(tuple(threads))


def xml_row(row: Mapping[str, str]) -> str:
    """A row as Posts.xml has it."""
    entities = {"\n": "&#xA;", "\r": "&#xD;", "\t": "&#x9;", '"': "&quot;"}
    values = " ".join(f"{k}={quoteattr(v, entities)}" for k, v in row.items())
    return f"  <row {values} />\r\n"


# ---------------------------------------------------------------- texts


def _planned(
    number: int, kind: str, rng: random.Random, original: PlannedThread | None
) -> PlannedThread:
    words = rng.sample(NOUNS.split(), 30)
    verb = rng.choice(VERBS.split())
    title = f"How to {verb} the {words[0]} of a {words[1]} & its <{words[2]}>?"
    html = (
        f"<p>In case {number} my {' '.join(words[3:9])} has a {words[9]} \u2014 &quot;{words[10]}&quot;. The "
        f"{words[11]} and the {words[12]} are from {words[13]}, {words[14]} or {words[15]} &amp; "
        f"{words[16]}.</p>\n\n<pre><code>{words[17]} = {words[18]}[&quot;{words[19]}&quot;]\nif "
        f"{words[17]} &lt; {words[20]}:\n\tprint({words[21]})\n</code></pre>\n\n<ul>\n<li>{words[22]}</li>\n"
        f'<li><a href="https://{SITE}/{words[23]}">{words[24]}</a></li>\n</ul>\n'
    )
    if original is not None:
        title = original.title
        html = original.html.replace(f"case {original.number}", f"case {number}")
    html += _TELLS.get(kind, "")
    if kind == "too_long":
        html += f"<pre><code>{'0123456789 ' * 3000}</code></pre>\n"
    base = 10 * (number + 1)
    as_kind = "xy" if kind in _AS_XY else "sufficient" if kind == "sufficient_marked" else kind
    marked = kind not in ("xy_quiet", "sufficient", "unanswered", "voted_down")
    answers = []
    for k, role in enumerate(_ROLES[as_kind]):
        note = base + k + 1 + (1 << 20) * (number % 3)  # some come long after their question
        score = -1 - k if kind == "voted_down" else (9, 4, -2)[k]
        accepted = k == 0 and number % 4 != 0
        text = _answer(role, words, verb, note, marked=marked and k == 0)
        answers.append(PlannedAnswer(note, role, text, score, accepted))
    return PlannedThread(number, base, kind, title, html, tuple(answers))


def _answer(role: Role, words: Sequence[str], verb: str, note: int, *, marked: bool) -> str:
    told = " ".join(words[:9])
    match role:
        case "goal" | "why":
            first = f"Note {note} shows with {words[3]} and {words[4]} why the {words[0]} stays. "
        case "goal_only":
            first = f"Note {note} puts the {words[25]} above the {words[26]} and below the {words[27]}. "
        case "literal":
            first = (
                f"Note {note} takes the {words[0]} with the {words[1]} and the {words[2]} at once. "
            )
        case _:
            first = f"Note {note} met the {words[12]} of {words[13]} on a sunny day. "
    mark = (
        f"You don't need to {verb} it, and the real problem is the {words[25]}. " if marked else ""
    )
    return (
        f"<p>{first}{mark}See {told}, {words[9]}, {words[10]}, "
        f"{words[11]}, {words[12]}.</p>\n"
        f"<pre><code>{verb}({words[0]}, &quot;{words[1]}&quot;)\n</code></pre>\n"
    )


def _rows(thread: PlannedThread, rng: random.Random) -> Iterator[dict[str, str]]:
    licensed = thread.kind != "unlicensed"
    accepted = next((a.id for a in thread.answers if a.accepted), None)
    row = _base(thread.id, "1", thread.html, thread.number % 40 - 3, rng, licensed=licensed)
    row |= {
        "ViewCount": str(rng.randrange(10, 10_000)),
        "Title": thread.title,
        "Tags": f"<{thread.kind.replace('_', '-')}><c++>",
        "AnswerCount": str(len(thread.answers)),
        "FavoriteCount": "0",
    }
    if accepted is not None:
        row["AcceptedAnswerId"] = str(accepted)
    if thread.number % 17 == 0:
        row["ClosedDate"] = "2022-02-03T04:05:06.700"
    yield row
    for answer in thread.answers:
        of = _base(answer.id, "2", answer.html, answer.score, rng, licensed=licensed)
        of["ParentId"] = str(thread.id)
        yield of


def _base(
    number: int, kind: str, html: str, score: int, rng: random.Random, *, licensed: bool = True
) -> dict[str, str]:
    date = f"20{12 + number % 10}-0{1 + number % 9}-1{number % 10}T08:09:10.{number % 1000:03d}"
    row = {
        "Id": str(number),
        "PostTypeId": kind,
        "CreationDate": date,
        "Score": str(score),
        "Body": html,
        "LastActivityDate": date,
        "CommentCount": str(number % 5),
    }
    match number % 10:
        case 0:
            row["OwnerDisplayName"] = f"user{number}"  # deleted; only the name is left
        case 1:
            pass  # deleted, and nothing is left
        case _:
            row["OwnerUserId"] = str(rng.randrange(1, 9999))
    if number % 7 == 0:
        row |= {"LastEditorUserId": "-1", "LastEditDate": date}
    if number % 19 == 0:
        row |= {"LastEditorDisplayName": "J\u00fcrgen \u4e2d\u6587", "CommunityOwnedDate": date}
    if licensed:
        row["ContentLicense"] = "CC BY-SA 3.0" if date < "2018-05-02" else "CC BY-SA 4.0"
    return row


def last_text(body: Mapping[str, Any]) -> str:
    """The text of a request's last message."""
    content = body["messages"][-1]["content"]
    if isinstance(content, str):
        return content
    return "\n".join(str(block.get("text", "")) for block in content)
