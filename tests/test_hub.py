"""Hub data sets: commits, official splits, what is said where the hub cannot be reached."""

import hashlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

ROW: Mapping[str, Any] = {
    "query": "How do I make my alarm clock louder?",
    "S-request": "Make an alarm clock louder.",
    "I-request": "Get up on time.",
    "S-solution": "Put it on a metal tray.",
    "S-I-misconception-identification": "Loudness does not help someone who sleeps too little.",
    "I-solution": "Go to bed earlier.",
}


def parquet(path: Path, *rows: Mapping[str, Any]) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist([dict(r) for r in rows]), path)
    return path


COMMIT = "0123456789abcdef0123456789abcdef01234567"
NAME = "allenai/XYBench-dataset"


@contextmanager
def hub_with(root: Path, name: str = NAME) -> Iterator[str]:
    """The endpoint of a hub with one data set at one commit, as far as a download asks for it.

    `root` holds the files of the data set, all in its folder `data`.
    """
    files = {f.relative_to(root).as_posix(): f.read_bytes() for f in root.rglob("*.parquet")}
    sums = {name: hashlib.sha1(data).hexdigest() for name, data in files.items()}
    tree = [
        {"type": "file", "path": name, "oid": sums[name], "size": len(data)}
        for name, data in files.items()
    ]
    info = {
        "id": name,
        "sha": COMMIT,
        "private": False,
        "gated": False,
        "siblings": [{"rfilename": name} for name in files],
    }

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *args: Any) -> None:
            pass

        def answer(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
            self.send_response(status)
            for key, value in {**headers, "content-length": str(len(body))}.items():
                self.send_header(key, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            api, file = f"/api/datasets/{name}", f"/datasets/{name}/resolve/{COMMIT}/"
            as_json = {"content-type": "application/json"}
            if path in (api, f"{api}/revision/{COMMIT}"):
                self.answer(200, json.dumps(info).encode(), as_json)
            elif path == f"{api}/tree/{COMMIT}":
                folder = [{"type": "directory", "path": "data", "oid": "0" * 40, "size": 0}]
                self.answer(200, json.dumps(folder).encode(), as_json)
            elif path == f"{api}/tree/{COMMIT}/data":
                self.answer(200, json.dumps(tree).encode(), as_json)
            elif path.removeprefix(file) in files:
                wanted = path.removeprefix(file)
                self.answer(
                    200, files[wanted], {"etag": f'"{sums[wanted]}"', "x-repo-commit": COMMIT}
                )
            else:
                error = (
                    "RevisionNotFound" if path.startswith(f"{api}/revision") else "EntryNotFound"
                )
                self.answer(404, b"", {"x-error-code": error})

        do_HEAD = do_GET  # noqa: N815  # http.server's name

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture
def fake_hub(tmp_path: Path) -> Iterator[str]:
    root = tmp_path / "hub"
    parquet(root / "data" / "train-00000-of-00001.parquet", ROW)
    parquet(root / "data" / "test-00000-of-00001.parquet", {**ROW, "query": "Two?"})
    with hub_with(root) as endpoint:
        yield endpoint


LOAD = """
import sys, time
import datasets, huggingface_hub  # importing takes seconds on a busy machine
from xyreward.errors import XYRewardError
from xyreward.loading import load_items
start = time.perf_counter()
try:
    for item in load_items(sys.argv[1], revision=(sys.argv[2:] or [None])[0]):
        print(item.query, item.meta["hub_split"], item.meta.get("revision"))
except XYRewardError as error:
    print(type(error).__name__, error)
print(f"{time.perf_counter() - start:.1f}")
"""


def load_from_hub(
    home: Path, *arguments: str, name: str = NAME, **environment: str
) -> tuple[str, float]:
    """What a fresh process prints (the hub libraries read their settings once), and its seconds."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "HUGGING"))}
    done = subprocess.run(
        [sys.executable, "-c", LOAD, name, *arguments],
        env={**clean, "HF_HOME": str(home), "HF_HUB_DISABLE_PROGRESS_BARS": "1", **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    *lines, seconds = done.stdout.splitlines()
    return "\n".join(lines), float(seconds)


def test_an_offline_hub_fails_at_once_and_says_what_to_do(tmp_path: Path) -> None:
    said, seconds = load_from_hub(tmp_path, HF_HUB_OFFLINE="1")
    assert said.startswith("HubUnreachable allenai/XYBench-dataset: offline (HF_HUB_OFFLINE)")
    assert "hf download --repo-type dataset allenai/XYBench-dataset --local-dir DIR" in said
    assert "unset HF_HUB_OFFLINE" in said
    assert 'the bundled items ("mini")' in said
    assert seconds < 5


def test_a_hub_that_refuses_or_never_answers_fails_within_seconds(tmp_path: Path) -> None:
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()  # takes connections, answers none
        for port in (deaf.getsockname()[1], 9):
            said, seconds = load_from_hub(tmp_path, HF_ENDPOINT=f"http://127.0.0.1:{port}")
            assert said.startswith("HubUnreachable allenai/XYBench-dataset: the hub cannot be ")
            assert "set HF_HUB_OFFLINE=1 to use the hub cache" in said
            assert seconds < 10


def test_a_hub_data_set_is_loaded_with_its_commit_and_official_splits_and_again_offline(
    tmp_path: Path, fake_hub: str
) -> None:
    home = tmp_path / "home"
    items = f"{ROW['query']} train {COMMIT}\nTwo? test {COMMIT}"
    online = {"HF_ENDPOINT": fake_hub, "HF_HUB_DISABLE_XET": "1"}
    assert load_from_hub(home, **online)[0] == items
    said, _ = load_from_hub(home, "f" * 40, **online)
    assert said.startswith("DataError")
    assert f"{NAME} at revision '{'f' * 40}': not found on the hub" in said
    # Offline, the datasets library takes what is in its cache, whatever revision was asked for.
    assert load_from_hub(home, HF_HUB_OFFLINE="1")[0] == items
    assert load_from_hub(home, COMMIT, HF_HUB_OFFLINE="1")[0] == items
    said, _ = load_from_hub(home, "f" * 40, HF_HUB_OFFLINE="1")
    assert said.startswith("HubUnreachable")
    assert f"the hub cache has revision {COMMIT}, not {'f' * 40}" in said


def test_a_test_file_that_the_hub_counts_to_train_is_refused_online_and_offline(
    tmp_path: Path,
) -> None:
    root = tmp_path / "hub"
    parquet(root / "data" / "items.parquet", ROW)
    parquet(root / "data" / "heldout.parquet", {**ROW, "query": "Two?"})
    with hub_with(root) as endpoint:
        online = {"HF_ENDPOINT": endpoint, "HF_HUB_DISABLE_XET": "1"}
        said, _ = load_from_hub(tmp_path / "home", **online)
    again, _ = load_from_hub(tmp_path / "home", HF_HUB_OFFLINE="1")
    for each in (said, again):
        assert each.startswith("DataError")
        assert (
            f"{NAME}: data/heldout.parquet reads like a test split, and the hub has no split of"
            in each
        )
        assert f"hf download --repo-type dataset {NAME} --local-dir DIR" in each


def test_a_data_set_that_is_called_a_test_set_is_one(tmp_path: Path) -> None:
    root = tmp_path / "hub"
    parquet(root / "data" / "items.parquet", ROW)
    with hub_with(root, "someone/XYBench-test") as endpoint:
        said, _ = load_from_hub(
            tmp_path / "home",
            name="someone/XYBench-test",
            HF_ENDPOINT=endpoint,
            HF_HUB_DISABLE_XET="1",
        )
    assert said == f"{ROW['query']} test {COMMIT}"
