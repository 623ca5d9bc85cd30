"""A file is there whole or not at all."""

import os
import resource
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from xyreward.whole_file import whole, write_whole


def test_text_bytes_and_pieces_are_written_as_they_are(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    pieces: list[str | bytes] = ["é", b"\r\n"]
    for content in ("é\r\n", "é\r\n".encode(), iter(pieces)):
        file.unlink(missing_ok=True)
        write_whole(file, content)
        assert file.read_bytes() == b"\xc3\xa9\r\n"
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_what_is_stopped_leaves_what_was_there(tmp_path: Path, error: type[BaseException]) -> None:
    file = tmp_path / "a"
    file.write_text("before")

    def pieces() -> Iterator[str]:
        yield "half"
        raise error

    with pytest.raises(error):
        write_whole(file, pieces())
    assert file.read_text() == "before"
    assert list(tmp_path.iterdir()) == [file]


def test_until_all_is_written_the_file_is_the_old_one(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_text("before")
    with whole(file) as first:
        first.write_text("new")
        with whole(file) as second:  # another process
            second.write_text("newer")
        assert file.read_text() == "newer"
    assert file.read_text() == "new"
    assert list(tmp_path.iterdir()) == [file]


def test_it_has_the_rights_that_the_user_gives_files(tmp_path: Path) -> None:
    old = os.umask(0o027)
    try:
        write_whole(tmp_path / "a", "x")
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o640


def test_the_rights_of_a_file_that_is_replaced_stay(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_text("before")
    file.chmod(0o600)  # nobody else's to read, and so it stays
    write_whole(file, "after")
    assert file.read_text() == "after"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


@pytest.mark.parametrize("there", [True, False])
def test_a_link_stays_one_and_what_it_names_is_written(tmp_path: Path, there: bool) -> None:
    (tmp_path / "shared").mkdir()
    file, link = tmp_path / "shared" / "splits.json", tmp_path / "splits.json"
    if there:
        file.write_text("before")
    link.symlink_to(Path("shared") / "splits.json")
    write_whole(link, "after")
    assert link.is_symlink()
    assert file.read_text() == "after"
    assert list(file.parent.iterdir()) == [file]


def test_what_is_no_regular_file_stays_what_it_is(tmp_path: Path) -> None:
    pipe, folder = tmp_path / "pipe", tmp_path / "folder"
    os.mkfifo(pipe)
    folder.mkdir()
    for path in (pipe, folder):
        with pytest.raises(OSError, match="is there and is no regular file"):
            write_whole(path, "x")
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert sorted(tmp_path.iterdir()) == [folder, pipe]


def test_a_folder_that_is_not_there_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_whole(tmp_path / "none" / "a", "x")
    assert not list(tmp_path.iterdir())


FULL = """
import sys
from xyreward.cli import main
sys.argv = ["xyreward", *sys.argv[1:]]
main()
"""


def limited() -> None:
    """As a full disk: no file grows above 4 KiB."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))


def test_a_sheet_that_does_not_fit_on_the_disk_is_not_there_in_part(tmp_path: Path) -> None:
    from xyreward.loading import load_items

    item = load_items("mini")[0]
    (tmp_path / "a.jsonl").write_text(f'{{"item_id": "{item.id}", "answer": "So."}}\n')
    done = subprocess.run(
        [sys.executable, "-c", FULL, "annotate", "a.jsonl", "--out", "sheet.html"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        preexec_fn=limited,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "OSError: [Errno 27] File too large" in done.stderr
    assert [file.name for file in tmp_path.iterdir()] == ["a.jsonl"]
