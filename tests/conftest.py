"""Shared fixtures. Nothing here reaches a network: hubs are switched off for the whole suite."""

import os
from pathlib import Path

import pytest

# Before any test imports huggingface_hub, which reads these once.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# What tests start prints as it does for most users: what cannot be written shows at exit alone.
os.environ.pop("PYTHONUNBUFFERED", None)
# Hundreds of processes are started. Without bytecode each would compile the package for most of a second.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# Records that a user of this machine keeps must not get into reports under test.
os.environ["XYREWARD_CALIBRATION"] = os.devnull

from xyreward.items import Item
from xyreward.loading import load_items
from xyreward.testing import tiny_policy


@pytest.fixture(scope="session")
def mini() -> list[Item]:
    return load_items("mini")


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with a randomly initialised policy."""
    return tiny_policy(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def external_data() -> Path:
    """The folder of third-party data, which is not part of this repository."""
    folder = os.environ.get("XYREWARD_EXTERNAL_DATA")
    if not folder:
        pytest.skip("XYREWARD_EXTERNAL_DATA is not set")
    return Path(folder)
