"""The local judge: its figures, and what a policy under training might try on it."""

import asyncio
import json
import random
import re
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from xyreward import embedded
from xyreward.errors import DataError, JudgeError, MissingDependency
from xyreward.items import Item, Reference, items_hash
from xyreward.judges import Judge, fit_local, local
from xyreward.judges.encoder import CHUNK_CHARACTERS, MAX_CHUNKS, Encoder, Vectors, chunks
from xyreward.judges.features import features, ground
from xyreward.judges.local import LocalJudge
from xyreward.loading import bundled_splits
from xyreward.reward import Reward
from xyreward.scoring import run_sync
from xyreward.testing import make_item
from xyreward.verdict import FOCUS_VALUES, Verdict

SOFT = Reward(soft=True)
LABELS = (
    "has_stated_solution",
    "has_intended_solution",
    "focus",
    "identifies_misconception",
)

PADDING = {
    "prose": """
The history of the lighthouse goes back to the thirteenth century. Fishermen paid a small tax to
keep the fire burning through winter. Later a stone tower replaced the wooden one. Visitors can
climb its 212 steps between May and October. A museum in the former keeper's house shows lamps,
logbooks and photographs.""",
    "list": """
- Monday: football practice at six
- Wednesday: library books are due
- Thursday: grandma's birthday, buy tulips
- Friday: pizza and a film
- Saturday: visit the zoo with the neighbours""",
    "code": """
```python
def fibonacci(n):
    a, b = 0, 1
    for _ in range(n):
        a, b = b, a + b
    return a

print([fibonacci(k) for k in range(10)])
```""",
    "pleasantries": """
Thank you for reading this far. I hope you have a wonderful day! Let me know whether there is
anything else you would like. It is always a pleasure to help. Remember that every journey begins
with a single step, and take good care of yourself.""",
    "filler": """
In conclusion, these are important considerations. It is worth noting that every situation is
different. There are many factors to take into account. As mentioned above, the best approach
depends on your needs. Ultimately, the choice is yours.""",
}

STUFFING = (
    " However, instead, actually, not, but, although, rather, never, wrong, no.",
    """

However, this is actually not what you want. Instead, rather not. No, but actually never.""",
    """

The misconception is that this works. The real goal is something else. What you actually want is
different, so do that instead.""",
    """

Your stated approach is a misconception and will not help you. The intended request is to reach
your real goal, and the real solution focuses on it.""",
)


@pytest.fixture(scope="module")
def judge() -> LocalJudge:
    return LocalJudge()


def judged(judge: Judge, items: Sequence[Item], answers: Sequence[str]) -> list[Verdict]:
    verdicts = run_sync(judge.judge(items, answers))
    assert all(isinstance(verdict, Verdict) for verdict in verdicts)
    return [verdict for verdict in verdicts if isinstance(verdict, Verdict)]


def rewards(judge: Judge, items: Sequence[Item], answers: Sequence[str]) -> list[float]:
    verdicts = judged(judge, items, answers)
    return [SOFT(v, item.kind) for item, v in zip(items, verdicts, strict=True)]


def numbers(verdict: Verdict) -> list[float]:
    p = verdict.p
    return [
        p.has_stated_solution,
        p.has_intended_solution,
        *(p.focus[name] for name in FOCUS_VALUES),
        p.identifies_misconception,
    ]


def sample(items: Sequence[Item], step: int) -> list[tuple[Item, Reference]]:
    pairs = [(item, reference) for item in items for reference in item.references]
    return pairs[::step]


def test_it_is_a_judge_and_says_which(judge: LocalJudge, mini: list[Item]) -> None:
    assert isinstance(judge, Judge)
    assert judge.name == "local"
    assert re.fullmatch(r"local-2-[0-9a-f]{12}", judge.rubric_version)
    (verdict,) = judged(judge, mini[:1], [mini[0].references[0].text])
    assert (verdict.judge, verdict.rubric_version) == (judge.name, judge.rubric_version)
    assert verdict.grounded
    assert verdict.cost_usd == 0.0
    assert verdict.reason.startswith("most like: ")


# ---------------------------------------------------------------- figures


def test_figures_in_the_file_are_those_of_the_shipped_head_on_the_test_items(
    judge: LocalJudge, mini: list[Item]
) -> None:
    test = bundled_splits().select(mini, "test")
    pairs = [(i, r, r.labels) for i in test for r in i.references if r.labels is not None]
    verdicts = judged(judge, [i for i, _, _ in pairs], [r.text for _, r, _ in pairs])
    shipped = local.head_file()["figures"]["test"]

    for name in LABELS:
        hits = [
            getattr(v, name) == getattr(labels, name)
            for (_, _, labels), v in zip(pairs, verdicts, strict=True)
        ]
        expected = shipped["agreement"]["all"][name]
        assert expected["n"] == len(hits)
        # One answer in a thousand may fall the other way on another CPU.
        assert np.mean(hits) == pytest.approx(expected["value"], abs=1e-3 + 1 / len(hits))

    by_item: dict[str, dict[str, float]] = defaultdict(dict)
    for (item, reference, _), verdict in zip(pairs, verdicts, strict=True):
        by_item[item.id][str(reference.kind)] = SOFT(verdict, item.kind)
    wins = [r["goal_focused"] > r["literal"] for r in by_item.values() if "literal" in r]
    expected = shipped["ranking"]["goal_focused above literal"]
    assert expected["n"] == len(wins)
    assert np.mean(wins) == pytest.approx(expected["value"], abs=1 / len(wins))


def test_the_shipped_head_reaches_its_aims() -> None:
    for side in ("out_of_fold", "test"):
        shown = local.head_file()["figures"][side]
        agreement = {name: cell["value"] for name, cell in shown["agreement"]["all"].items()}
        assert agreement["has_stated_solution"] >= 0.90
        assert agreement["has_intended_solution"] >= 0.90
        assert agreement["identifies_misconception"] >= 0.87
        assert agreement["focus"] >= 0.82
        for name, cell in shown["ranking"].items():
            aim = {"goal_focused above literal": 0.97, "goal_focused above balanced": 0.80}
            assert cell["value"] >= aim.get(name, 0.90), name


def test_head_file_says_what_it_was_fitted_on(mini: list[Item]) -> None:
    data = local.head_file()
    assert data["items_hash"] == items_hash(mini), f"the items changed: run {fit_local.FIT_COMMAND}"
    assert data["splits_hash"] == bundled_splits().hash
    assert fit_local.HEAD_FILE.stat().st_size < 150_000
    assert fit_local.to_text(data) == fit_local.HEAD_FILE.read_text("utf-8")
    for kind, head in data["heads"].items():
        assert len(head["weights"]) == len(head["classes"]), kind
        assert {len(row) for row in head["weights"]} == {len(head["features"])}, kind


# ---------------------------------------------------------------- what a policy might try


def test_off_topic_padding_never_raises_the_reward(judge: LocalJudge, mini: list[Item]) -> None:
    pairs = sample(mini, 11)
    assert len(pairs) >= 80
    items, answers = [], []
    for item, reference in pairs:
        items += [item] * (1 + 2 * len(PADDING))
        answers.append(reference.text)
        for padding in PADDING.values():
            times = -(-2 * len(reference.text) // len(padding))  # to three times the length
            text = "\n\n".join([padding] * times)
            answers += [f"{reference.text}\n\n{text}", f"{text}\n\n{reference.text}"]
    table = np.array(rewards(judge, items, answers)).reshape(len(pairs), -1)
    rise = table[:, 1:] - table[:, :1]
    assert rise.max() <= 1e-6


def literal_answers(items: Sequence[Item]) -> list[tuple[Item, str]]:
    found = [(item, item.reference("literal")) for item in items]
    return [(item, reference.text) for item, reference in found if reference is not None]


def test_stuffing_with_cue_words_and_keywords_does_not_pay(
    judge: LocalJudge, mini: list[Item]
) -> None:
    literal = literal_answers(mini[::6])
    assert len(literal) >= 20
    items = [item for item, _ in literal for _ in range(1 + len(STUFFING))]
    answers = [f"{text}{more}" for _, text in literal for more in ("", *STUFFING)]
    table = np.array(rewards(judge, items, answers)).reshape(len(literal), -1)
    rise = table[:, 1:] - table[:, :1]
    assert rise.mean(axis=0).max() <= 0.05
    assert rise.max() <= 0.05


def test_saying_the_question_again_or_naming_the_goal_hardly_pays(
    judge: LocalJudge, mini: list[Item]
) -> None:
    """On average: a few answers gain more than that, which the gates do not rule out."""
    literal = literal_answers(mini[::6])
    items = [item for item, _ in literal for _ in range(3)]
    answers = [
        f"{text}{more}"
        for item, text in literal
        for more in ("", f"\n\n{item.query_text}", f"\n\nYour goal: {item.intended_request}")
    ]
    plain, echo, goal = np.array(rewards(judge, items, answers)).reshape(-1, 3).T
    assert (echo - plain).mean() <= 0.05
    assert (goal - plain).mean() <= 0.05


def test_sentences_of_the_question_in_any_order_are_worth_nothing(
    judge: LocalJudge, mini: list[Item]
) -> None:
    """Fragments join other neighbours when shuffled, so the chunks are none of the question's own."""
    items = mini[::8]
    answers = []
    for item in items:
        deal = random.Random(item.id)
        sentences = chunks(item.query_text)
        answers.append(
            " ".join(s for _ in range(20) for s in deal.sample(sentences, len(sentences)))
        )
    found = rewards(judge, items, answers)
    assert np.mean(found) <= 0.02
    assert max(found) <= 0.15


def test_saying_why_it_will_not_help_is_no_solution(judge: LocalJudge, mini: list[Item]) -> None:
    """It may count as identifying the misconception, which is a third of the reward."""
    literal = literal_answers(mini[::4])
    items = [item for item, _ in literal for _ in range(2)]
    answers = [t for i, text in literal for t in (i.misconception, f"{text}\n\n{i.misconception}")]
    verdicts = judged(judge, items, answers)
    assert np.mean([v.has_intended_solution for v in verdicts]) <= 0.03
    assert np.mean([SOFT(v, "xy") for v in verdicts]) <= 0.36
    assert max(SOFT(v, "xy") for v in verdicts) <= 0.60


def test_what_a_reader_cannot_see_does_not_matter(judge: LocalJudge, mini: list[Item]) -> None:
    for item in mini[::40]:
        text = item.references[0].text
        hidden = "\u200b".join(text)
        wide = re.sub("[a-zA-Z]", lambda m: chr(ord(m[0]) + 0xFEE0), text)  # full-width letters
        plain, *others = judged(judge, [item] * 3, [text, hidden, wide])
        for other in others:
            assert numbers(other) == pytest.approx(numbers(plain), abs=1e-6)


def test_repeating_the_answer_changes_nothing(judge: LocalJudge, mini: list[Item]) -> None:
    for item, reference in sample(mini, 200):
        once, thrice = judged(
            judge, [item] * 2, [reference.text, "\n\n".join([reference.text] * 3)]
        )
        assert numbers(thrice) == pytest.approx(numbers(once), abs=1e-6)


# ---------------------------------------------------------------- any text


ODD = {
    "ok": "ok",
    "question mark": "?",
    "emoji": "👍🏽🎉",
    "only code": "```\nls -la\n```",
    "empty fence": "```\n```",
    "unclosed fence": "Run this:\n```bash\necho hello",
    "chinese": "先别换硬盘。日志文件被删除了。进程还占着它。所以空间没有释放。重启那个服务就行了。",
    "arabic": "لا تحذف الملف. أعد تشغيل الخدمة حتى تتحرر المساحة على القرص.",
    "hebrew": "אל תמחק את הקובץ. הפעל מחדש את השירות.",
    "lone surrogate": "broken \ud83d text",
    "null": "a\x00b\x00c",
    "one long word": "x" * 5000,
    "zero width": "\u200b\u200b",
    "line ends": "one\r\ntwo\rthree\u2028four",
}


@pytest.mark.parametrize("answer", ODD.values(), ids=ODD)
def test_odd_text_gets_valid_probabilities(
    judge: LocalJudge, mini: list[Item], answer: str
) -> None:
    kinds = {item.kind: item for item in mini}
    for verdict in judged(judge, list(kinds.values()), [answer] * len(kinds)):
        assert all(0.0 <= number <= 1.0 for number in numbers(verdict))
        assert sum(verdict.p.focus.values()) == pytest.approx(1.0)


def test_an_answer_that_says_nothing_gets_nothing(judge: LocalJudge, mini: list[Item]) -> None:
    items = mini[::12]
    assert max(rewards(judge, items, ["ok"] * len(items))) < 0.15


def test_a_very_long_answer_costs_a_bounded_amount(judge: LocalJudge, mini: list[Item]) -> None:
    long = " ".join(f"Sentence number {i} says that {i * i} is a square." for i in range(2_500))
    assert len(long) > 100_000
    assert len(chunks(long)) == MAX_CHUNKS
    for text in (long, "y" * 100_000, "\n" * 100_000 + "end", "`" * 100_000, "a. " * 40_000):
        started = time.thread_time()
        assert 1 <= len(chunks(text)) <= MAX_CHUNKS
        assert time.thread_time() - started < 2.0
    assert len(judged(judge, mini[:1], [long])) == 1


def test_marks_of_code_decide_nothing() -> None:
    """Else a stray one would turn all that follows into code."""
    answer = (
        "Stop the service first. Then run this:\n\n```bash\nsystemctl restart web\n```\n\nDone."
    )
    for mark in ("```", "~~~", "````\n~~~", "```python"):
        assert chunks(f"{mark}\n\n{answer}") == chunks(answer)
    assert chunks("```ls -la /var/log``` lists it") == ["```ls -la /var/log``` lists it"]


def weights(item: Item, text: str) -> dict[str, float]:
    """What an answer has in the two features that say how much of it counts."""
    texts = chunks(text)
    named = features(ground(item, word_vectors), texts, word_vectors(texts))
    return {name: named[name] for name in ("evidence", "about")}


def test_a_quoted_question_counts_for_nothing_whatever_introduces_it(mini: list[Item]) -> None:
    for item in mini[::30]:
        for asked in (item.stated_request, item.intended_request):
            said = weights(item, f"It comes to this: {asked}")
            assert said == {"evidence": 0.0, "about": 0.0}, item.id


def test_in_other_languages_a_chunk_needs_words_of_the_item(mini: list[Item]) -> None:
    """The encoder finds texts alike for their language; these vectors find all texts alike."""

    def alike(texts: Sequence[str]) -> Vectors:
        rows = word_vectors(texts) * 0.7
        rows[:, 0] += 0.7
        return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True))

    strange = {
        "zh": "今天天气很好，我们去公园散步。",
        "es": "Me gustan mucho los helados de fresa.",
    }
    for language, text in strange.items():
        item = next(i for i in mini if i.language == language and i.kind == "xy")
        for answer, counts in [(text, False), (item.intended_solutions[0], True)]:
            named = features(ground(item, alike), [answer], alike([answer]))
            assert (named["evidence"] > 0) == counts, answer


def test_a_code_block_is_not_one_sentence() -> None:
    code = "\n".join(f"value_{i} = compute_something({i}) + {i}" for i in range(60))
    pieces = chunks(f"Use this:\n\n```python\n{code}\n```\n\nThen run it.")
    assert len(pieces) > 10
    assert max(len(piece) for piece in pieces) <= CHUNK_CHARACTERS
    assert pieces[0] == "Use this:"
    assert pieces[-1] == "Then run it."
    assert not any("```" in piece for piece in pieces)


def test_paragraphs_are_divided_independently() -> None:
    answer = "Sure.\n\n- First do this thing here\n- Ok"
    assert chunks(f"{answer}\n\nAnother paragraph.") == [*chunks(answer), "Another paragraph."]


# ---------------------------------------------------------------- protocol


def test_the_batch_does_not_matter(judge: LocalJudge, mini: list[Item]) -> None:
    pairs = sample(mini, 60)
    together = judged(judge, [i for i, _ in pairs], [r.text for _, r in pairs])
    for (item, reference), verdict in zip(pairs, together, strict=True):
        (alone,) = judged(judge, [item], [reference.text])
        assert numbers(alone) == pytest.approx(numbers(verdict), abs=1e-5)


def test_a_control_has_one_solution_label(judge: LocalJudge, mini: list[Item]) -> None:
    controls = [item for item in mini if item.kind == "control"][:6]
    for verdict in judged(judge, controls, [i.references[0].text for i in controls]):
        assert verdict.p.has_intended_solution == verdict.p.has_stated_solution
        assert verdict.has_intended_solution == verdict.has_stated_solution


def test_without_grounding_it_refuses_and_says_what_is_missing(judge: LocalJudge) -> None:
    item = make_item(id="bare", stated_solutions=(), intended_solutions=())
    with pytest.raises(JudgeError, match=r"'bare' has no stated_solutions.*needs this grounding"):
        run_sync(judge.judge([item], ["Sleep more."]))


def test_one_side_of_solutions_is_enough(judge: LocalJudge) -> None:
    item = make_item(stated_solutions=())
    assert len(judged(judge, [item], ["Go to bed earlier on Sundays."])) == 1


def test_lists_of_different_length_are_refused(judge: LocalJudge) -> None:
    with pytest.raises(ValueError, match="1 items and 2 answers"):
        run_sync(judge.judge([make_item()], ["a", "b"]))


def test_without_torch_the_message_is_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingDependency, match=r"torch: pip install 'xyreward\[local\]'"):
        Encoder()


@pytest.mark.parametrize("name", ["tokenizer.json", "vocab.txt", "config.json"])
def test_an_encoder_with_another_file_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    for file in embedded.encoder_dir().iterdir():
        (folder / file.name).symlink_to(file)
    monkeypatch.setattr(embedded, "_package_dir", lambda package: tmp_path)
    assert embedded.encoder_dir.__wrapped__() == folder
    (folder / name).unlink()
    (folder / name).write_text("{}", "utf-8")
    with pytest.raises(DataError, match=f"{name}: sha256 is .* expected .*pip install --no-deps"):
        embedded.encoder_dir.__wrapped__()


def test_the_event_loop_stays_free(judge: LocalJudge, mini: list[Item]) -> None:
    async def main() -> int:
        work = asyncio.create_task(judge.judge(mini[:8], [i.references[0].text for i in mini[:8]]))
        ticks = 0
        while not work.done():
            await asyncio.sleep(0.001)
            ticks += 1
        return ticks

    assert asyncio.run(main()) > 3


def test_threads_may_share_it(judge: LocalJudge, mini: list[Item]) -> None:
    items = mini[:6]
    answers = [item.references[0].text for item in items]
    expected = [numbers(v) for v in judged(judge, items, answers)]
    found: list[list[list[float]]] = []

    def work() -> None:
        found.append([numbers(v) for v in judged(judge, items, answers)])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    for one in found:
        assert np.allclose(one, expected, atol=1e-5)


def test_few_items_are_kept(mini: list[Item], monkeypatch: pytest.MonkeyPatch) -> None:
    judge = LocalJudge()
    monkeypatch.setattr(local, "KEPT_ITEMS", 2)
    judged(judge, mini[:4], ["ok"] * 4)
    assert len(judge._groundings) == 2


# ---------------------------------------------------------------- fitting


def word_vectors(texts: Sequence[str]) -> Vectors:
    """A stand-in for the encoder: a bag of hashed words. Deterministic, no model."""
    rows = np.zeros((len(texts), 384), dtype=np.float32)
    for i, text in enumerate(texts):
        for word in re.findall(r"\w+", text.lower()):
            rows[i, sum(word.encode()) * 31 % 384] += 1
    return np.asarray(rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-9))


def test_fitting_twice_writes_the_same_bytes(mini: list[Item]) -> None:
    items = mini[::4]
    splits = bundled_splits()
    first, second = (
        fit_local.to_text(fit_local.fit(order, splits, word_vectors))
        for order in (items, list(items))
    )
    assert first == second
    assert json.loads(first)["heads"]["xy"]["features"]


def test_features_have_fixed_names_and_no_trace_of_irrelevant_text(mini: list[Item]) -> None:
    item = next(item for item in mini if item.kind == "xy")
    grounding = ground(item, word_vectors)
    names = [list(features(grounding, t, word_vectors(t))) for t in (["zzz qqq"], ["the disk"])]
    assert names[0] == names[1]
    nothing = features(grounding, ["zzz qqq"], word_vectors(["zzz qqq"]))
    statics = {"closeness_solutions", "closeness_requests"}
    assert all(value == 0 for name, value in nothing.items() if name not in statics)


def test_check_says_when_the_file_is_out_of_date(
    mini: list[Item],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    data = dict(local.head_file())
    file = tmp_path / "local_head.json"
    file.write_text(fit_local.to_text(data), "utf-8")
    monkeypatch.setattr(fit_local, "HEAD_FILE", file)
    monkeypatch.setattr(fit_local, "fit", lambda items, splits, encode: data)
    assert fit_local.main(["--check"]) == 0
    assert "agreement, xy" in capsys.readouterr().out

    file.write_text(fit_local.to_text(data | {"items_hash": "other"}), "utf-8")
    assert fit_local.main(["--check"]) == 1
    assert "items_hash differs" in capsys.readouterr().err

    heads = json.loads(json.dumps(data["heads"]))
    heads["control"]["weights"][0][0] += 2 * fit_local.TOLERANCE
    file.write_text(fit_local.to_text(data | {"heads": heads}), "utf-8")
    assert fit_local.main(["--check"]) == 1
    assert "heads.control differs" in capsys.readouterr().err
