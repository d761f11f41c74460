"""Opens the folder of a model: its configuration and what its tensors are, not their values.

A safetensors file is 8 bytes, little-endian, the length of a JSON object; that object, from a
tensor's name to its dtype, shape and place in the data; the data. Source: huggingface/safetensors,
README.md. The package `safetensors` refuses a file that is cut short, or that has one entry which
it does not know, as a whole; here is told what such a file holds, and what is missing.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from spark_prof.errors import CommandError

LARGEST_HEADER = 100_000_000  # the longest header that the format's own reader takes, in bytes

_MOST_DIMENSIONS = 16
_LARGEST_TENSOR = 1 << 50
_LONGEST_NAME = 1000
LFS_POINTER = b"version https://git-lfs"

BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16,
    "I32": 32, "U32": 32, "F32": 32, "I64": 64, "U64": 64, "F64": 64, "C64": 64,
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
}  # fmt: skip
"""Bits of one element, by the format's name of its type."""


class HeaderError(Exception):
    """A file whose header cannot be read; the text says why, without the file's name."""


@dataclass(frozen=True)
class Tensor:
    """One tensor as its header describes it."""

    name: str
    dtype: str  # the format's name of its type, such as BF16 or F8_E4M3
    shape: tuple[int, ...]  # of what is stored; of packed weights that is not the matrix's shape
    bytes: int  # what it takes in the file


@dataclass(frozen=True)
class Header:
    """What a file says of its tensors."""

    tensors: tuple[Tensor, ...]
    refused: int  # entries that cannot be true, such as a negative size
    missing_bytes: int  # how much shorter the file is than its header says
    overlapping: bool  # whether tensors share data


class _HeaderEntry(msgspec.Struct):
    dtype: str = ""
    shape: list[int] = []
    data_offsets: list[int] = []


def read_header(path: Path) -> Header:
    """Reads the header of one file.

    Raises:
        HeaderError: the file is no safetensors file, is cut short within its header, or lies.
        OSError: it cannot be read.
    """
    with open(path, "rb") as file:
        begin = file.read(8)
        if begin and LFS_POINTER.startswith(begin):
            raise HeaderError("is a Git LFS pointer, not the file; git lfs pull fetches it")
        if len(begin) < 8:
            raise HeaderError("is cut short before its header")
        length = int.from_bytes(begin, "little")
        if length > LARGEST_HEADER:
            raise HeaderError(f"is no safetensors file: its header would be {length:,} bytes long")
        text = file.read(length)
        size = file.seek(0, 2)
    if len(text) < length:
        raise HeaderError(f"is cut short in its header, after {len(text):,} of {length:,} bytes")
    entries = list(_entries(text))
    tensors = [(_tensor(name, entry), entry) for name, entry in entries]
    tensor_spans = [(tensor, entry.data_offsets) for tensor, entry in tensors if tensor and entry]
    spans = sorted((first, last) for _, (first, last) in tensor_spans)
    end = max((last for _, last in spans), default=0)
    return Header(
        tensors=tuple(tensor for tensor, _ in tensor_spans),
        refused=len(entries) - len(tensor_spans),
        missing_bytes=max(8 + length + end - size, 0),
        overlapping=any(after[0] < before[1] for before, after in pairwise(spans)),
    )


def _entries(text: bytes) -> Iterator[tuple[str, _HeaderEntry | None]]:
    """Every entry of the header, None for one that is none."""
    try:
        entries: dict[str, msgspec.Raw] = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise HeaderError(f"has a header that is no JSON object of tensors: {error}") from error
    decoder = msgspec.json.Decoder(_HeaderEntry)
    for name, raw in entries.items():
        if name == "__metadata__":
            continue
        try:
            yield name, decoder.decode(raw)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
            yield name, None


def _tensor(name: str, entry: _HeaderEntry | None) -> Tensor | None:
    """The tensor of an entry, None where it cannot be true."""
    if entry is None or len(entry.shape) > _MOST_DIMENSIONS or len(name) > _LONGEST_NAME:
        return None
    if any(not 0 <= size <= _LARGEST_TENSOR for size in entry.shape):
        return None
    offsets = entry.data_offsets
    if len(offsets) != 2 or not 0 <= offsets[0] <= offsets[1] <= _LARGEST_TENSOR:
        return None
    stored = offsets[1] - offsets[0]
    bits = BITS.get(entry.dtype)
    if bits is not None and -(-math.prod(entry.shape) * bits // 8) != stored:
        return None
    return Tensor(name, entry.dtype, tuple(entry.shape), stored)


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
    """Reads config.json, hf_quant_config.json and the headers of the safetensors files."""
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
        document = msgspec.json.decode(text.removeprefix(b"\xef\xbb\xbf"))
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        lost.append(f"{path.name} is no JSON: {error}.")
        return {}
    if isinstance(document, dict):
        return document
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
