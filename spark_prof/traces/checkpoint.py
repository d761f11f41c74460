"""Opens the folder of a model: its configuration and what its tensors are, not their values."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from spark_prof.errors import CommandError
from spark_prof.traces.readers.safetensors_header import HeaderError, Tensor, read_header

_LARGEST_JSON = 64 << 20
_LARGEST_INDEX = 256 << 20
_MOST_FILES = 4096
_MOST_TENSORS = 4_000_000
_NAMED = 3
_INDEX = "model.safetensors.index.json"
_CONFIG = "config.json"
_MISTRAL = "params.json"
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")


@dataclass(frozen=True)
class Checkpoint:
    """What a model's folder says without its weights being read."""

    folder: str
    config: Mapping[str, Any]  # config.json, else Mistral's params.json; empty where there is none
    # Quantization_config of config.json, else what hf_quant_config.json says.
    quantization: Mapping[str, Any]
    tensors: tuple[Tensor, ...]  # of the safetensors files, empty where there are none
    lost: tuple[str, ...] = ()  # what could not be read and what that means, a line each


def read_checkpoint(folder: Path) -> Checkpoint:
    """Reads config.json, hf_quant_config.json and the headers of the safetensors files.

    Args:
        folder: as of a download from Hugging Face, or the folder of its cache (models--...).

    Raises:
        CommandError: there is neither a configuration nor a tensor to be found.
    """
    if not folder.is_dir():
        raise CommandError(f"{folder} is no folder; give the one that holds config.json")
    folder = _snapshot(folder)
    lost: list[str] = []
    config = _json(folder / "config.json", lost, needed=not (folder / _MISTRAL).exists())
    config = config or _json(folder / _MISTRAL, lost, needed=False)
    quantization = config.get("quantization_config")
    if not isinstance(quantization, dict):
        quantization = _json(folder / "hf_quant_config.json", lost, needed=False)
        inner = quantization.get("quantization")
        quantization = inner if isinstance(inner, dict) else {}
    tensors = _read_files(folder, lost)
    if not config and not tensors:
        raise CommandError(
            f"{folder} holds neither a readable config.json nor safetensors files; give the folder "
            "of a model"
        )
    return Checkpoint(str(folder), config, quantization, tensors, tuple(lost))


def model_folder(named: str) -> Path:
    """The folder of a model: itself, that of its config.json, or the one in Hugging Face's cache.

        model_folder("openai/gpt-oss-120b")

    Raises:
        CommandError: there is none.
    """
    path = Path(named)
    if path.name == _CONFIG and path.is_file():
        return path.parent
    if path.is_dir() or not _HUB_NAME.fullmatch(named):
        return path
    hub = os.environ.get("HF_HUB_CACHE")
    home = os.environ.get("HF_HOME") or "~/.cache/huggingface"
    cache = Path(hub).expanduser() if hub else Path(home).expanduser() / "hub"
    folder = cache / f"models--{named.replace('/', '--')}"
    if not folder.is_dir():
        raise CommandError(
            f"{named} is no folder and not in Hugging Face's cache ({cache}); its config.json is "
            f"enough: hf download {named} {_CONFIG}"
        )
    return folder


def is_model(named: str) -> bool:
    """Whether a person named a model: a folder with its configuration, or one of the cache."""
    try:
        folder = _snapshot(model_folder(named))
    except (CommandError, OSError):
        return False
    return any((folder / name).is_file() for name in (_CONFIG, _MISTRAL))


def _snapshot(folder: Path) -> Path:
    """The newest snapshot, where the folder is one of Hugging Face's cache."""
    if (folder / "config.json").exists() or not (folder / "snapshots").is_dir():
        return folder
    snapshots = [path for path in (folder / "snapshots").iterdir() if path.is_dir()]
    return max(snapshots, key=lambda path: path.stat().st_mtime, default=folder)


def _json(path: Path, lost: list[str], *, needed: bool = True) -> dict[str, Any]:
    """A JSON object of bounded size; empty, with a line in `lost`, where there is none."""
    try:
        with open(path, "rb") as file:
            text = file.read(_LARGEST_JSON + 1)
    except OSError as error:
        if needed or path.exists():
            lost.append(f"{path.name} cannot be read: {error.strerror or error}.")
        return {}
    if len(text) > _LARGEST_JSON:
        lost.append(f"{path.name} is larger than {_LARGEST_JSON >> 20} MiB and was not read.")
        return {}
    try:
        found = msgspec.json.decode(text.removeprefix(b"\xef\xbb\xbf"))
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        lost.append(f"{path.name} is no JSON: {error}.")
        return {}
    if isinstance(found, dict):
        return found
    lost.append(f"{path.name} is no JSON object.")
    return {}


def _read_files(folder: Path, lost: list[str]) -> tuple[Tensor, ...]:
    """The tensors of every file of the model; what is wrong with one becomes a line."""
    names = _listed(folder, lost)
    tensors: dict[str, Tensor] = {}
    repeated = 0
    unread: list[str] = []
    for name in names[:_MOST_FILES]:
        try:
            header = read_header(folder / name)
        except HeaderError as error:
            lost.append(f"{name} {error}; its tensors are not counted.")
            continue
        except OSError:
            unread.append(name)
            continue
        if header.missing_bytes:
            lost.append(
                f"{name} is {header.missing_bytes:,} bytes shorter than its header says; its "
                "tensors are counted as the header has them."
            )
        if header.overlapping:
            lost.append(f"{name} has tensors that share their data; each is counted whole.")
        if header.refused:
            lost.append(
                f"{name} describes {header.refused} tensors as none can be; they are not counted."
            )
        for tensor in header.tensors:
            repeated += tensor.name in tensors
            tensors.setdefault(tensor.name, tensor)
        if len(tensors) > _MOST_TENSORS:
            lost.append(
                f"There are more than {_MOST_TENSORS:,} tensors; those after {name} are left."
            )
            break
    if unread:
        lost.append(
            f"{len(unread)} of {len(names)} files are not there, such as "
            f"{', '.join(unread[:_NAMED])}; their tensors are not counted."
        )
    if len(names) > _MOST_FILES:
        lost.append(f"Only the first {_MOST_FILES:,} of {len(names):,} files were read.")
    if repeated:
        lost.append(f"{repeated} tensors are there twice; each was counted once.")
    return tuple(tensors.values())


def _listed(folder: Path, lost: list[str]) -> list[str]:
    """Names of the model's files: those of the index, else all that hold weights of the model."""
    index = folder / _INDEX
    if index.exists() and index.stat().st_size <= _LARGEST_INDEX:
        try:
            text = index.read_bytes()
            shards = msgspec.json.decode(text, type=_Index).weight_map.values()
            # A path that leads out of the folder is no file of this model.
            return sorted({name for name in shards if name == Path(name).name and name})
        except (OSError, msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
            lost.append(f"{_INDEX} cannot be read ({error}); all files were taken.")
    names = sorted(path.name for path in folder.glob("*.safetensors"))
    names = [name for name in names if not name.startswith("adapter_")]
    if "model.safetensors" in names:
        return ["model.safetensors"]
    # Mistral's downloads hold the same weights twice.
    return [name for name in names if not name.startswith("consolidated")] or names


class _Index(msgspec.Struct):
    weight_map: dict[str, str]
