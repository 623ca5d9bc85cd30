"""Hub data sets to tables of rows, with the commit and the names that the rows go by.

Not here: files and folders (`tables.py`); which column is which field (`loading.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from xyreward.errors import DataError, HubUnreachable, MissingDependency
from xyreward.split_names import Named, split_in, strictest
from xyreward.tables import NOT_ROWS, SUFFIXES, Row, Table, row


def hub_tables(name: str, revision: str | None, problems: list[str]) -> Iterator[Table]:
    """The tables of a hub data set: one per split.

    Raises:
        DataError: no such data set or revision, or the datasets library cannot read it.
        HubUnreachable: within seconds, with what to do.
        MissingDependency: hub data sets need `xyreward[train]`.
    """
    try:
        import datasets
        import huggingface_hub as hub
    except ImportError:
        raise MissingDependency(
            f"{name}: hub data sets need the datasets package: pip install 'xyreward[train]'"
        ) from None
    offline = hub.constants.HF_HUB_OFFLINE
    way_out = (
        "Fetch it once where there is a network "
        f"(hf download --repo-type dataset {name} --local-dir DIR) and pass DIR, "
        + ("unset HF_HUB_OFFLINE, " if offline else "set HF_HUB_OFFLINE=1 to use the hub cache, ")
        + 'or use the bundled items ("mini").'
    )
    commit = revision
    files: list[str] = []
    if not offline:
        # load_dataset alone retries for over 20 s before it gives up; one look-up with a timeout
        # tells. It also names the commit, which a report needs: a branch name says nothing a year
        # later.
        try:
            info = hub.HfApi().dataset_info(name, revision=revision, timeout=5)
        except hub.errors.GatedRepoError:
            raise DataError(
                [f"{name}: asks for consent; accept its terms on its hub page, then hf auth login"]
            ) from None
        except (hub.errors.RepositoryNotFoundError, hub.errors.RevisionNotFoundError) as error:
            at = f" at revision {revision!r}" if revision else ""
            raise DataError(
                [
                    f"{name}{at}: not found on the hub ({type(error).__name__}); look for a typing "
                    "error, or hf auth login if it is private"
                ]
            ) from None
        except Exception as error:  # the hub client raises its HTTP library's own classes
            raise HubUnreachable(
                f"{name}: the hub cannot be reached ({type(error).__name__}). {way_out}"
            ) from error
        commit = info.sha
        files = [file.rfilename for file in info.siblings or ()]
    try:
        dataset = datasets.load_dataset(name, revision=commit)
    except ConnectionError as error:
        state = (
            "offline (HF_HUB_OFFLINE) and not in the hub cache" if offline else "download failed"
        )
        raise HubUnreachable(f"{name}: {state}. {way_out}") from error
    except (FileNotFoundError, ValueError, datasets.exceptions.DatasetsError) as error:
        raise DataError(
            [
                f"{name}: the datasets library cannot read it ({error}); "
                "download it and pass the folder"
            ]
        ) from error
    if offline:
        # datasets takes the latest commit in its cache, whatever was asked for.
        commit = _cached_commit(dataset)
        wanted = revision if revision and re.fullmatch(r"[0-9a-f]{7,40}", revision) else ""
        if not (commit or "").startswith(wanted):
            raise HubUnreachable(
                f"{name}: offline (HF_HUB_OFFLINE), and the hub cache has revision {commit}, "
                f"not {wanted}. {way_out}"
            )
        files = _cached_files(hub, name, commit)
    if not any(split_in(str(hub_split)) == "test" for hub_split in dataset):
        _check_files(name, files)
    # A data set that is called a test set as a whole has one split, and the hub calls that train.
    split = split_in(name.partition("/")[2])
    whole = [Named(split, f"data set {name!r}")] if split in ("validation", "test") else []
    for hub_split, rows in dataset.items():
        table = f"{name}[{hub_split}]"
        read: list[Row] = []
        try:
            for number, values in enumerate(rows, start=1):
                read += row(f"{table} row {number}", values, problems)
        except (ValueError, OverflowError) as error:  # not UTF-8, a date beyond Python's
            problems.append(f"{table} row {len(read) + 1}: cannot be read ({error})")
        named = strictest([Named(str(hub_split), f"split {str(hub_split)!r}"), *whole])
        yield Table(table, read, named, revision=commit)


def _cached_commit(dataset: Any) -> str | None:
    """The commit of a data set from the cache: the folder in which datasets keeps its tables."""
    files = [file["filename"] for rows in dataset.values() for file in rows.cache_files]
    folders = {Path(file).parent.name for file in files}
    commits = [folder for folder in folders if re.fullmatch(r"[0-9a-f]{40}", folder)]
    return commits[0] if len(commits) == 1 else None


def _cached_files(hub: Any, name: str, commit: str | None) -> list[str]:
    """The files of a data set that the hub cache has; none where it holds only datasets' tables."""
    try:
        folder = hub.snapshot_download(
            name, repo_type="dataset", revision=commit, local_files_only=True
        )
    except hub.errors.LocalEntryNotFoundError:
        return []
    return [file.relative_to(folder).as_posix() for file in Path(folder).rglob("*")]


def _check_files(name: str, files: Sequence[str]) -> None:
    """Make sure that no test file lies in a split that is not called so.

    The datasets library knows fewer names: of a data set with `items.parquet` and `heldout.parquet`
    it makes one split, `train`, in which the rows cannot be told apart any more.
    """
    tests = [
        str(path)
        for path in map(PurePosixPath, files)
        if path.suffix.lower() in SUFFIXES
        and path.name not in NOT_ROWS
        and any(split_in(part) == "test" for part in (path.stem, *path.parts[:-1]))
    ]
    if tests:
        raise DataError(
            [
                f"{name}: {', '.join(tests[:5])} reads like a test split, and the hub has no split of "
                f"that name to keep it apart; hf download --repo-type dataset {name} --local-dir DIR "
                "and pass DIR"
            ]
        )
