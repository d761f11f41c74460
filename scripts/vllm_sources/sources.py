"""The Python sources of one vLLM, out of a wheel, an sdist or a folder; nothing is unpacked."""

from __future__ import annotations

import ast
import re
import tarfile
import warnings
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import IO

MOST_FILES = 20_000
MOST_BYTES = 400_000_000
LARGEST_FILE = 8_000_000
MOST_MEMBERS = 200_000

_PACKAGE = "vllm"
_VERSION = re.compile(r"^v?(\d{1,4}(?:\.\d{1,4}){1,3}(?:[.\-+\w]{0,60})?)$")
_METADATA = re.compile(rb"^Version: ?([^\s]{1,80})\s*$", re.M)
_VERSION_LINE = re.compile(rb"^__version__ = version = ['\"]([^'\"]{1,80})['\"]", re.M)


class SourceError(Exception):
    """Sources that cannot be read; one line that says why."""


class Sources:
    """The Python sources of one vLLM.

        sources = open_sources(Path("vllm-0.33.0-cp312-abi3-manylinux_2_28_x86_64.whl"))
        sources.version, sources.tree("vllm.envs")

    A module is named as Python does; a package's own module is its name.
    """

    def __init__(self, version: str, texts: Mapping[str, bytes]) -> None:
        self.version = version
        self.texts = texts  # by path, such as vllm/envs.py
        self._trees: dict[str, ast.Module] = {}

    def path_of(self, module: str) -> str:
        """Where a module lies, such as vllm/config/__init__.py; empty where there is none."""
        base = module.replace(".", "/")
        return next((p for p in (f"{base}.py", f"{base}/__init__.py") if p in self.texts), "")

    def modules(self) -> Iterator[str]:
        """The names of all modules."""
        for path in self.texts:
            yield module_of(path)

    def tree(self, module: str) -> ast.Module | None:
        """A module's syntax tree, read once; None where there is no such module."""
        path = self.path_of(module)
        if not path:
            return None
        if path not in self._trees:
            self._trees[path] = self.parse(path)
        return self._trees[path]

    def parse(self, path: str) -> ast.Module:
        """The syntax tree of a file, which is not kept."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return ast.parse(self.texts[path])
        except SyntaxError as error:
            where = f"{path}: line {error.lineno or 0}"
            raise SourceError(f"{where}: this Python cannot read it: {error.msg}") from None
        except (ValueError, RecursionError, MemoryError) as error:
            kind = type(error).__name__
            raise SourceError(f"{path}: this Python cannot read it: {kind}") from None


def module_of(path: str) -> str:
    """The module of a path: vllm/config/__init__.py is vllm.config."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def open_sources(path: Path) -> Sources:
    """The sources in a wheel, an sdist or a folder that has, or is, the package vllm.

    Raises:
        SourceError: there are none, or they are broken or too large.
    """
    try:
        if path.is_dir():
            texts, version = _from_folder(path)
        elif path.is_file() and zipfile.is_zipfile(path):
            texts, version = _from_zip(path)
        elif path.is_file() and tarfile.is_tarfile(path):
            texts, version = _from_tar(path)
        else:
            raise SourceError("it is neither a wheel, an sdist nor a folder")
    except SourceError as error:
        raise SourceError(f"{path}: {error}") from None
    except (OSError, EOFError, RuntimeError, NotImplementedError, ValueError, zlib.error,
            zipfile.BadZipFile, tarfile.TarError) as error:  # fmt: skip
        raise SourceError(f"{path}: cannot be read: {error or type(error).__name__}") from None
    if "vllm/envs.py" not in texts:
        raise SourceError(f"{path}: has no vllm/envs.py, so it is no vLLM")
    if not version:
        raise SourceError(f"{path}: does not say which version it is")
    return Sources(version, texts)


class _Collector:
    """Takes files up to the limits."""

    def __init__(self) -> None:
        self.texts: dict[str, bytes] = {}
        self.size = 0
        self.metadata = b""

    def wants(self, name: str) -> str:
        """The path that a member is kept under, METADATA for the package's own; else empty."""
        parts = PurePosixPath(name).parts
        if name.endswith((".dist-info/METADATA", "/PKG-INFO")) and len(parts) == 2:
            return "METADATA" if parts[0].startswith(_PACKAGE) else ""
        if len(parts) > 1 and re.match(rf"{_PACKAGE}-\d", parts[0]):
            parts = parts[1:]  # an sdist
        if not name.endswith(".py") or not parts or parts[0] != _PACKAGE or ".." in parts:
            return ""
        return "/".join(parts)

    def take(self, name: str, file: IO[bytes]) -> None:
        """Reads a member."""
        text = file.read(LARGEST_FILE + 1)
        self.size += len(text)
        if len(text) > LARGEST_FILE:
            raise SourceError(f"{name} is larger than {LARGEST_FILE // 1_000_000} MB")
        if self.size > MOST_BYTES or len(self.texts) >= MOST_FILES:
            raise SourceError(
                f"more than {MOST_FILES:,} files or {MOST_BYTES // 1_000_000} MB of Python"
            )
        if name == "METADATA":
            self.metadata = text
        else:
            self.texts[name] = text

    def result(self, name: str) -> tuple[dict[str, bytes], str]:
        """The files and the version, by metadata, by _version.py or by the name of what was read.

        A folder's name counts only where it is a version.
        """
        for pattern, text in (
            (_METADATA, self.metadata),
            (_VERSION_LINE, self.texts.get("vllm/_version.py", b"")),
        ):
            if match := pattern.search(text):
                name = match[1].decode("ascii", "replace")
                break
        else:
            if wheel := re.match(r"vllm(?:_cpu)?-([^-]+)", name):
                name = wheel[1].removesuffix(".tar.gz")
        return self.texts, name if _VERSION.match(name) else ""


def _from_zip(path: Path) -> tuple[dict[str, bytes], str]:
    collector = _Collector()
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        if len(members) > MOST_MEMBERS:
            raise SourceError(f"more than {MOST_MEMBERS:,} members")
        for member in members:
            if name := collector.wants(member.filename):
                with archive.open(member) as file:
                    collector.take(name, file)
    return collector.result(path.name)


def _from_tar(path: Path) -> tuple[dict[str, bytes], str]:
    collector = _Collector()
    with tarfile.open(path) as archive:
        for count, member in enumerate(archive):
            if count > MOST_MEMBERS or archive.offset > 16 * MOST_BYTES:
                raise SourceError("too many members, or too large")
            if member.isfile() and (name := collector.wants(member.name)):
                file = archive.extractfile(member)
                assert file is not None
                collector.take(name, file)
    return collector.result(path.name)


def _from_folder(path: Path) -> tuple[dict[str, bytes], str]:
    package = next((p for p in (path, path / _PACKAGE) if (p / "envs.py").is_file()), None)
    if package is None:
        raise SourceError(f"it has no {_PACKAGE}/envs.py")
    collector = _Collector()
    for file in _python_files(package):
        with file.open("rb") as opened:
            collector.take(f"{_PACKAGE}/{file.relative_to(package).as_posix()}", opened)
    for metadata in sorted(package.parent.glob(f"{_PACKAGE}*.dist-info/METADATA"))[:1]:
        collector.metadata = metadata.read_bytes()[:LARGEST_FILE]
    return collector.result(package.parent.name)


def _python_files(package: Path) -> Iterator[Path]:
    """The regular files below a folder; links are not followed."""
    waiting, count = [package], 0
    while waiting:
        for entry in sorted(waiting.pop().iterdir()):
            count += 1
            if count > MOST_MEMBERS:
                raise SourceError(f"more than {MOST_MEMBERS:,} files")
            if entry.is_symlink():
                continue
            if entry.is_dir():
                waiting.append(entry)
            elif entry.suffix == ".py" and entry.is_file():
                yield entry
