"""Copies what a URL names to the local disk: a bundle or a trace, from any store fsspec knows.

A URL is only ever opened because a person named it. The copy is bounded by what really arrives,
not by what the store says, and no name from the store leads out of the target folder.
"""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from spark_prof.errors import CommandError
from spark_prof.traces.bundle import META_FILE, Meta, is_table_file

__all__ = ["MOST_BYTES", "is_url", "local_copy"]

MOST_BYTES = 64 << 30
_MOST_FILES = 20_000
_DEPTH = 6
_BLOCK = 8 << 20
_URL = re.compile(r"[a-z][a-z0-9+.-]{1,15}://", re.I)
_PACKAGES = {
    "s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "http": "aiohttp",
    "https": "aiohttp", "az": "adlfs", "abfs": "adlfs", "abfss": "adlfs", "hf": "huggingface_hub",
}  # fmt: skip
"""What fsspec needs for a protocol, by its name on PyPI."""


def is_url(source: str) -> bool:
    """Whether the text names something in a store and not a local path."""
    return _URL.match(source) is not None


def local_copy(url: str, into: Path, most_bytes: int = MOST_BYTES) -> Path:
    """Copies the file or folder that a URL names.

    Args:
        url: such as s3://bucket/run or https://host/trace.json.gz.
        into: an empty folder.
        most_bytes: more than that is refused.

    Returns:
        The copy, a path below `into`.

    Raises:
        CommandError: the store cannot be read, a package for it is missing, or there is too much.
    """
    shown = _without_password(url)
    protocol = url.split("://", 1)[0].lower()
    if "::" in url:
        raise CommandError(f"{shown} chains stores with ::; give the URL of one store")
    copier = _Copier(shown, most_bytes)
    try:
        from fsspec.core import url_to_fs

        store, root = url_to_fs(url)
        name = PurePosixPath(urlsplit(url).path).name or "source"
        target = into / (name if name not in (".", "..") else "source")
        if protocol in ("http", "https"):
            _copy_from_web(copier, store, url, target)
        elif store.isfile(root):
            copier.copy(store, root, target)
        else:
            _copy_folder(copier, store, root, target)
    except CommandError:
        raise
    except ImportError as error:
        package = _PACKAGES.get(protocol, f"an fsspec package for {protocol}")
        raise CommandError(f"{shown} needs {package}; run: pip install {package}") from error
    except FileNotFoundError as error:
        raise CommandError(f"{shown} does not exist, or may not be read") from error
    # Every store raises exceptions of its own: what they have in common is that reading failed.
    except Exception as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise CommandError(f"cannot read {shown}: {reason}") from error
    return target


class _Copier:
    """Copies files and counts what arrives."""

    def __init__(self, shown: str, most_bytes: int) -> None:
        self._shown = shown
        self._most_bytes = most_bytes
        self._left = most_bytes
        self._files = 0

    def copy(self, store: Any, path: str, target: Path) -> None:
        self._files += 1
        if self._files > _MOST_FILES:
            raise CommandError(f"{self._shown} holds more than {_MOST_FILES:,} files; name one run")
        target.parent.mkdir(parents=True, exist_ok=True)
        with store.open(path, "rb") as source, open(target, "wb") as copy:
            while block := source.read(_BLOCK):
                self._left -= len(block)
                if self._left < 0:
                    size = f"{self._most_bytes / 2**30:,.3g} GiB"
                    raise CommandError(f"{self._shown} is larger than {size}; copy it yourself")
                copy.write(block)


def _copy_from_web(copier: _Copier, store: Any, url: str, target: Path) -> None:
    """A web server lists no folder: a bundle is what its meta.json names."""
    base = url.rstrip("/")
    if target.suffix or not store.exists(f"{base}/{META_FILE}"):
        copier.copy(store, url, target)
        return
    copier.copy(store, f"{base}/{META_FILE}", target / META_FILE)
    for name in Meta.read(target).tables:
        if is_table_file(name):
            copier.copy(store, f"{base}/{name}", target / name)


def _copy_folder(copier: _Copier, store: Any, root: str, target: Path) -> None:
    names = store.find(root, maxdepth=_DEPTH)
    if not names:
        raise FileNotFoundError(root)
    for name in sorted(names):
        below = PurePosixPath(name[len(root.rstrip("/")) :].lstrip("/"))
        if not name.startswith(root.rstrip("/")) or below.is_absolute() or ".." in below.parts:
            raise CommandError(f"{name!r:.100} lies outside of the folder that was asked for")
        copier.copy(store, name, target.joinpath(*below.parts))


def _without_password(url: str) -> str:
    """The URL for a message: without user, password and signature."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}{parts.path}"
