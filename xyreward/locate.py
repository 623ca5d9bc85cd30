"""Where a policy lies and what it is: names to folders, adapters to their base, folders to fingerprints.

Names: `embedded:smollm2-135m`, a folder or hub name of a model, a folder or hub name of a peft adapter.

The hub is asked once per name and process, at the revision that was asked for. Where it cannot be reached,
a snapshot in the hub cache will do.

Not here: loading (`policy.py`). This module needs no torch.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from xyreward.embedded import POLICY_NAME, POLICY_SHA256, policy_dir
from xyreward.errors import ConfigError, HubUnreachable, MissingDependency, told

logger = logging.getLogger(__name__)

ADAPTER = "adapter_config.json"
MARK = "xyreward.json"
"""Beside what a recipe trained: on which policy and which items, as `Mark`."""

TIMEOUT = 5
"""Seconds that the hub has to answer."""

PROBE = 64 * 1024
PROBES = 256
"""What is read of a large file for a fingerprint: 256 pieces of 64 KiB, evenly over the file. Training
changes whole matrices, of which many hold a piece; reading all of 18 GB would take a minute."""

DECIDES = frozenset({".safetensors", ".bin", ".json", ".jinja", ".model", ".txt"})
"""Suffixes of files that decide what a policy answers."""


@dataclass(frozen=True, slots=True)
class Mark:
    """What a recipe writes beside what it trained."""

    name: str
    """The policy that was trained. The embedded one's name stands for a folder that differs between
    machines."""
    revision: str | None = None
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    trained_on: tuple[str, ...] = ()
    """`short_hash` of every item trained on, sorted. No text, and none can be had back from it."""

    def to_json(self) -> str:
        """The text of an `xyreward.json`."""
        return json.dumps(asdict(self)) + "\n"


def short_hash(content_hash: str) -> str:
    """The part of an item's content hash that a mark keeps: 16 hex digits."""
    return content_hash[:16]


def is_adapter(name: str, revision: str | None = None) -> bool:
    """Whether a policy's name is that of an adapter. Loads nothing, so it serves as an early check.

    Raises:
        ConfigError: a name that is neither a folder with a model or an adapter nor on the hub.
        HubUnreachable: a hub name that is neither cached nor reachable.
    """
    if name == POLICY_NAME:
        return False
    if name.startswith("embedded:"):
        raise ConfigError(f"policy {name!r} is not known; the embedded one is {POLICY_NAME!r}")
    folder = Path(name)
    if _is_dir(name):
        if (folder / ADAPTER).is_file():
            return True
        if (folder / "config.json").is_file():
            return False
        raise ConfigError(f"policy {name!r}: the folder has neither config.json nor {ADAPTER}")
    if not is_hub_name(name):
        raise ConfigError(
            f"policy {name!r}: no such folder, and not a hub name (owner/name); "
            f"the embedded model is {POLICY_NAME!r}"
        )
    return ADAPTER in _look_up(name, revision).files


def is_hub_name(name: str) -> bool:
    """Whether a name is of the form `owner/name`; a folder may be, too, and goes first."""
    return re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", name, re.ASCII) is not None


def folder_of(name: str, revision: str | None = None) -> str:
    """Where a model or adapter lies on this machine; a hub's is fetched, at its revision.

    Everything is loaded from folders, also by TRL, which reloads the reference model by its path and
    would take the newest revision of a name.

    Raises:
        HubUnreachable: a hub name that is neither cached nor reachable.
        ConfigError: see `is_adapter`.
    """
    if name == POLICY_NAME:
        return str(policy_dir())
    if _is_dir(name):
        return name
    is_adapter(name, revision)  # refuses what is no name
    return _look_up(name, revision).fetch()


def check_writes(name: str, folder: str) -> None:
    """Make sure that a model was not trained to rank: what such a one writes is nobody's policy.

    transformers and peft load its body without a word.

    Args:
        name: as it was given, for the message.
        folder: where it lies.

    Raises:
        ConfigError: it is a reward model, or another classifier.
    """
    file, key = Path(folder) / ADAPTER, "task_type"
    if not file.is_file():
        file, key = Path(folder) / "config.json", "architectures"
    found = _read_json(file) if file.is_file() else None
    kind = found.get(key) if isinstance(found, dict) else None
    if any(str(one).endswith(("_CLS", "Classification")) for one in _as_list(kind)):
        raise ConfigError(
            f"policy {name!r}: is a reward model or another classifier ({file.name} has {key}: "
            f"{kind!r:.80}), which ranks answers and writes none; expected a model that writes. To reward "
            f"answers with it, name it as a judge: {f'reward_model:{name}'!r}"
        )


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _is_dir(name: str) -> bool:
    try:
        return bool(name) and Path(name).is_dir()
    except (OSError, ValueError):  # longer than a path can be; with a null character in it
        return False


# ---------------------------------------------------------------- hub


@dataclass(frozen=True, slots=True)
class _Repository:
    """A model or adapter on the hub, or its snapshot in the hub cache."""

    name: str
    commit: str | None
    files: frozenset[str]
    cached: str | None
    """The snapshot's folder, where the hub could not be asked."""

    def fetch(self, file: str | None = None) -> str:
        """The folder of the whole, or of one file alone."""
        if self.cached is not None:
            return self.cached
        import huggingface_hub as hub

        try:
            if file is not None:
                path = hub.hf_hub_download(self.name, file, revision=self.commit)
                return str(Path(path).parent)
            return str(hub.snapshot_download(self.name, revision=self.commit, etag_timeout=TIMEOUT))
        except Exception as error:  # the hub client raises its HTTP library's own classes
            raise HubUnreachable(
                f"policy {self.name!r}: fetching it from the hub failed ({told(error)}). "
                "What has arrived is kept: try again"
            ) from error


@lru_cache(maxsize=32)
def _look_up(name: str, revision: str | None) -> _Repository:
    """Ask the hub once. Its client alone would retry for most of a minute where there is no network."""
    try:
        import huggingface_hub as hub
    except ImportError as error:
        raise MissingDependency(
            f"loading a model needs {error.name}: pip install 'xyreward[local]'"
        ) from None
    at = f" at revision {revision!r}" if revision else ""
    try:
        found = hub.HfApi().model_info(name, revision=revision, timeout=TIMEOUT)
    except hub.errors.GatedRepoError:
        raise ConfigError(
            f"policy {name!r}: asks for consent; accept its terms on its hub page, then hf auth login"
        ) from None
    except (hub.errors.RepositoryNotFoundError, hub.errors.RevisionNotFoundError) as error:
        raise ConfigError(
            f"policy {name!r}{at}: not found on the hub ({type(error).__name__}); look for a typing "
            "error, or hf auth login if it is private"
        ) from None
    except Exception as error:  # the hub client raises its HTTP library's own classes
        return _cached(name, revision, error)
    files = frozenset(sibling.rfilename for sibling in found.siblings or ())
    return _Repository(name, found.sha, files, cached=None)


def _cached(name: str, revision: str | None, why: Exception) -> _Repository:
    import huggingface_hub as hub

    offline = bool(hub.constants.HF_HUB_OFFLINE)
    state = "this is offline (HF_HUB_OFFLINE)" if offline else "the hub cannot be reached"
    at = f" at revision {revision!r}" if revision else ""
    try:
        folder = str(hub.snapshot_download(name, revision=revision, local_files_only=True))
    except Exception:  # whatever the client calls it
        raise HubUnreachable(
            f"policy {name!r}{at}: not in the hub cache, and {state} ({type(why).__name__}). Fetch it "
            f"where there is a network (hf download {name} --local-dir DIR) and pass DIR, "
            + ("unset HF_HUB_OFFLINE, " if offline else "")
            + f"or use {POLICY_NAME!r}"
        ) from why
    if not offline:
        logger.warning("%s: %s; its snapshot in the hub cache is used: %s", name, state, folder)
    files = frozenset(path.name for path in Path(folder).iterdir())
    return _Repository(name, None, files, cached=folder)


# ---------------------------------------------------------------- marks


def mark_in(folder: str) -> Mark | None:
    """What a recipe wrote beside what it trained; None where no recipe did.

    Raises:
        ConfigError: the file is damaged.
    """
    file = Path(folder) / MARK
    if not file.is_file():
        return None
    match _read_json(file):
        case {"name": str(name), **others}:
            pass
        case _:
            raise ConfigError(f"{file}: names no policy; it is not as a recipe wrote it")
    revision = others.get("revision")
    kwargs = others.get("chat_template_kwargs", {})
    hashes = others.get("trained_on", [])
    if (
        not isinstance(revision, str | None)
        or not isinstance(kwargs, dict)
        or not isinstance(hashes, list)
    ):
        raise ConfigError(f"{file}: is damaged; it is not as a recipe wrote it")
    return Mark(name, revision, kwargs, tuple(map(str, hashes)))


def base_of_adapter(folder: str) -> Mark:
    """The base of an adapter: what the recipe that trained it wrote down, else what peft did.

    Raises:
        ConfigError: neither names one.
    """
    mark = mark_in(folder)
    if mark is not None:
        return mark
    file = Path(folder) / ADAPTER
    config = _read_json(file)
    base = config.get("base_model_name_or_path") if isinstance(config, dict) else None
    if not isinstance(base, str) or not base:
        raise ConfigError(f"policy {folder!r}: {ADAPTER} names no base model")
    revision = config.get("revision")
    return Mark(base, revision if isinstance(revision, str) else None)


def mark_of_training(
    name: str,
    revision: str | None,
    chat_template_kwargs: Mapping[str, Any],
    content_hashes: Collection[str],
) -> Mark:
    """The mark of what is trained on this policy and these items.

    An adapter's training goes on with the adapter itself, so its mark keeps the base; and whatever the
    policy was trained on before still counts.
    """
    before = trained_on(name, revision)
    base, at = name, revision
    if is_adapter(name, revision):
        old = base_of_adapter(folder_of(name, revision))
        base, at = old.name, old.revision
    hashes = sorted({*before, *map(short_hash, content_hashes)})
    return Mark(base, at, dict(chat_template_kwargs), tuple(hashes))


def trained_on(name: str, revision: str | None = None) -> frozenset[str]:
    """Short hashes of the items that recipes trained a policy on, as far as its mark tells.

    Raises:
        ConfigError, HubUnreachable: see `is_adapter`.
    """
    if name == POLICY_NAME:
        return frozenset()
    adapter = is_adapter(name, revision)
    if _is_dir(name):
        folder = name
    else:
        repository = _look_up(name, revision)
        if MARK not in repository.files:
            return frozenset()
        folder = repository.fetch(MARK)
    mark = mark_in(folder)
    if mark is None:
        return frozenset()
    # An adapter may have been trained on a model that a recipe had trained before.
    below = trained_on(mark.name, mark.revision) if adapter and _is_dir(mark.name) else ()
    return frozenset(mark.trained_on).union(below)


def _read_json(file: Path) -> Any:
    try:
        return json.loads(file.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"{file}: cannot be read ({told(error)}). If it is damaged, fetch or save it again"
        ) from None


# ---------------------------------------------------------------- fingerprints


def fingerprint(name: str, revision: str | None = None) -> str:
    """12 hex digits that change when a policy's weights, tokenizer, template or configuration do.

    Small files are read whole, large ones in samples (`PROBES`), which takes well under a second. An
    adapter's fingerprint covers its base. The embedded policy's is that of the file it is made from.

    Raises:
        ConfigError, HubUnreachable: see `folder_of`.
    """
    if name == POLICY_NAME:
        return POLICY_SHA256[:12]
    folder = Path(folder_of(name, revision))
    digest = _digest(file for file in folder.iterdir() if file.suffix in DECIDES)
    if is_adapter(name, revision):
        base = base_of_adapter(str(folder))
        digest.update(fingerprint(base.name, base.revision).encode())
    return digest.hexdigest()[:12]


def fingerprint_of_weights(name: str, revision: str | None = None) -> str:
    """The same of a model's weights and config.json alone: of a hub's, a cache may lack the other files.

    Raises:
        ConfigError, HubUnreachable: see `folder_of`.
    """
    if name == POLICY_NAME:
        return POLICY_SHA256[:12]
    files = list(Path(folder_of(name, revision)).iterdir())
    weights = [file for file in files if file.suffix == ".safetensors"]
    weights = weights or [file for file in files if file.suffix == ".bin"]
    return _digest([*weights, *(f for f in files if f.name == "config.json")]).hexdigest()[:12]


def fingerprint_of_folder(folder: str | os.PathLike[str], without: Collection[str] = ()) -> str:
    """The same of the files of one folder, without those of some names and without a base."""
    files = (file for file in Path(folder).iterdir() if file.name not in without)
    return _digest(file for file in files if file.suffix in DECIDES).hexdigest()[:12]


def _digest(files: Iterable[Path]) -> hashlib._Hash:
    digest = hashlib.sha256()
    for file in sorted(files):
        if file.is_file():
            digest.update(f"{file.name} {file.stat().st_size}\n".encode())
            for piece in _pieces(file):
                digest.update(piece)
    return digest


def _pieces(file: Path) -> Iterator[bytes]:
    size = file.stat().st_size
    with file.open("rb") as stream:
        if size <= PROBE * PROBES:
            yield stream.read()
            return
        for i in range(PROBES):
            stream.seek((size - PROBE) * i // (PROBES - 1), os.SEEK_SET)
            yield stream.read(PROBE)
