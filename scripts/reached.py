"""Which tests run what a mutant changes, by what `scripts/reach.py` wrote down."""

from __future__ import annotations

import ast
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "build" / "reach"
WITHOUT = ("tests/engine", "tests/browser", "tests/scripts")
"""What takes longer than all mutants together."""
_QUICK = 2.0

Lines = Mapping[str, set[int]]
"""Lines of files, which are relative to the root."""


@dataclass(frozen=True)
class Test:
    """One test, as it ran when the map was made."""

    name: str  # of pytest
    seconds: float
    shared: Mapping[str, float]  # what it shares with others, and how long that takes

    @property
    def file(self) -> str:
        """Where it stands."""
        return self.name.partition("::")[0]


@dataclass
class Reached:
    """The map of lines to tests."""

    folder: Path = FOLDER
    root: Path = ROOT
    _by_file: dict[str, dict[int, set[str]]] = field(default_factory=dict)

    @cached_property
    def tests(self) -> dict[str, Test]:
        """Every test that passed."""
        rows = [
            json.loads(line)
            for file in sorted(self.folder.glob("tests-*.jsonl"), key=lambda f: f.stat().st_mtime)
            for line in file.read_text().splitlines()
        ]
        last = {row["test"]: row for row in rows}
        return {
            name: Test(name, row["seconds"], row["shared"])
            for name, row in last.items()
            if row["passed"] and (self.root / name.partition("::")[0]).exists()
        }

    @property
    def lacking(self) -> list[str]:
        """The folders of tests of which it has none; what starts engines and browsers never is."""
        folders = {f"tests/{path.parts[-2]}" for path in self.root.glob("tests/*/test_*.py")}
        return sorted(
            folder for folder in folders.difference(WITHOUT)
            if not any(name.startswith(f"{folder}/") for name in self.tests)
        )  # fmt: skip

    @cached_property
    def _users(self) -> dict[str, set[str]]:
        users = defaultdict(set)
        for test in self.tests.values():
            for label in (test.name, *test.shared):
                users[label].add(test.name)
        return users

    def _contexts(self, file: str) -> dict[int, set[str]]:
        if file not in self._by_file:
            from coverage import CoverageData

            lines: dict[int, set[str]] = defaultdict(set)
            for path in self.folder.glob("lines*"):
                data = CoverageData(str(path))
                data.read()
                for line, names in data.contexts_by_lineno(str(self.root / file)).items():
                    lines[line].update(names)
            self._by_file[file] = lines
        return self._by_file[file]

    def of_lines(self, lines: Lines) -> set[str]:
        """The tests that run one of these lines."""
        labels = {
            label
            for file, numbers in lines.items()
            for number in numbers
            for label in self._contexts(file).get(number, ())
        }
        return {name for label in labels for name in self._users.get(label, ())}

    def ordered(self, names: Iterable[str], first: str, most: float) -> list[str]:
        """These tests, what is likely to fail and quick first, of so many seconds in all.

        `first` begins the paths of the files that are first; those beside them follow.
        """
        beside = f"{first.rpartition('/')[0]}/"

        def distance(test: Test) -> int:
            if test.seconds > _QUICK:
                return 3
            return 0 if test.file.startswith(first) else 1 if test.file.startswith(beside) else 2

        chosen: list[Test] = []
        paid: set[str] = set()
        spent = 0.0
        tests = [self.tests[name] for name in names]
        for test in sorted(tests, key=lambda t: (distance(t), t.seconds)):
            spent += test.seconds + sum(
                took for label, took in test.shared.items() if label not in paid
            )
            if chosen and spent > most:
                break
            paid.update(test.shared)
            chosen.append(test)
        # Tests of a file stay together, as they share what its fixtures make.
        place = {test.file: -n for n, test in enumerate(reversed(chosen))}
        chosen.sort(key=lambda t: (t.seconds > _QUICK, place[t.file], t.seconds))
        return [test.name for test in chosen]


@dataclass
class Package:
    """The sources, as what a line of a module is for is read from them."""

    root: Path = ROOT

    @cached_property
    def trees(self) -> dict[str, ast.Module]:
        """Every file, parsed."""
        files = sorted((self.root / "spark_prof").rglob("*.py"))
        return {f.relative_to(self.root).as_posix(): ast.parse(f.read_text()) for f in files}

    @cached_property
    def _uses(self) -> dict[str, list[tuple[str, ast.stmt, int]]]:
        """Where each name is read: the file, the statement of the module, and the line."""
        uses = defaultdict(list)
        for file, tree in self.trees.items():
            for top in tree.body:
                for node in ast.walk(top):
                    name = getattr(node, "id", None) or getattr(node, "attr", None)
                    if name:
                        uses[name].append((file, top, node.lineno))  # type: ignore[attr-defined]
        return uses

    @cached_property
    def _importers(self) -> dict[str, set[str]]:
        """For each dotted name of the package the files of the tests that import it."""
        importers = defaultdict(set)
        for path in sorted((self.root / "tests").rglob("test_*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                for name in _imported(node):
                    importers[name].add(path.relative_to(self.root).as_posix())
        return importers

    def importers(self, file: str) -> list[str]:
        """The files of the tests that import a file of the package."""
        name = file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        return sorted(self._importers.get(name, ()))

    def lines(self, file: str, line: int, end: int) -> Iterator[Lines]:
        """The lines whose tests see a change there: the narrowest choice first, then wider ones."""
        top = next(s for s in self.trees[file].body if s.lineno <= line <= _end(s) or
                   line <= s.lineno)  # fmt: skip
        function = _function(top, line)
        if function is not None:
            body = {n for s in function.body for n in range(s.lineno, _end(s) + 1)}
            if line in body:
                around = [s for s in ast.walk(function) if isinstance(s, ast.stmt)]
                around = [s for s in around if s.lineno <= line <= _end(s)]
                inner = min(around, key=lambda s: _end(s) - s.lineno)
                yield {file: set(range(line, end + 1))}
                if not hasattr(inner, "body"):
                    yield {file: set(range(inner.lineno, _end(inner) + 1))}
            yield {file: body}
            return
        yield self._readers(top, set())

    def _readers(self, top: ast.stmt, visited: set[int]) -> dict[str, set[int]]:
        """Lines inside functions that read what a statement of a module makes."""
        lines_of: dict[str, set[int]] = defaultdict(set)
        if id(top) in visited or len(visited) > 30:
            return lines_of
        visited.add(id(top))
        for name in _bound_names(top):
            for where, reader, line in self._uses.get(name, ()):
                if _function(reader, line) is not None:
                    lines_of[where].add(line)
                elif reader is not top:
                    for other, lines in self._readers(reader, visited).items():
                        lines_of[other] |= lines
        return lines_of


def _end(node: Any) -> int:
    return int(node.end_lineno or node.lineno)


def _imported(node: ast.AST) -> Iterator[str]:
    """The modules that a statement imports, by all that it may mean."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
        yield node.module
        yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _function(top: ast.stmt, line: int) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    """The innermost function around a line."""
    around = [node for node in ast.walk(top) if isinstance(node, ast.FunctionDef |
              ast.AsyncFunctionDef) and node.lineno <= line <= _end(node)]  # fmt: skip
    return min(around, key=lambda node: _end(node) - node.lineno, default=None)


def _bound_names(top: ast.stmt) -> set[str]:
    """The names that a statement of a module makes."""
    if isinstance(top, ast.ClassDef | ast.FunctionDef):
        return {top.name}
    targets = getattr(top, "targets", None) or [getattr(top, "target", None)]
    return {node.id for target in targets if target is not None for node in ast.walk(target)
            if isinstance(node, ast.Name)}  # fmt: skip
