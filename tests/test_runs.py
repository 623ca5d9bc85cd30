import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from xyreward.config import DPORecipe, GRPORecipe, PairsConfig, load_config
from xyreward.errors import RunFolderError
from xyreward.runs import RunFolder, environment

CONFIG = DPORecipe(output_dir="x", dpo={"learning_rate": 1e-4, "loss_type": ["sigmoid"]})


def opened(path: Path, config: DPORecipe = CONFIG, *, resume: bool = False) -> RunFolder:
    return RunFolder.open(config, str(path), resume=resume)


def names(path: Path) -> list[str]:
    """What a run wrote; the lock's file is beside it."""
    return sorted(p.name for p in path.iterdir() if p.name != ".lock")


# ---------------------------------------------------------------- opening


@pytest.mark.parametrize("section", ["reward", "audit", "evaluation"])
def test_a_judges_server_may_move_and_the_members_of_a_panel_may_not_change(
    tmp_path: Path, section: str
) -> None:
    def of(judge: str) -> GRPORecipe:
        return GRPORecipe.model_validate({"output_dir": str(tmp_path), section: {"judge": judge}})

    begun = RunFolder.open(of("panel:chat:m@http://a:1/v1,local"), str(tmp_path), resume=False)
    begun.write("training.json", "{}")
    del begun  # and with it the folder's lock
    RunFolder.open(of("panel:chat:m@http://b:2/v1,local"), str(tmp_path), resume=True)
    more = of("panel:chat:m@http://b:2/v1,local").model_dump(mode="json")
    more["evaluation"]["max_failure_rate"] = 0.5  # what failures are put up with
    RunFolder.open(GRPORecipe.model_validate(more), str(tmp_path), resume=True)
    with pytest.raises(RunFolderError, match=rf"differs in {section}\.judge"):
        RunFolder.open(of("panel:chat:m@http://a:1/v1,anthropic"), str(tmp_path), resume=True)


def test_a_new_run_writes_its_configuration_and_environment(tmp_path: Path) -> None:
    folder = opened(tmp_path / "deep" / "run")
    assert names(folder.path) == ["config.yaml", "environment.json"]
    assert {p.name for p in folder.path.iterdir()} - set(names(folder.path)) == {".lock"}
    assert load_config(DPORecipe, folder.path / "config.yaml") == CONFIG
    assert json.loads((folder.path / "environment.json").read_text())["python"]


def test_an_empty_folder_will_do(tmp_path: Path) -> None:
    assert opened(tmp_path).path == tmp_path


@pytest.mark.parametrize("name", ["report.md", ".hidden", "folder/"])
def test_a_folder_that_holds_anything_is_refused_with_what_to_do(tmp_path: Path, name: str) -> None:
    if name.endswith("/"):
        (tmp_path / name).mkdir()
    else:
        (tmp_path / name).write_text("mine")
    with pytest.raises(RunFolderError) as caught:
        opened(tmp_path)
    assert str(caught.value) == (
        f"{tmp_path}: is not empty ({name.rstrip('/')}). Pass --resume to go on with that run, or "
        "--output-dir for another folder."
    )
    assert names(tmp_path) == [name.rstrip("/")]
    assert not (tmp_path / ".lock").exists()  # nothing at all is put into a folder of others


def begun(path: Path) -> Path:
    """A run that has done some work and ended."""
    opened(path).write("before.jsonl", "kept")
    return path


def test_a_second_run_into_the_same_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match=r"is not empty \(before.jsonl, config.yaml, env"):
        opened(begun(tmp_path))


def test_a_run_that_stopped_before_its_first_work_is_in_nobodys_way(tmp_path: Path) -> None:
    opened(tmp_path).write("pairs.jsonl", "of a configuration with a typo")
    other = CONFIG.model_copy(update={"seed": 7})
    assert opened(tmp_path, other).read("pairs.jsonl") is None
    assert load_config(DPORecipe, tmp_path / "config.yaml") == other
    assert opened(tmp_path, resume=True).read("config.yaml") is not None


def test_a_checkpoint_folder_without_a_checkpoint_is_no_work(tmp_path: Path) -> None:
    """The trainer makes it when it is built, which is before the first work."""
    (opened(tmp_path).path / "checkpoints").mkdir()
    other = CONFIG.model_copy(update={"seed": 7})
    assert opened(tmp_path, other).read("config.yaml") is not None
    (tmp_path / "checkpoints/checkpoint-1").mkdir()
    with pytest.raises(RunFolderError, match="is not empty"):
        opened(tmp_path)
    with pytest.raises(RunFolderError, match="with another configuration"):
        opened(tmp_path, resume=True)


def test_only_settings_of_the_training_may_change_after_the_evaluation_before_it(
    tmp_path: Path,
) -> None:
    begun(tmp_path)
    other = CONFIG.model_copy(update={"lora": {"r": 8}, "dpo": {"learning_rate": 1e-5}})
    with pytest.raises(RunFolderError, match="Pass --resume"):
        opened(tmp_path, other)
    folder = opened(tmp_path, other, resume=True)
    assert folder.changed == (
        "dpo.learning_rate (was 0.0001, is 1e-05)",
        "dpo.loss_type (was ['sigmoid'], is None)",
        "lora.r (was None, is 8)",
    )
    assert folder.read("before.jsonl") == "kept"
    assert load_config(DPORecipe, tmp_path / "config.yaml") == other
    del folder  # and its lock
    with pytest.raises(RunFolderError, match=r"it differs in dpo\..*; seed \(was 0, is 7\)"):
        opened(tmp_path, CONFIG.model_copy(update={"seed": 7}), resume=True)


def test_a_first_step_that_does_not_fit_leaves_settings_open_although_the_audit_has_looked(
    tmp_path: Path,
) -> None:
    first = GRPORecipe(output_dir="x", grpo={"per_device_train_batch_size": 8})
    folder = RunFolder.open(first, str(tmp_path), resume=False)
    for name in ("before.jsonl", "reward_audit.jsonl"):
        folder.write(name, "kept")
    (tmp_path / "checkpoints").mkdir()
    del folder
    other = first.model_copy(update={"grpo": {"per_device_train_batch_size": 4}})
    assert RunFolder.open(other, str(tmp_path), resume=True).changed == (
        "grpo.per_device_train_batch_size (was 8, is 4)",
    )
    (tmp_path / "checkpoints/checkpoint-1").mkdir()
    with pytest.raises(RunFolderError, match=r"it differs in grpo\.per_device"):
        RunFolder.open(first, str(tmp_path), resume=True)


def test_the_environment_of_every_start_is_kept(tmp_path: Path) -> None:
    begun(tmp_path)
    first = (tmp_path / "environment.json").read_bytes()
    for _ in range(2):
        opened(tmp_path, resume=True)
    assert (tmp_path / "environment.json").read_bytes() == first
    for name in ("environment-2.json", "environment-3.json"):
        assert json.loads((tmp_path / name).read_text())["python"]


def test_a_configuration_of_the_users_own_is_not_taken_for_a_run(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("seed: 1\n")
    with pytest.raises(RunFolderError, match=r"is not empty \(config.yaml\)"):
        opened(tmp_path)


def test_two_runs_in_one_folder_at_once_are_refused(tmp_path: Path) -> None:
    first = opened(tmp_path)
    code = (
        "import sys; from xyreward.config import DPORecipe; from xyreward.runs import RunFolder; "
    )
    code += "RunFolder.open(DPORecipe(output_dir='x'), sys.argv[1], resume=True)"
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert "another process is running in it" in done.stderr
    assert first.read("config.yaml") is not None


def test_the_lock_is_in_the_folder_whatever_cache_a_process_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two users, or two containers, share a run folder but no cache."""
    run = tmp_path / "run"
    monkeypatch.setenv("XYREWARD_CACHE", str(tmp_path / "one"))
    first = opened(run)
    monkeypatch.setenv("XYREWARD_CACHE", str(tmp_path / "two"))
    with pytest.raises(RunFolderError, match=r"another process is running in it.*delete \.lock"):
        opened(run, resume=True)
    del first
    assert opened(run, resume=True).read("config.yaml") is not None
    assert not (tmp_path / "one").exists()


def test_the_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    code = (
        "import sys; from xyreward.config import DPORecipe; from xyreward.runs import RunFolder; "
        "kept = RunFolder.open(DPORecipe(output_dir='x'), sys.argv[1], resume=False); "
        "print('held', flush=True); sys.stdin.read()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    with pytest.raises(RunFolderError, match="another process is running in it"):
        opened(tmp_path)
    process.kill()
    process.communicate(timeout=60)
    assert opened(tmp_path).read("config.yaml") is not None


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/", "/: is not empty ("),
        ("/dev/null", "/dev/null: is a file, expected a folder"),
        ("/proc/run", "/proc/run: cannot be used as the run's folder: "),
        ("/dev/null/run", "/dev/null/run: cannot be used as the run's folder: "),
        ("a\0b", "no path has a null character"),
        ("x" * 300, "cannot be used as the run's folder: OSError"),
        ("~no-such-user-here/run", "there is no home folder of 'no-such-user-here'"),
    ],
)
def test_a_path_that_cannot_be_a_run_folder_is_our_error_in_one_line(path: str, said: str) -> None:
    with pytest.raises(RunFolderError) as caught:
        opened(Path(path))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not Path("/.lock").exists()


def test_a_folder_that_cannot_be_written_is_our_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match="cannot be used as the run's folder"):
        opened(tmp_path / "file" / "run")


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("")
    with pytest.raises(RunFolderError, match="run: is a file, expected a folder"):
        opened(tmp_path / "run")


def test_resume_goes_on_with_the_same_configuration_and_keeps_what_is_there(
    tmp_path: Path,
) -> None:
    opened(tmp_path).write("before.jsonl", "kept")
    assert opened(tmp_path, resume=True).read("before.jsonl") == "kept"


def test_resume_of_a_run_that_never_began_begins_it(tmp_path: Path) -> None:
    assert opened(tmp_path / "run", resume=True).read("config.yaml") is not None


def test_resume_with_another_configuration_names_each_key_with_both_values(tmp_path: Path) -> None:
    begun(tmp_path)
    other = CONFIG.model_copy(
        update={
            "seed": 7,
            "pairs": PairsConfig(max_pairs=5),
            "lora": {"r": 8},
            "dpo": {"learning_rate": 1e-4, "loss_type": ["sigmoid", "sft"]},
        }
    )
    with pytest.raises(RunFolderError) as caught:
        opened(tmp_path, other, resume=True)
    assert str(caught.value) == (
        f"{tmp_path}: is a run with another configuration; it differs in "
        "dpo.loss_type (was ['sigmoid'], is ['sigmoid', 'sft']); lora.r (was None, is 8); "
        "pairs.max_pairs (was None, is 5); seed (was 0, is 7). "
        f"Go on with --config {tmp_path / 'config.yaml'}, or name another folder."
    )
    assert load_config(DPORecipe, tmp_path / "config.yaml") == CONFIG  # not overwritten


def test_a_run_can_be_resumed_from_where_it_was_moved_to(tmp_path: Path) -> None:
    opened(tmp_path / "old")
    (tmp_path / "old").rename(tmp_path / "new")
    moved = CONFIG.model_copy(update={"output_dir": str(tmp_path / "new")})
    assert opened(tmp_path / "new", moved, resume=True).path == tmp_path / "new"


def test_the_same_configuration_in_other_words_is_the_same(tmp_path: Path) -> None:
    opened(tmp_path)
    file = tmp_path / "config.yaml"
    file.write_text("# a note of mine\n" + file.read_text().replace("\n", "\r\n"))
    assert opened(tmp_path, resume=True).path == tmp_path


def test_a_folder_that_is_no_run_cannot_be_resumed(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(RunFolderError, match=r"holds no config\.yaml, so it is not a run"):
        opened(tmp_path, resume=True)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]  # and no lock beside it


def test_a_run_whose_configuration_was_damaged_cannot_be_resumed(tmp_path: Path) -> None:
    begun(tmp_path)
    (tmp_path / "config.yaml").write_text("seed: [1,\n")
    with pytest.raises(RunFolderError, match=r"config\.yaml: not valid YAML.*choose another fold"):
        opened(tmp_path, resume=True)


def test_a_tilde_is_the_home_folder_and_not_a_folder_of_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert RunFolder.open(CONFIG, "~/run", resume=False).path == tmp_path / "run"
    assert RunFolder(Path("~/run")).read("config.yaml") is not None
    assert not (tmp_path / "~").exists()


# ---------------------------------------------------------------- writing


def test_a_folder_that_has_gone_is_our_error(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match=r"report\.md: cannot be written .*No such file"):
        RunFolder(tmp_path / "gone").write("report.md", "")


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("before.jsonl", "remove it, and it is computed anew"),
        ("config.yaml", "restore it, or name"),
    ],
)
def test_a_file_that_is_no_text_is_our_error_with_what_to_do(
    tmp_path: Path, name: str, advice: str
) -> None:
    (tmp_path / name).write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RunFolderError, match=f"{name}: is not as a run left it .*; {advice}"):
        RunFolder(tmp_path).read(name)


def test_what_is_written_is_read_back_as_it_was(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    text = 'été\u2028 {"a": "\\r"}\nzwei\n'
    assert folder.write("a.jsonl", text) == tmp_path / "a.jsonl"
    assert folder.read("a.jsonl") == text
    assert (tmp_path / "a.jsonl").read_bytes() == text.encode()
    assert folder.read("absent.jsonl") is None


def test_others_may_read_what_is_written(tmp_path: Path) -> None:
    file = RunFolder(tmp_path).write("report.md", "")
    assert stat.S_IMODE(file.stat().st_mode) == 0o644


def test_bytes_pieces_and_folders_within_are_written_whole(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert folder.write("figures/a.png", b"\x89\r\n").read_bytes() == b"\x89\r\n"
    assert (
        folder.write("page.html", iter(["été\r\n", "zwei"])).read_bytes() == "été\r\nzwei".encode()
    )

    def breaks() -> Iterator[str]:
        yield "half"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        folder.write("page.html", breaks())
    assert folder.read("page.html") == "été\r\nzwei".replace("\r\n", "\n")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["figures", "page.html"]


def test_a_text_that_cannot_be_written_leaves_the_old_file_and_nothing_else(
    tmp_path: Path,
) -> None:
    folder = RunFolder(tmp_path)
    folder.write("a.txt", "old")
    with pytest.raises(UnicodeEncodeError):
        folder.write("a.txt", "x" * 100_000 + "\ud83d")
    assert folder.read("a.txt") == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]


def child(code: str, *arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, text=True
    )


FULL_DISK = """
import resource, signal, sys
from pathlib import Path
from xyreward.runs import RunFolder

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # write() then fails, as on a full disk
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
try:
    RunFolder(Path(sys.argv[1])).write("after.jsonl", "new " * 10_000)
except OSError as error:
    print("OSError", error.errno)
"""


def test_on_a_full_disk_the_old_file_stays_whole_and_no_half_of_the_new_one_is_left(
    tmp_path: Path,
) -> None:
    folder = RunFolder(tmp_path)
    folder.write("after.jsonl", "old")
    out, _ = child(FULL_DISK, str(tmp_path)).communicate(timeout=60)
    assert out.startswith("OSError ")
    assert folder.read("after.jsonl") == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["after.jsonl"]


WRITE_FOR_EVER = """
import itertools, sys
from pathlib import Path
from xyreward.runs import RunFolder

folder = RunFolder(Path(sys.argv[1]))
for i in itertools.count():
    folder.write("before.jsonl", f"{i % 10}" * 3_000_000)
    if i == 0:
        print("going", flush=True)
"""


@pytest.mark.parametrize("delay", [0.0, 0.013, 0.031, 0.057])
def test_a_process_killed_while_writing_leaves_a_whole_file(tmp_path: Path, delay: float) -> None:
    opened(tmp_path)
    process = child(WRITE_FOR_EVER, str(tmp_path))
    assert process.stdout is not None
    assert process.stdout.readline() == "going\n"
    time.sleep(delay)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    text = RunFolder(tmp_path).read("before.jsonl")
    assert text is not None
    assert len(text) == 3_000_000
    assert len(set(text)) == 1  # of one write and not of two
    visible = {p.name for p in tmp_path.iterdir() if not p.name.startswith(".")}
    assert visible == {"config.yaml", "environment.json", "before.jsonl"}
    # The run can go on, and what the dead process left is gone.
    opened(tmp_path, resume=True)
    assert [p.name for p in tmp_path.glob(".*")] == [".lock"]


def test_the_rest_of_a_run_killed_in_its_first_write_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / ".config.yaml.abc.partial").write_text("out")
    assert opened(tmp_path).read("config.yaml") is not None
    assert [p.name for p in tmp_path.glob(".*")] == [".lock"]


# ---------------------------------------------------------------- checkpoints


def checkpoint(run: Path, step: int | str, state: str | None = '{"global_step": 1}') -> Path:
    folder = run / "checkpoints" / f"checkpoint-{step}"
    folder.mkdir(parents=True)
    weights = torch.arange(100.0)
    save_file({"weights": weights}, folder / "adapter_model.safetensors")
    torch.save({"moments": weights}, folder / "optimizer.pt")
    if state is not None:
        (folder / "trainer_state.json").write_text(state)
    return folder


def test_the_last_checkpoint_is_the_one_of_the_highest_step_and_not_of_the_last_name(
    tmp_path: Path,
) -> None:
    checkpoint(tmp_path, 8)
    newest = checkpoint(tmp_path, 16)
    checkpoint(tmp_path, 9)
    assert RunFolder(tmp_path).last_checkpoint() == (str(newest), ())


@pytest.mark.parametrize("state", [None, "", '{"global_step": 1', "\x00\x00"], ids=repr)
def test_a_checkpoint_that_was_cut_short_is_passed_over(tmp_path: Path, state: str | None) -> None:
    whole = checkpoint(tmp_path, 8)
    checkpoint(tmp_path, 16, state)
    assert RunFolder(tmp_path).last_checkpoint() == (str(whole), ("checkpoint-16",))


@pytest.mark.parametrize("name", ["adapter_model.safetensors", "optimizer.pt"])
@pytest.mark.parametrize("kept", [0.0, 0.9])
def test_a_checkpoint_with_half_of_a_file_is_passed_over_and_named(
    tmp_path: Path, name: str, kept: float
) -> None:
    whole = checkpoint(tmp_path, 8)
    file = checkpoint(tmp_path, 16) / name
    data = file.read_bytes()
    file.write_bytes(data[: int(kept * len(data))])
    assert RunFolder(tmp_path).last_checkpoint() == (str(whole), ("checkpoint-16",))


def test_without_a_complete_checkpoint_there_is_none(tmp_path: Path) -> None:
    assert RunFolder(tmp_path).last_checkpoint() == (None, ())
    checkpoint(tmp_path, 4, None)
    checkpoint(tmp_path, "best")
    assert RunFolder(tmp_path).last_checkpoint() == (None, ("checkpoint-4",))


# ---------------------------------------------------------------- environment


def test_the_environment_names_versions_and_machine() -> None:
    found = environment()
    assert re.fullmatch(r"3\.\d+\.\d+.*", found["python"])
    for package in ("xyreward", "numpy", "torch", "trl"):
        assert re.match(r"\d+\.\d+", found["packages"][package])
    assert found["cpu_count"] >= 1


@pytest.mark.parametrize(
    ("argument", "kept"),
    [
        ("--config=/home/ada/x.yaml", "--config=x.yaml"),
        ("/home/ada/my models/m", "my models/m"),
        ("~/runs/x", "x"),
        ("C:\\Users\\ada\\x.yaml", "x.yaml"),
        ("policy.model=/home/ada/m", "policy.model=m"),
        (
            "items=[{source: /home/ada/x.jsonl}, {source: mini}]",
            "items=[{source: x.jsonl}, {source: mini}]",
        ),
        ("evaluation.judge=scripted:/home/ada/f.jsonl", "evaluation.judge=scripted:f.jsonl"),
        ("configs/dpo/quickstart.yaml", "configs/dpo/quickstart.yaml"),
        ("../runs/x", "../runs/x"),
        ("allenai/XYBench-dataset", "allenai/XYBench-dataset"),
        ("chat:m@http://localhost:8000/v1", "chat:m@http://localhost:8000/v1"),
        ("dpo.learning_rate=1e-4", "dpo.learning_rate=1e-4"),
    ],
)
def test_the_command_is_kept_without_the_folders_it_lies_in(
    monkeypatch: pytest.MonkeyPatch, argument: str, kept: str
) -> None:
    monkeypatch.setattr(sys, "argv", ["/home/ada/recipes/dpo.py", "--set", argument])
    assert environment()["command"] == ["dpo.py", "--set", kept]


def test_the_environment_holds_no_absolute_path_host_or_user_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = "/home/ada-lovelace"
    monkeypatch.setenv("USER", "ada-lovelace")
    monkeypatch.setenv("HOME", home)
    monkeypatch.setattr(sys, "argv", [f"{home}/recipes/dpo.py", "--output-dir", f"{home}/runs/x"])
    folder = opened(tmp_path)
    text = (folder.path / "environment.json").read_text()
    values = re.findall(r'"([^"]*)"', text)
    assert not [v for v in values if v.startswith(("/", "~")) or re.match(r"[A-Z]:\\", v)]
    assert "ada-lovelace" not in text
    assert socket.gethostname() not in values
    assert str(Path.cwd()) not in text
    assert str(tmp_path) not in text


def test_the_commit_is_that_of_this_package_and_of_no_repository_around_it(
    tmp_path: Path,
) -> None:
    # As installed into a virtual environment that lies in somebody's own repository.
    package = tmp_path / "lib" / "xyreward"
    package.parent.mkdir()
    subprocess.run(
        ["cp", "-r", str(Path(__file__).parent.parent / "xyreward"), package], check=True
    )
    git = ["git", "-c", "user.name=x", "-c", "user.email=x@example.org", "-C", str(tmp_path)]
    subprocess.run([*git, "init", "--quiet"], check=True)
    subprocess.run([*git, "commit", "--quiet", "--allow-empty", "-m", "theirs"], check=True)
    code = "from xyreward.runs import environment; print(environment()['git_commit'])"

    def commit() -> str:
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONPATH": str(package.parent)},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.strip()

    assert commit() == "None"
    subprocess.run([*git, "add", str(package / "runs.py")], check=True)
    subprocess.run([*git, "commit", "--quiet", "-m", "ours"], check=True)
    assert re.fullmatch(r"[0-9a-f]{40}", commit())
