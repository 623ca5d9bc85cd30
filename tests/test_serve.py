"""The reward service: a real process, real HTTP, and clients that behave badly."""

import asyncio
import base64
import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from serving import TOKEN, Served, script, serve, until

from xyreward import score
from xyreward.errors import ConfigError, StoreError
from xyreward.items import DEFAULT_LABELS, Item
from xyreward.judges.scripted import ScriptedJudge
from xyreward.loading import bundled_splits, load_items
from xyreward.reward import Reward
from xyreward.serve.app import Service
from xyreward.serve.forms import ErrorResponse, OpenRLHFResponse, ScoreResponse
from xyreward.serve.server import bind, run
from xyreward.serve.settings import Settings
from xyreward.store import VerdictStore
from xyreward.testing import FakeAPI, Faults, make_item
from xyreward.verdict import FAILURE_KINDS

GOOD = {
    "has_stated_solution": False,
    "has_intended_solution": True,
    "focus": "intended",
    "identifies_misconception": True,
}
BAD = {
    "has_stated_solution": True,
    "has_intended_solution": False,
    "focus": "stated",
    "identifies_misconception": False,
}
SCRIPT: list[dict[str, Any]] = [
    {"answer": "good", "labels": GOOD},
    {"answer": "bad", "labels": BAD},
    *({"answer": kind, "failure": kind, "detail": f"it was {kind}"} for kind in FAILURE_KINDS),
]


def of_side(side: Any) -> list[Item]:
    return list(bundled_splits().select(load_items("mini"), side))


TRAIN, TEST = of_side("train"), of_side("test")
XY = next(item for item in TRAIN if item.kind == "xy")


@pytest.fixture(scope="module", autouse=True)
def _environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XYREWARD_STORE", str(tmp_path_factory.mktemp("store") / "v.sqlite"))
        patch.setenv("NO_PROXY", "*")
        for name in ("XYREWARD_RUN", "TORCHELASTIC_RUN_ID", "XYREWARD_SERVE_TOKEN"):
            patch.delenv(name, raising=False)
        yield


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> str:
    return script(tmp_path_factory.mktemp("script") / "script.jsonl", SCRIPT)


@pytest.fixture(scope="module")
def served(judge: str) -> Iterator[Served]:
    with serve("--judge", judge) as running:
        yield running


def row(answer: str, **more: Any) -> dict[str, Any]:
    return {"item_id": XY.id, "answer": answer, **more}


def error_of(body: Any, kind: str) -> Any:
    found = ErrorResponse.model_validate(body).error
    assert found.type == kind, body
    return found


# ---------------------------------------------------------------- what it is for


def test_scores_are_those_of_score_in_the_order_of_the_rows(served: Served, judge: str) -> None:
    control = next(item for item in TRAIN if item.kind == "control")
    own = make_item(id="mine")
    rows: list[dict[str, Any]] = [
        row("good"),
        row("bad"),
        {"item_id": control.id, "answer": "bad"},
        {"item": own.model_dump(mode="json"), "answer": "good"},
    ]
    status, body, _ = served.ask("/score", {"rows": rows})
    assert status == 200, body
    found = ScoreResponse.model_validate(body)
    expected = score(
        [XY, XY, control, own],
        ["good", "bad", "bad", "good"],
        ScriptedJudge.from_file(judge.removeprefix("scripted:")),
        Reward(soft=True),
    )
    assert [r.reward for r in found.results] == [s.reward for s in expected]
    assert [r.metrics for r in found.results] == [s.metrics for s in expected]
    assert found.results[0].reward == 1.0
    assert found.results[1].reward == 0.0
    assert (found.judge, found.soft) == (judge, True)


def test_an_empty_answer_is_worth_nothing_and_asks_nobody(served: Served) -> None:
    status, body, _ = served.ask("/score", {"rows": [row(" \n")]})
    assert status == 200
    assert body["results"][0]["reward"] == 0.0
    assert body["results"][0]["flags"] == ["empty_answer"]


@pytest.mark.parametrize("kind", [k for k in FAILURE_KINDS if k != "over_budget"])
def test_a_failed_verdict_is_503_and_never_a_number(served: Served, kind: str) -> None:
    for path, body in (
        ("/score", {"rows": [row("good"), row(kind)]}),
        (
            "/get_reward",
            {"query": ["Q: good", f"Q: {kind}"], "prompts": ["Q: "] * 2, "labels": [XY.id] * 2},
        ),
    ):
        status, answer, headers = served.ask(path, body)
        assert status == 503
        assert int(headers["retry-after"]) >= 1
        found = error_of(answer, "judge_failed")
        assert [(f.index, f.kind, f.detail) for f in found.failures] == [
            (1, kind, f"it was {kind}")
        ]
        assert "reward" not in answer
        assert "results" not in answer


def test_openrlhf_gets_what_it_reads(served: Served) -> None:
    prompt = "<|im_start|>user\nWhat now?<|im_end|>\n<|im_start|>assistant\n"
    body = {
        "query": [
            f"{prompt}good<|im_end|>\n",
            f"<s>{prompt}<think>\nbad, no?</think>\n\ngood<|im_end|><|endoftext|><|endoftext|>",
            f"{prompt}bad<|im_end|>",
            f"{prompt}<think>I never come to an end",
        ],
        "prompts": [prompt] * 4,
        "labels": [XY.id, make_item(id="mine").model_dump_json(), XY.id, XY.id],
        "of_a_later_release": 1,
    }
    status, answer, _ = served.ask("/get_reward", body)
    assert status == 200, answer
    found = OpenRLHFResponse.model_validate(answer)
    assert found.rewards == found.scores == [1.0, 1.0, 0.0, 0.0]
    assert found.extra_logs["xy_solution"] == [1.0, 1.0, 0.0, 0.0]
    assert all(len(values) == 4 for values in found.extra_logs.values())


def test_openrlhf_is_told_what_its_data_lack(served: Served) -> None:
    fine = {"query": ["Q good"], "prompts": ["Q "], "labels": [XY.id]}
    for change, said in (
        ({"labels": [""]}, "--data.label_key item_id"),
        ({"labels": ["nobody"]}, "no item 'nobody'"),
        ({"labels": ["{not json"]}, "neither an id nor JSON"),
        ({"labels": ['{"id": "x"}']}, "the label is no item: query"),
        ({"labels": [{"id": "x", "query": "y"}]}, "the label is no item"),
        ({"prompts": ["another prompt"]}, "does not begin with its prompt"),
        ({"labels": [XY.id] * 2}, "expected as many"),
    ):
        status, body, _ = served.ask("/get_reward", fine | change)
        assert status == 422
        assert said in error_of(body, "invalid_request").message, body


# ---------------------------------------------------------------- items


def test_held_out_items_are_refused_in_every_form(served: Served, judge: str) -> None:
    held_out = TEST[0]
    changed = held_out.model_copy(update={"id": "a-new-name", "stated_solutions": ("Other.",)})
    for body in (
        {"item_id": held_out.id, "answer": "good"},
        {"item": changed.model_dump(mode="json"), "answer": "good"},
        {"query": held_out.query_text, "answer": "good"},
    ):
        status, answer, _ = served.ask("/score", {"rows": [body]})
        assert status == 422
        assert "held out for evaluation" in error_of(answer, "invalid_request").message
    with serve("--judge", judge, "--split", "all") as everything:
        status, answer, _ = everything.ask(
            "/score", {"rows": [{"item_id": held_out.id, "answer": "good"}]}
        )
        assert status == 200


def test_who_serves_the_dev_side_serves_no_test_items(judge: str) -> None:
    dev, test, train = of_side("dev")[0], of_side("test")[0], of_side("train")[0]
    with serve("--judge", judge, "--split", "dev") as served:
        for body, expected in (
            ({"item_id": dev.id}, 200),
            ({"item_id": test.id}, 422),
            ({"item": test.model_dump(mode="json")}, 422),
            ({"item": train.model_dump(mode="json")}, 200),
        ):
            status, answer, _ = served.ask("/score", {"rows": [{**body, "answer": "good"}]})
            assert status == expected, body
            if status == 422:
                assert "held out" in error_of(answer, "invalid_request").message


def test_what_a_judge_cannot_judge_is_told_before_anything_waits(served: Served) -> None:
    status, body, _ = served.ask("/score", {"rows": [{"query": "How?", "answer": "good"}]})
    assert status == 422
    assert "cannot infer what a bare query is after" in error_of(body, "invalid_request").message


def test_near_misses_of_ids_are_named_and_all_problems_at_once(served: Served) -> None:
    rows = [{"item_id": XY.id + "x", "answer": "good"}, row("good"), {"item_id": "?", "answer": ""}]
    status, body, _ = served.ask("/score", {"rows": rows})
    assert status == 422
    found = error_of(body, "invalid_request")
    assert [problem.where for problem in found.problems] == ["rows.0.item_id", "rows.2.item_id"]
    assert f"did you mean '{XY.id}'?" in found.problems[0].message


# ---------------------------------------------------------------- malformed


SECRET = "what-nobody-else-may-read"


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (b"", 422, "the body"),
        (b"{", 400, "no JSON"),
        (b"\xff\xfe", 400, "no JSON"),
        (b"[" * 100_000, 400, "no JSON"),
        (b'{"rows": NaN}', 400, "NaN is not a number"),
        (b'{"rows": [], "rows": []}', 422, "twice"),
        (b'{"rows": []}', 422, "rows"),
        (b'{"rows": {}}', 422, "rows"),
        (b"[]", 422, "the body"),
        (b"null", 422, "the body"),
        (b'{"rows": [{"item_id": "x", "answer": 1}]}', 422, "rows.0.answer"),
        (b'{"rows": [{"item_id": "x", "answer": "\\ud800"}]}', 400, "surrogates not allowed"),
        (b'{"rows": [{"item_id": "x"}]}', 422, "rows.0.answer"),
        (b'{"rows": [{"answer": "x"}]}', 422, "rows.0.item_id"),
        (b'{"rows": [{"item_id": "x", "answer": "", "item": {}}]}', 422, "rows.0.item"),
        (b'{"rows": [{"item_id": "x", "answer": "", "aswer": ""}]}', 422, "rows.0.aswer"),
        (b'{"rows": [{"item": {"id": "x"}, "answer": ""}]}', 422, "rows.0.item.query"),
        (b'{"rows": [{"query": [], "answer": ""}]}', 422, "rows.0.query"),
        (b'{"rows": [{"query": "", "answer": ""}]}', 422, "rows.0.query"),
        (b'{"rows": [{"query": [{"role": "x"}], "answer": ""}]}', 422, "rows.0.query.0.role"),
        (b'{"row": []}', 422, "row"),
        (b'{"a":' * 70 + b"1" + b"}" * 70, 422, "deep"),
        (json.dumps({"rows": [SECRET]}).encode(), 422, "rows.0"),
        (json.dumps({"rows": SECRET}).encode(), 422, "rows"),
    ],
)
def test_malformed_bodies_are_told_what_is_wrong_and_not_repeated(
    served: Served, body: bytes, status: int, said: str
) -> None:
    found, answer, _ = served.ask("/score", body)
    assert found == status, answer
    error = error_of(answer, "bad_json" if status == 400 else "invalid_request")
    assert said in error.message + "".join(p.where for p in error.problems), answer
    assert SECRET not in json.dumps(answer)


def test_a_body_that_does_not_say_it_is_json_is_not_read_as_such(served: Served) -> None:
    # A page in a browser may send text/plain to anywhere without asking first.
    fine = json.dumps({"rows": [row("good")]}).encode()
    for content_type in ("text/plain", "application/x-www-form-urlencoded"):
        status, body, _ = served.ask("/score", fine, headers={"Content-Type": content_type})
        assert status == 422
        assert "Content-Type: application/json" in error_of(body, "invalid_request").message


def test_too_many_answers_are_named(judge: str) -> None:
    with serve("--judge", judge, "--max-answers", "2") as small:
        status, body, _ = small.ask("/score", {"rows": [row("good")] * 3})
        assert status == 422
        assert (
            "has 3 entries, and a request may have 2" in error_of(body, "invalid_request").message
        )
        assert small.ask("/score", {"rows": [row("good")] * 2})[0] == 200


def test_other_paths_and_methods(served: Served) -> None:
    status, body, _ = served.ask("/nothing")
    assert status == 404
    assert "/score" in error_of(body, "not_found").message
    status, body, headers = served.ask("/score")
    assert (status, headers["allow"]) == (405, "POST")
    error_of(body, "method_not_allowed")


# ---------------------------------------------------------------- size, memory, time


def test_oversized_bodies_are_413_however_they_are_sent(judge: str) -> None:
    with serve("--judge", judge, "--max-body-bytes", "20000") as small:
        status, body, _ = small.ask("/score", b"x" * 20_001)
        assert status == 413
        assert "more than 20000 bytes" in error_of(body, "body_too_large").message
        # Announced, and not sent.
        with socket.create_connection((small.host, small.port), 10) as wire:
            wire.sendall(
                b"POST /score HTTP/1.1\r\nHost: localhost\r\nContent-Length: 999999999999\r\n\r\n"
            )
            assert wire.recv(1000).startswith(b"HTTP/1.1 413 ")
        # Not announced: in chunks, without an end.
        with socket.create_connection((small.host, small.port), 10) as wire:
            wire.sendall(
                b"POST /score HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
            )
            for _ in range(3):
                wire.sendall(b"2710\r\n" + b"x" * 10_000 + b"\r\n")
            assert wire.recv(1000).startswith(b"HTTP/1.1 413 ")
        before = memory(small)
        # A client that sends it all before it listens hears it too.
        connection = HTTPConnection(small.host, small.port, timeout=60)
        connection.request("POST", "/score", b"x" * 100_000_000)
        assert connection.getresponse().status == 413
        connection.close()
        assert memory(small) - before < 30_000_000
        assert small.ask("/score", {"rows": [row("good")]})[0] == 200


def memory(served: Served) -> int:
    """Bytes that the process has in memory now."""
    text = Path(f"/proc/{served.process.pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", text)
    assert found is not None
    return 1024 * int(found[1])


def test_what_is_held_of_all_requests_is_bounded(judge: str) -> None:
    limits = ["--max-body-bytes", "50000", "--max-held-bytes", "100000"]
    with serve("--judge", judge, *limits) as small:
        open_ones = []
        for _ in range(2):
            wire = socket.create_connection((small.host, small.port), 10)
            wire.sendall(
                b"POST /score HTTP/1.1\r\nHost: localhost\r\nContent-Length: 49000\r\n\r\n"
                + b"x" * 48_000
            )
            open_ones.append(wire)
        held = "xyreward_serve_held_bytes 96000.0"
        until(lambda: held in small.ask("/metrics")[1])
        status, body, headers = small.ask("/score", b"x" * 10_000)
        assert status == 429
        assert "96000 bytes of requests are being answered" in error_of(body, "queue_full").message
        assert "retry-after" in headers
        for wire in open_ones:
            wire.close()
        until(lambda: "xyreward_serve_held_bytes 0.0" in small.ask("/metrics")[1])
        assert small.ask("/score", {"rows": [row("good")]})[0] == 200


def test_a_body_that_does_not_come_is_408(judge: str) -> None:
    with (
        serve("--judge", judge, "--read-s", "0.3") as impatient,
        socket.create_connection((impatient.host, impatient.port), 10) as wire,
    ):
        wire.sendall(b"POST /score HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n{")
        assert wire.recv(1000).startswith(b"HTTP/1.1 408 ")
        # Nor is a head waited for, from the start or after a request that was answered.
        for first in (b"", b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"):
            with socket.create_connection((impatient.host, impatient.port), 10) as silent:
                if first:
                    silent.sendall(first)
                    assert silent.recv(1000).startswith(b"HTTP/1.1 200 ")
                silent.sendall(b"GET /hea")
                while silent.recv(1000):
                    pass


# ---------------------------------------------------------------- who may ask


def test_with_a_token_nobody_else_is_answered(judge: str) -> None:
    with serve("--judge", judge, environment={"XYREWARD_SERVE_TOKEN": f"{TOKEN}\n"}) as guarded:
        body = {"rows": [row("good")]}
        assert TOKEN not in "".join(guarded.stderr)
        assert "for whoever has the token" in guarded.begun
        assert guarded.ask("/score", body, token=TOKEN)[0] == 200
        password = base64.b64encode(f"xyreward:{TOKEN}".encode()).decode()
        right = {"Authorization": f"Basic {password}"}
        assert guarded.ask("/score", body, headers=right)[0] == 200
        nobody = base64.b64encode(b"xyreward:").decode()
        for given in (
            "",
            "Bearer",
            "Bearer ",
            f"Bearer {TOKEN}x",
            f"Bearer {TOKEN[:-1]}",
            f"Bearer {TOKEN.upper()}",
            TOKEN,
            f"Basic {TOKEN}",
            f"Basic {nobody}",
            "Basic \xff",
            "Bearer \xff",
        ):
            for path in ("/score", "/get_reward", "/nothing"):
                status, answer, headers = guarded.ask(
                    path, body, headers={"Authorization": given.encode("latin-1").decode("latin-1")}
                )
                assert status == 401, given
                assert headers["www-authenticate"].startswith("Bearer")
                error_of(answer, "unauthorized")
        assert guarded.ask("/metrics")[0] == guarded.ask("/openapi.json")[0] == 401
        assert guarded.ask("/health")[0] == guarded.ask("/ready")[0] == 200
        assert guarded.ask("/metrics", token=TOKEN)[0] == 200


def test_without_a_token_only_names_of_this_machine_are_answered(served: Served) -> None:
    body = {"rows": [row("good")]}
    for host in ("localhost", "LOCALHOST:1", "127.0.0.1:8123", "[::1]:8123", "127.1.2.3"):
        assert served.ask("/score", body, headers={"Host": host})[0] == 200, host
    for host in ("evil.example", "localhost.evil.example", "10.0.0.1", "", "::1.evil", "[evil]"):
        status, answer, _ = served.ask("/score", body, headers={"Host": host})
        assert status == 403, host
        error_of(answer, "wrong_host")


def refused(*arguments: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "xyreward", "serve", "--port", "0", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **environment},
    )
    assert done.returncode == 2, done
    assert "Traceback" not in done.stderr
    return done.stderr


def test_it_refuses_to_listen_elsewhere_without_a_token(judge: str, tmp_path: Path) -> None:
    for host in ("0.0.0.0", "::"):
        said = refused("--judge", judge, "--host", host)
        assert "there is no token" in said
        assert "secrets.token_urlsafe" in said
    for host in ("no.such.host.invalid", ""):
        assert "is no address of this machine" in refused("--host", host)
    with serve("--judge", judge, "--host", "0.0.0.0", environment={"XYREWARD_SERVE_TOKEN": TOKEN}):
        pass
    file = tmp_path / "token"
    file.write_text(TOKEN)
    file.chmod(0o644)
    assert f"others may read it; run: chmod 600 {file}" in refused("--token-file", str(file))
    file.chmod(0o600)
    with serve("--judge", judge, "--token-file", str(file)) as guarded:
        assert guarded.ask("/metrics", token=TOKEN)[0] == 200
    assert "both" in refused("--token-file", str(file), XYREWARD_SERVE_TOKEN=TOKEN)
    file.write_text("\n")
    assert "is blank" in refused("--token-file", str(file))
    assert "cannot be read" in refused("--token-file", str(tmp_path / "none"))
    assert "has 5 characters" in refused(XYREWARD_SERVE_TOKEN="short")
    assert "is blank" in refused(XYREWARD_SERVE_TOKEN="")


def test_the_address_may_be_taken_while_the_judge_is_loaded() -> None:
    bound = bind(Settings(port=0))
    settings = Settings(port=bound.getsockname()[1])
    service = Service(ScriptedJudge({}), items=[make_item()], settings=settings)
    with bound, bind(settings) as other:
        other.listen()
        with pytest.raises(ConfigError, match=f":{settings.port} cannot be .*another --port"):
            run(service, bound)


def test_the_request_of_the_documentation_gets_the_reply_that_stands_below_it() -> None:
    page = (Path(__file__).parent.parent / "docs/serve.md").read_text("utf-8")
    ((asked, shown),) = re.findall(r"-d '(.*?)'\n.*?```json\n(.*?)```", page, re.DOTALL)
    with serve("--judge", "local") as running:
        status, found, _ = running.ask("/score", json.loads(asked))
    assert status == 200, found
    for result in found["results"]:
        result["reward"] = round(result["reward"], 2)
    assert found == json.loads(shown)


def test_what_cannot_be_served_is_said_before_it_listens(judge: str, served: Served) -> None:
    assert "cannot be listened on" in refused("--judge", judge, "--port", str(served.port))
    assert "no file" in refused("--judge", "scripted:nowhere")
    assert "expected train, dev, test or all" in refused("--split", "trian")
    assert "could never be taken" in refused("--max-answers", "9", "--max-waiting", "8")
    assert "up to a day" in refused("--judge", "anthropic", "--batches")
    assert "ANTHROPIC_API_KEY" in refused("--judge", "anthropic", ANTHROPIC_API_KEY="")


# ---------------------------------------------------------------- overload, lateness, the end


def chat(api: FakeAPI) -> list[str]:
    return ["--judge", f"chat:qwen@{api.base_url}", "--schema", "json_schema"]


def answers(n: int, of: str = "answer") -> list[dict[str, Any]]:
    return [{"rows": [row(f"Air the cellar at night, {of} {i}.")]} for i in range(n)]


def test_overload_is_429_at_once_and_pays_for_nothing(tmp_path: Path) -> None:
    with (
        FakeAPI(latency=5.0) as api,
        serve(*chat(api), "--max-waiting", "4", "--store", str(tmp_path / "s"),
              "--max-answers", "4") as small,
        ThreadPoolExecutor(20) as clients,
    ):  # fmt: skip
        began = time.monotonic()

        def ask(body: Any) -> tuple[int, Any, dict[str, str], float]:
            return *small.ask("/score", body), time.monotonic() - began

        found = list(clients.map(ask, answers(20)))
        taken = [f for f in found if f[0] == 200]
        full = [f for f in found if f[0] == 429]
        assert len(taken) == 4
        assert len(full) == 16
        for _, body, headers, seconds in full:
            assert error_of(body, "queue_full").retry_after_s == int(headers["retry-after"]) >= 1
            assert seconds < min(f[3] for f in taken)  # before any verdict was there
        assert api.stats.billed == 4
        # There is room again.
        assert small.ask("/score", answers(1)[0])[0] == 200


def test_a_late_verdict_is_finished_and_asked_for_once(tmp_path: Path) -> None:
    with (
        FakeAPI(latency=1.0) as api,
        serve(*chat(api), "--deadline-s", "0.3", "--store", str(tmp_path / "s")) as hasty,
    ):
        status, body, headers = hasty.ask("/score", answers(1)[0])
        assert status == 503
        assert "the work goes on" in error_of(body, "too_late").message
        assert "retry-after" in headers
        until(lambda: hasty.ask("/health")[1]["waiting"] == 0)
        status, body, _ = hasty.ask("/score", answers(1)[0])
        assert status == 200
        assert body["results"][0]["cached"] is True
        assert api.stats.billed == 1


def test_sigterm_answers_what_was_taken_and_finishes_what_nobody_waits_for(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    with (
        FakeAPI(latency=2.0) as api,
        serve(*chat(api), "--store", str(path)) as ending,
        ThreadPoolExecutor(8) as clients,
    ):
        asked = [clients.submit(ending.ask, "/score", body) for body in answers(8)]
        gone = HTTPConnection(ending.host, ending.port)
        gone.request("POST", "/score", json.dumps(answers(1, of="nobody's")[0]),
                     {"Content-Type": "application/json"})  # fmt: skip
        until(lambda: ending.ask("/health")[1]["waiting"] == 9)
        gone.close()
        ending.process.send_signal(signal.SIGTERM)
        assert [ask.result()[0] for ask in asked] == [200] * 8
        assert ending.process.wait(30) == 0
        out = ending.process.stdout.read() if ending.process.stdout else ""
        assert "9 calls" in out
        assert api.stats.billed == 9
        with pytest.raises(ConnectionRefusedError):
            ending.ask("/health")
    with VerdictStore.open(path) as store:
        assert store.ledger.spent(store_run(out)).calls == 9


def store_run(out: str) -> str:
    found = re.search(r"run '([^']+)' in all", out)
    assert found is not None, out
    return found[1]


def test_ctrl_c_ends_in_order_and_a_second_one_at_once(judge: str, tmp_path: Path) -> None:
    with serve("--judge", judge) as running:
        assert running.stop(signal.SIGINT) == 130
    assert "all that was taken is answered" in running.stderr[-1]
    with (
        FakeAPI(latency=60.0) as api,
        serve(*chat(api), "--store", str(tmp_path / "s")) as running,
        ThreadPoolExecutor(1) as client,
    ):
        asked = client.submit(running.ask, "/score", answers(1)[0])
        until(lambda: running.ask("/health")[1]["waiting"] == 1)
        running.process.send_signal(signal.SIGINT)
        time.sleep(0.5)
        assert running.process.poll() is None
        running.process.send_signal(signal.SIGINT)
        assert running.process.wait(20) == 130
        status, body, _ = asked.result()
        assert status == 503
        error_of(body, "draining")
    assert running.stderr[1:] == ["interrupted; 1 answer of what was taken has no verdict\n"]


def test_a_spent_budget_is_a_judge_that_stopped(tmp_path: Path) -> None:
    said = {
        "answer": "Air it.",
        "failure": "over_budget",
        "detail": "20 of 20 spent; raise budget_usd",
    }
    with serve("--judge", script(tmp_path / "script.jsonl", [said])) as running:
        status, body, headers = running.ask("/score", {"rows": [row("Air it.")]})
        assert status == 503
        assert "raise budget_usd" in error_of(body, "judge_stopped").message
        assert int(headers["retry-after"]) == 60
        assert running.ask("/ready")[0] == 503


def test_a_judge_that_stopped_for_good_is_never_ready_again(tmp_path: Path) -> None:
    with FakeAPI() as api, serve(*chat(api), "--store", str(tmp_path / "s")) as running:
        assert running.ask("/ready")[0] == 200
        api.change(faults=Faults({"401": 1.0}))
        status, body, headers = running.ask("/score", answers(1)[0])
        assert status == 503
        error_of(body, "judge_stopped")
        assert int(headers["retry-after"]) >= 30
        status, body, _ = running.ask("/ready")
        assert status == 503
        error_of(body, "judge_stopped")
        assert running.ask("/health")[0] == 200
        # It sends nothing more, and what needs no judge says nothing of it.
        api.change(faults=Faults())
        assert running.ask("/score", {"rows": [row("")]})[0] == 200
        status, body, _ = running.ask("/ready")
        assert status == 503
        message = error_of(body, "judge_stopped").message
        assert message.endswith("; restart the service when that is mended")
        status, body, _ = running.ask("/score", answers(1, "other")[0])
        assert (status, error_of(body, "judge_stopped").message) == (503, message)


def test_a_store_that_failed_is_ready_again_once_there_are_verdicts() -> None:
    class Full(ScriptedJudge):
        full = True

        async def judge(self, items: Any, answers: Any) -> Any:
            if self.full:
                raise StoreError("the disk is full")
            return await super().judge(items, answers)

    judge = Full({(None, "good"): DEFAULT_LABELS["goal_focused"]})
    app = Service(judge, items=[make_item()]).app
    asked = json.dumps({"rows": [{"item_id": "item", "answer": "good"}]}).encode()

    async def status(path: str, body: bytes = b"") -> int:
        sent: list[Any] = []
        scope = {
            "type": "http", "method": "POST" if body else "GET", "path": path, "query_string": b"",
            "headers": [(b"host", b"localhost"), (b"content-type", b"application/json")],
        }  # fmt: skip

        async def receive() -> Any:
            return {"type": "http.request", "body": body}

        async def send(message: Any) -> None:
            sent.append(message)

        await app(scope, receive, send)
        return int(sent[0]["status"])

    async def all_of_it() -> None:
        assert [await status("/score", asked), await status("/ready")] == [503, 503]
        judge.full = False
        assert [await status("/score", asked), await status("/ready")] == [200, 200]

    asyncio.run(all_of_it())


# ---------------------------------------------------------------- counts


def counted(
    served: Served, token: str | None = None
) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    status, text, _ = served.ask("/metrics", token=token)
    assert status == 200
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_metrics_count_what_was_asked(judge: str) -> None:
    with serve("--judge", judge) as fresh:
        before = counted(fresh)
        for kind in FAILURE_KINDS:  # there from the start, or a rate would miss the first
            assert before["xyreward_serve_failures_total", frozenset({("kind", kind)})] == 0
        fresh.ask("/score", {"rows": [row("good"), row("bad"), row("")]})
        fresh.ask("/score", {"rows": [row("good"), row("timeout")]})
        fresh.ask("/score", b"{")
        fresh.ask("/nothing")
        found = counted(fresh)

    def value(name: str, **labels: str) -> float:
        return found[f"xyreward_serve_{name}", frozenset(labels.items())]

    assert value("requests_total", endpoint="/score", status="200") == 1
    assert value("requests_total", endpoint="/score", status="503") == 1
    assert value("requests_total", endpoint="/score", status="400") == 1
    assert value("requests_total", endpoint="other", status="404") == 1
    assert value("answers_total", outcome="scored") == 3
    assert value("answers_total", outcome="empty") == 1
    assert value("answers_total", outcome="failed") == 1
    assert value("failures_total", kind="timeout") == 1
    assert value("reward_count") == 4
    assert value("waiting_answers") == value("held_bytes") == 0


def test_metrics_of_a_paid_judge_have_its_bill(tmp_path: Path) -> None:
    with FakeAPI() as api, serve(*chat(api), "--store", str(tmp_path / "s")) as running:
        for _ in range(2):
            assert running.ask("/score", answers(1)[0])[0] == 200
        found = counted(running)
    of_judge = frozenset({("judge", "chat:qwen")})
    assert found["xyreward_serve_judge_calls_total", of_judge] == 1
    assert found["xyreward_serve_store_hits_total", of_judge] == 1
    assert found["xyreward_serve_unpriced_calls_total", of_judge] == 1


# ---------------------------------------------------------------- many at once


def test_many_clients_at_once_all_get_the_score_of_their_own_answer(tmp_path: Path) -> None:
    labels = [GOOD, BAD]
    name = script(
        tmp_path / "many.jsonl",
        [{"answer": f"answer {i}", "labels": labels[i % 2]} for i in range(600)],
    )
    with serve("--judge", name) as running, ThreadPoolExecutor(50) as clients:
        wires = [HTTPConnection(running.host, running.port, timeout=60) for _ in range(50)]

        def ask(n: int) -> list[float]:
            found = []
            for i in range(n, 600, 50):
                body = json.dumps({"rows": [row(f"answer {i}")]})
                wires[n].request("POST", "/score", body, {"Content-Type": "application/json"})
                response = wires[n].getresponse()
                assert response.status == 200
                found.append(json.loads(response.read())["results"][0]["reward"])
            wires[n].close()
            return found

        assert list(clients.map(ask, range(50))) == [[1.0] * 12, [0.0] * 12] * 25


# ---------------------------------------------------------------- against its own description


def test_it_does_what_its_openapi_description_says(tmp_path: Path) -> None:
    """Hundreds of requests made from the description, in and out of its bounds, with and without token."""
    with serve(environment={"XYREWARD_SERVE_TOKEN": TOKEN}) as guarded:
        done = subprocess.run(
            [
                str(Path(sys.executable).parent / "schemathesis"),
                "run",
                f"{guarded.url}/openapi.json",
                *("-H", f"Authorization: Bearer {TOKEN}"),
                *("--checks", "all"),
                # What fits the description is refused where an item is not known, held out, or no item.
                *("--exclude-checks", "positive_data_acceptance"),
                *("--max-examples", "40"),
                *("--seed", "1"),
                *("--generation-database", "none"),
                "--continue-on-failure",
                "--no-color",
            ],
            capture_output=True,
            text=True,
            timeout=500,
            cwd=tmp_path,
        )
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
        assert re.search(r"\d{3,} generated, \d{3,} passed", done.stdout), done.stdout[-2000:]
        assert "Traceback" not in "".join(guarded.stderr)
        found = counted(guarded, TOKEN)
        for endpoint in ("/score", "/get_reward"):
            for status in ("200", "401", "422"):
                labels = frozenset({("endpoint", endpoint), ("status", status)})
                assert found["xyreward_serve_requests_total", labels] > 0


# ---------------------------------------------------------------- a store that cannot be written


@contextmanager
def full_disk(process: int, path: Path) -> Iterator[None]:
    """The files of a process cannot grow beyond what the store's log has: as if the disk was full."""
    soft, hard = resource.prlimit(process, resource.RLIMIT_FSIZE)
    log = path.with_name(f"{path.name}-wal")
    resource.prlimit(process, resource.RLIMIT_FSIZE, (log.stat().st_size, hard))
    try:
        yield
    finally:
        resource.prlimit(process, resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="Linux sets limits of other processes")
def test_a_verdict_that_finds_no_room_is_no_number_and_is_paid_for_once(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    rows = {"rows": [row(f"Air the cellar at night, {n}.") for n in range(3)]}
    with (
        FakeAPI(latency=4.0) as api,
        serve(*chat(api), "--store", str(path)) as served,
        ThreadPoolExecutor(1) as client,
    ):
        asked = client.submit(served.ask, "/score", rows)
        until(lambda: api.stats.in_flight == 3)
        with full_disk(served.process.pid, path):
            status, body, headers = asked.result()
            assert status == 503
            assert "Make room" in error_of(body, "judge_stopped").message
            assert int(headers["retry-after"]) == 60
            assert "reward" not in json.dumps(body)
            assert served.ask("/ready")[0] == 503
            # Nothing is paid for of which it is known that it cannot be kept.
            assert served.ask("/score", answers(1, of="another")[0])[0] == 503
        status, body, _ = served.ask("/score", rows)
        assert status == 200
        assert [one["cached"] for one in body["results"]] == [True] * 3
        assert served.ask("/ready")[0] == 200
        assert api.stats.billed == 3
