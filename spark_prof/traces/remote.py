"""Copies what a URL names to the local disk: a bundle or a trace, from any store fsspec knows.

A URL is only ever opened because a person named it. The copy is bounded by what really arrives,
not by what the store says, and no name from the store leads out of the target folder.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from spark_prof.errors import CommandError
from spark_prof.traces.bundle import META_FILE, Meta, is_table_file

MOST_BYTES = 64 << 30
_MOST_FILES = 20_000
_DEPTH = 6
_BLOCK = 8 << 20
_URL = re.compile(r"[a-z][a-z0-9+.-]{1,15}://", re.I)
_WEB = ("http", "https")
_PACKAGES = {
    "s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "http": "aiohttp",
    "https": "aiohttp", "az": "adlfs", "abfs": "adlfs", "abfss": "adlfs", "hf": "huggingface_hub",
    "ssh": "paramiko", "sftp": "paramiko", "smb": "smbprotocol", "webhdfs": "requests",
}  # fmt: skip
"""What fsspec needs for a protocol, by its name on PyPI."""


def is_url(source: str) -> bool:
    """Whether the text names something in a store and not a local path."""
    return _URL.match(source) is not None


def local_copy(url: str, into: Path, most_bytes: int = MOST_BYTES) -> Path:
    """Copies the file or folder that a URL names; the copy's path below `into`."""
    address = without_password(url)
    name = PurePosixPath(urlsplit(url).path).name
    target = into / (name if name not in ("", "..") else "source")
    left = most_bytes
    with _one_line(url):
        store, root = _store(url)
        files = _on_web(store, url, target) if _protocol(url) in _WEB else _files(store, root)
        for number, (path, below) in enumerate(files):
            if number == _MOST_FILES:
                raise CommandError(f"{address} holds more than {_MOST_FILES:,} files; name one run")
            copy = target.joinpath(*PurePosixPath(below).parts)
            copy.parent.mkdir(parents=True, exist_ok=True)
            with store.open(path, "rb") as source, open(copy, "wb") as file:
                while block := source.read(_BLOCK):
                    left -= len(block)
                    if left < 0:
                        size = f"{most_bytes / 2**30:,.3g} GiB"
                        raise CommandError(f"{address} is larger than {size}; copy it yourself")
                    file.write(block)
    return target


def list_files(url: str) -> list[str] | None:
    """The files below a URL by their path from there; None where it names a file or a web page."""
    if _protocol(url) in _WEB:
        return None
    with _one_line(url):
        store, root = _store(url)
        return None if store.isfile(root) else _below(store, root)


def _protocol(url: str) -> str:
    if "::" in url:
        raise CommandError(f"{without_password(url)} chains stores with ::; give one store's URL")
    return url.split("://", 1)[0].lower()


def _store(url: str) -> tuple[Any, str]:
    """The store that a URL names, and the path in it."""
    from fsspec.core import url_to_fs

    store, root = url_to_fs(url)
    return store, str(root)


@contextmanager
def _one_line(url: str) -> Iterator[None]:
    """Says in one line what went wrong in a store."""
    address = without_password(url)
    try:
        yield
    except CommandError:
        raise
    except ImportError as error:
        protocol = _protocol(url)
        package = _PACKAGES.get(protocol)
        way = (
            f"run: pip install {package}" if package else "copy it yourself, or see fsspec's pages"
        )
        needed = package or f"a package of fsspec for {protocol}"
        raise CommandError(f"{address} needs {needed}; {way}") from error
    except FileNotFoundError as error:
        raise CommandError(f"{address} does not exist, or may not be read") from error
    # Every store raises exceptions of its own: what they have in common is that reading failed.
    except Exception as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise CommandError(f"cannot read {address}: {reason}") from error


def _files(store: Any, root: str) -> Iterator[tuple[str, str]]:
    """A file or those of a folder, each with its path from there."""
    if store.isfile(root):
        yield root, ""
        return
    for below in _below(store, root):
        yield f"{root.rstrip('/')}/{below}", below


def _on_web(store: Any, url: str, target: Path) -> Iterator[tuple[str, str]]:
    """A web server lists no folder: a bundle is what its meta.json names, which is copied first."""
    base = url.rstrip("/")
    if target.suffix or not store.exists(f"{base}/{META_FILE}"):
        yield url, ""
        return
    yield f"{base}/{META_FILE}", META_FILE
    for name in filter(is_table_file, Meta.read(target).tables):
        yield f"{base}/{name}", name


def _below(store: Any, root: str) -> list[str]:
    """The files below a folder of a store, by their path from there."""
    base = root.rstrip("/") + "/"
    names = sorted(store.find(root, maxdepth=_DEPTH))
    if not names:
        raise FileNotFoundError(root)
    if len(names) > _MOST_FILES:
        raise CommandError(f"{root} holds more than {_MOST_FILES:,} files; name one run")
    for name in names:
        # A store may hold any name: none may lead out of the folder that it is copied to.
        parts = PurePosixPath(name[len(base) :]).parts
        if not name.startswith(base) or not parts or parts[0] == "/" or ".." in parts:
            raise CommandError(f"{name!r:.100} lies outside of the folder that was asked for")
    return [name[len(base) :] for name in names]


def without_password(url: str) -> str:
    """The URL for a message: without user, password and signature."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}{parts.path}"
