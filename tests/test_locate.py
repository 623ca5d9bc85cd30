"""Where policies lie: hub look-ups against a real server on this machine, marks, fingerprints."""

import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from xyreward.embedded import POLICY_NAME
from xyreward.errors import ConfigError
from xyreward.locate import (
    PROBE,
    PROBES,
    Mark,
    base_of_adapter,
    fingerprint,
    folder_of,
    is_adapter,
    mark_in,
    mark_of_training,
    trained_on,
)
from xyreward.testing import tiny_policy

COMMIT = "0123456789abcdef0123456789abcdef01234567"
NEWER = "76543210fedcba9876543210fedcba9876543210"

# ---------------------------------------------------------------- names


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("no/such/folder", "no such folder, and not a hub name"),
        ("./nothing", "no such folder, and not a hub name"),
        ("~/nothing", "no such folder, and not a hub name"),
        ("embedded:gpt-5", "the embedded one is 'embedded:smollm2-135m'"),
        ("justaname", "no such folder, and not a hub name"),
        ("", "no such folder, and not a hub name"),
        ("a/" + "b" * 5000 + "\0", "no such folder, and not a hub name"),
        ("\x1b[31m/x", "no such folder, and not a hub name"),
    ],
)
def test_a_name_that_is_no_policy_is_refused_before_anything_is_loaded(
    name: str, said: str
) -> None:
    for ask in (is_adapter, folder_of, trained_on, fingerprint):
        with pytest.raises(ConfigError, match=said):
            ask(name)


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"neither config\.json nor adapter_config\.json"):
        is_adapter(str(tmp_path))


# ---------------------------------------------------------------- hub


class Hub(ThreadingHTTPServer):
    """A hub with one model, `ada/tiny`, at two commits; it writes down what it was asked."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files
        self.asked: list[str] = []
        super().__init__(("127.0.0.1", 0), _Answers)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Answers(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        self.server.asked.append(path)
        commit = COMMIT if "old" in path or COMMIT in path else NEWER
        if path.startswith("/api/models/ada/tiny/tree/"):
            rows = [
                {
                    "type": "file",
                    "path": name,
                    "size": len(data),
                    "oid": hashlib.sha1(data, usedforsecurity=False).hexdigest(),
                }
                for name, data in self.server.files.items()
            ]
            self._send(json.dumps(rows).encode(), {"Content-Type": "application/json"})
        elif path.startswith("/api/models/ada/tiny"):
            siblings = [{"rfilename": name} for name in self.server.files]
            info = {"id": "ada/tiny", "sha": commit, "siblings": siblings}
            self._send(json.dumps(info).encode(), {"Content-Type": "application/json"})
        elif path.startswith("/ada/tiny/resolve/"):
            data = self.server.files.get(path.rpartition("/")[2])
            if data is None:
                self._send(b"", {"X-Error-Code": "EntryNotFound"}, status=404)
            else:
                etag = hashlib.sha256(data).hexdigest()
                self._send(data, {"ETag": f'"{etag}"', "X-Repo-Commit": commit})
        else:
            self._send(b"{}", {"X-Error-Code": "RepoNotFound"}, status=404)

    def _send(self, body: bytes, headers: dict[str, str], status: int = 200) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hub(tiny: str) -> Iterator[Hub]:
    files = {file.name: file.read_bytes() for file in Path(tiny).iterdir()}
    files["xyreward.json"] = Mark("base", trained_on=("ab",)).to_json().encode()
    server = Hub(files)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


ASK = """
import sys
from xyreward.errors import XYRewardError
from xyreward.locate import folder_of, is_adapter, trained_on

name, revision = sys.argv[1], sys.argv[2] or None
try:
    print(is_adapter(name, revision), sorted(trained_on(name, revision)), folder_of(name, revision))
except XYRewardError as error:
    print(type(error).__name__, error)
"""


def ask(endpoint: str, home: Path, name: str, revision: str = "", offline: bool = False) -> str:
    """In a process of its own: the hub's client reads its settings once."""
    changed = {"HF_ENDPOINT": endpoint, "HF_HOME": str(home), "HF_HUB_OFFLINE": str(int(offline))}
    kept = {k: v for k, v in os.environ.items() if "proxy" not in k.lower()}
    done = subprocess.run(
        [sys.executable, "-c", ASK, name, revision],
        env={**kept, **changed},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.strip()


def test_every_look_up_is_at_the_revision_that_was_asked_for(hub: Hub, tmp_path: Path) -> None:
    found = ask(hub.address, tmp_path, "ada/tiny", "old")
    assert found.startswith("False ['ab'] ")
    assert found.endswith(f"snapshots/{COMMIT}")
    assert (Path(found.split()[-1]) / "model.safetensors").is_file()
    assert hub.asked[0] == "/api/models/ada/tiny/revision/old"
    assert all(COMMIT in path for path in hub.asked[1:])
    assert ask(hub.address, tmp_path, "ada/tiny").endswith(f"snapshots/{NEWER}")


def test_what_is_not_on_the_hub_is_told_and_not_tried_again(hub: Hub, tmp_path: Path) -> None:
    found = ask(hub.address, tmp_path, "ada/tinny", "v1")
    assert found.startswith("ConfigError policy 'ada/tinny' at revision 'v1': not found on the hub")
    assert len(hub.asked) == 1


def test_without_a_network_a_snapshot_in_the_cache_will_do(hub: Hub, tmp_path: Path) -> None:
    here = ask(hub.address, tmp_path, "ada/tiny", COMMIT)
    with socket.socket() as nobody:  # bound and not listening: refuses
        nobody.bind(("127.0.0.1", 0))
        closed = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        assert ask(closed, tmp_path, "ada/tiny", COMMIT) == here
        assert ask(closed, tmp_path, "ada/tiny", COMMIT, offline=True) == here
        other = ask(closed, tmp_path, "ada/tiny", NEWER)
        assert other.startswith(f"HubUnreachable policy 'ada/tiny' at revision '{NEWER}': not in")
        offline = ask(closed, tmp_path, "ada/other", offline=True)
        assert "this is offline (HF_HUB_OFFLINE)" in offline
        assert "unset HF_HUB_OFFLINE" in offline
        assert "hf download ada/other --local-dir DIR" in offline


def test_a_hub_that_does_not_answer_is_waited_for_once(tmp_path: Path) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(16)  # takes connections, and that is all
        begin = time.monotonic()
        found = ask(f"http://127.0.0.1:{silent.getsockname()[1]}", tmp_path, "ada/tiny")
        took = time.monotonic() - begin
    assert found.startswith("HubUnreachable policy 'ada/tiny': not in the hub cache, and the hub")
    assert took < 20  # seconds: one time-out of 5, and Python's own start on a busy machine


# ---------------------------------------------------------------- marks


def adapter(folder: Path, **fields: object) -> str:
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps(fields))
    return str(folder)


def test_the_base_of_an_adapter_is_what_its_recipe_says_else_what_peft_says(tmp_path: Path) -> None:
    folder = adapter(tmp_path / "a", base_model_name_or_path="there", revision="r")
    assert base_of_adapter(folder) == Mark("there", "r")
    mark = Mark(POLICY_NAME, None, {"enable_thinking": False}, ("aa", "bb"))
    (tmp_path / "a/xyreward.json").write_text(mark.to_json())
    assert base_of_adapter(folder) == mark
    assert mark_in(folder) == mark
    nameless = adapter(tmp_path / "b")
    with pytest.raises(ConfigError, match="names no base model"):
        base_of_adapter(nameless)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"name": 3}', '{"name": "x", "trained_on": "ab"}', "[" * 100_000]
)
def test_a_damaged_mark_is_told_on_one_line(tmp_path: Path, text: str) -> None:
    folder = adapter(tmp_path / "a", base_model_name_or_path="there")
    (tmp_path / "a/xyreward.json").write_text(text)
    with pytest.raises(ConfigError) as caught:
        trained_on(folder)
    assert "xyreward.json: " in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_a_policy_was_trained_on_before_still_counts(tmp_path: Path) -> None:
    first = mark_of_training(POLICY_NAME, None, {"a": 1}, ["1" * 64, "0" * 64])
    assert first == Mark(POLICY_NAME, None, {"a": 1}, ("0" * 16, "1" * 16))
    folder = adapter(tmp_path / "a")
    (tmp_path / "a/xyreward.json").write_text(first.to_json())
    again = mark_of_training(folder, None, {}, ["2" * 64])
    assert again == Mark(POLICY_NAME, None, {}, ("0" * 16, "1" * 16, "2" * 16))

    model = tiny_policy(tmp_path / "model")
    assert trained_on(model) == frozenset()
    (tmp_path / "model/xyreward.json").write_text(first.to_json())
    on_top = adapter(tmp_path / "b")
    (tmp_path / "b/xyreward.json").write_text(Mark(model, trained_on=("3",)).to_json())
    assert trained_on(on_top) == {"0" * 16, "1" * 16, "3"}


# ---------------------------------------------------------------- fingerprints


def test_a_fingerprint_changes_with_whatever_decides_an_answer(tmp_path: Path) -> None:
    folder = tiny_policy(tmp_path / "p")
    first = fingerprint(folder)
    assert len(first) == 12
    shutil.copytree(folder, tmp_path / "copy")
    assert fingerprint(str(tmp_path / "copy")) == first
    (tmp_path / "p/README.md").write_text("a note")
    assert fingerprint(folder) == first
    seen = {first}
    tiny_policy(folder, seed=1)
    for name in ("chat_template.jinja", "config.json", "tokenizer.json"):
        seen.add(fingerprint(folder))
        with (tmp_path / "p" / name).open("a") as file:
            file.write(" ")
    seen.add(fingerprint(folder))
    assert len(seen) == 5
    assert fingerprint(POLICY_NAME) == fingerprint(POLICY_NAME, None)


def test_an_adapters_fingerprint_covers_its_base(tmp_path: Path) -> None:
    base = tiny_policy(tmp_path / "base")
    folder = adapter(tmp_path / "a", base_model_name_or_path=base)
    first = fingerprint(folder)
    tiny_policy(base, seed=1)
    assert fingerprint(folder) != first


def test_in_a_large_file_any_matrix_that_changed_is_seen(tmp_path: Path) -> None:
    folder = tiny_policy(tmp_path / "p")
    size = 4 * PROBE * PROBES  # a quarter of it is read
    with (tmp_path / "p/model.safetensors").open("wb") as file:
        file.truncate(size)
    seen = {fingerprint(folder)}
    matrix = size // 100
    for begin in (0, size // 3, size - matrix):
        with (tmp_path / "p/model.safetensors").open("r+b") as file:
            file.seek(begin)
            file.write(b"\1" * matrix)
        seen.add(fingerprint(folder))
    assert len(seen) == 4
