"""Which files an agent may name: those in the folders that the person gave, links followed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spark_prof.errors import CommandError, os_errors
from spark_prof.traces.remote import is_url
from spark_prof.traces.resolve import NoMembersError, find_members, is_bundle

LATEST = ":latest"
_LONGEST_PATH = 1_000
_MOST_ENTRIES = 100_000


@dataclass(frozen=True)
class AllowedFolders:
    """The folders, links resolved; a relative path is looked for in each, one after the other."""

    roots: tuple[Path, ...]

    @classmethod
    def of(cls, folders: list[Path]) -> AllowedFolders:
        """Allows these folders; refuses one that does not exist."""
        if missing := [folder for folder in folders if not folder.is_dir()]:
            raise CommandError(f"{missing[0]} is no folder; give folders that hold recordings")
        return cls(tuple(folder.resolve() for folder in folders))

    def source(self, named: str) -> str:
        """The path of a recording, trace or checkpoint; refuses what lies or leads elsewhere.

        `:latest` is the latest of all, `:latest WORDS` of those with WORDS in their names: an
        answer can say so without a name that somebody else gave a folder.
        """
        if named == LATEST or named.startswith(f"{LATEST} "):
            words = named.removeprefix(LATEST).strip().lower()
            rows = [row for row in self.recordings()[0] if words in row["recording"].lower()]
            if not rows:
                raise CommandError(f"no recording is called {words:.100}; ask recordings")
            named = rows[0]["recording"]
        for path in self._candidates(named):
            if os.path.exists(path):
                self._check(path, named)
                return str(path)
        raise CommandError(f"{named:.200} is not in the folders of this server; ask recordings")

    def new_folder(self, named: str) -> str:
        """The path of a folder that does not exist yet, in the first of the folders it fits."""
        for path in self._candidates(named):
            if not os.path.lexists(path) and path.parent.is_dir():
                return str(path)
        raise CommandError(f"out {named:.200}: name a new folder in the folders of this server")

    def short_path(self, path: str) -> str:
        """The path as `source` takes it, as short as may be."""
        for root in self.roots:
            with suppress(ValueError):
                short = str(Path(path).relative_to(root))
                if next(self._candidates(short), None) == Path(path):
                    return short
        return path

    def recordings(self) -> tuple[list[dict[str, Any]], int]:
        """All recordings and traces, the latest first, and how many cannot be asked for."""
        rows_by_path: dict[str, dict[str, Any]] = {}
        refused = 0
        for root in self.roots:
            with suppress(NoMembersError):
                for member in find_members(str(root)):
                    try:
                        path = self.source(member.source)
                        changed = int(os.stat(path).st_mtime)
                    except (CommandError, OSError):
                        refused += 1
                        continue
                    kind = "recording" if is_bundle(Path(path)) else "trace"
                    rows_by_path[path] = {
                        "recording": self.short_path(path),
                        "kind": kind,
                        "changed": changed,
                    }
        rows = sorted(rows_by_path.values(), key=lambda row: (-row["changed"], row["recording"]))
        return rows, refused

    def _candidates(self, named: str) -> Iterator[Path]:
        """The paths in the allowed folders that the name may mean, links resolved."""
        if not 0 < len(named) <= _LONGEST_PATH or not named.isprintable() or is_url(named):
            raise CommandError(f"{named!r:.80} is no path of a recording; ask recordings")
        for root in self.roots:
            path = Path(os.path.realpath(root / named))
            if any(path.is_relative_to(folder) for folder in self.roots):
                yield path

    def _check(self, path: Path, named: str) -> None:
        """Refuses a folder in which a link leads out of all the folders."""
        waiting, visited, entries = [path] if path.is_dir() else [], {path}, 0
        while waiting:
            with os_errors(f"cannot look into {named:.200}"):
                for entry in os.scandir(waiting.pop()):
                    entries += 1
                    here = Path(os.path.realpath(entry.path) if entry.is_symlink() else entry.path)
                    if not any(here.is_relative_to(root) for root in self.roots):
                        raise CommandError(f"{named:.200}: a link leads out of the folders")
                    if here not in visited and here.is_dir():
                        visited.add(here)
                        waiting.append(here)
            if entries > _MOST_ENTRIES:
                raise CommandError(f"{named:.200} holds too many files; name one recording in it")
