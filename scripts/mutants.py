"""Plants random faults into a copy of the package, and asks whether the quick tests find each.

    python scripts/mutants.py [PATH ...] [--seed N] [--count N] [--since REF]

A mutant is one small change: a comparison, an operator, a number, a condition. Of all that could be
made in the files at PATH (`spark_prof` if none is given), or in lines changed since REF, the seed
chooses `--count`. Each is run with the tests of the folder that mirrors its own, the file of its
name first, then the properties in tests/world, until one fails. Those in
`scripts/equivalent_mutants.txt` change no behaviour and are not chosen. The score is printed last.

mutmut changes no constant of a module, and cosmic-ray runs one command for all mutants; of both
none draws by seed. So this is a tool of its own.
"""

from __future__ import annotations

import argparse
import ast
import copy
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EQUIVALENT = Path(__file__).with_name("equivalent_mutants.txt")
WORLD = "tests/world"
_WORLD_SEES = ("analyzers", "dashboards", "datasets", "exporters", "traces")

_COMPARE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
_OPERATOR: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
_NAMES = {"min": "max", "max": "min", "any": "all", "all": "any", "minimum": "maximum",
          "maximum": "minimum", "median": "mean"}  # fmt: skip
_NO_BEHAVIOUR = {"strict", "frozen", "eq", "slots", "maxsize", "observed", "copy", "indent"}
"""Keywords whose values change nothing that a report shows."""


@dataclass(frozen=True)
class Mutant:
    """One change of one expression."""

    file: str  # relative to the root
    line: int
    start: int  # bytes of the file that it replaces
    end: int
    before: str
    after: str

    @property
    def name(self) -> str:
        """What it is called in the list of equivalent ones: the line's number is left out."""
        return f"{self.file}: {_short(self.before)} -> {_short(self.after)}"


def _short(text: str) -> str:
    return " ".join(text.split())


def mutants_of(file: str, source: str) -> Iterator[Mutant]:
    """All mutants of a file, in its order."""
    raw = source.encode()
    starts = [0]
    for line in raw.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for node in _expressions(ast.parse(source)):
        start = starts[node.lineno - 1] + node.col_offset
        end = starts[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)
        for changed in _changed(node):
            text = ast.unparse(changed)
            after = f"({text})" if isinstance(changed, ast.Compare | ast.BinOp | ast.BoolOp |
                                              ast.UnaryOp) else text  # fmt: skip
            yield Mutant(file, node.lineno, start, end, raw[start:end].decode(), after)


def _expressions(tree: ast.AST) -> Iterator[ast.expr]:
    """The expressions that run: no annotations, decorators, texts and log lines."""
    for name, value in ast.iter_fields(tree):
        if name in ("annotation", "returns", "decorator_list", "type_comment", "type_params"):
            continue
        for node in value if isinstance(value, list) else [value]:
            if not isinstance(node, ast.AST) or isinstance(node, ast.JoinedStr):
                continue
            if isinstance(node, ast.keyword) and node.arg in _NO_BEHAVIOUR:
                continue
            if isinstance(node, ast.Call) and "logger" in ast.unparse(node.func):
                continue
            if isinstance(node, ast.expr):
                yield node
            yield from _expressions(node)


def _changed(node: ast.expr) -> Iterator[ast.expr]:
    new = copy.deepcopy(node)
    if isinstance(new, ast.Compare) and len(new.ops) == 1:
        new.ops = [_COMPARE[type(new.ops[0])]()]
        yield new
    elif isinstance(new, ast.BinOp) and type(new.op) in _OPERATOR:
        if not isinstance(new.left, ast.Constant) or not isinstance(new.left.value, str):
            new.op = _OPERATOR[type(new.op)]()
            yield new
    elif isinstance(new, ast.BoolOp):
        new.op = ast.Or() if isinstance(new.op, ast.And) else ast.And()
        yield new
    elif isinstance(new, ast.UnaryOp) and isinstance(new.op, ast.Not | ast.Invert | ast.USub):
        yield new.operand
    elif isinstance(new, ast.IfExp):
        new.test = ast.UnaryOp(ast.Not(), new.test)
        yield new
    elif isinstance(new, ast.Constant) and type(new.value) in (bool, int, float):
        value = new.value
        new.value = (not value) if isinstance(value, bool) else _other(value)  # type: ignore[arg-type]
        yield new
    elif isinstance(new, ast.Attribute) and new.attr in _NAMES:
        new.attr = _NAMES[new.attr]
        yield new
    elif isinstance(new, ast.Name) and new.id in _NAMES and isinstance(new.ctx, ast.Load):
        new.id = _NAMES[new.id]
        yield new


def _other(value: float) -> float:
    return value + 1 if isinstance(value, int) else value * 2 or 1.0


def changed_since(reference: str) -> dict[str, set[int]]:
    """The lines of each file of the package that are new since a commit."""
    command = ["git", "diff", "-U0", "--no-color", reference, "--", "spark_prof/*.py"]
    text = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    lines: dict[str, set[int]] = {}
    file = ""
    for line in text.splitlines():
        if line.startswith("+++ "):
            file = line.removeprefix("+++ b/")
        elif match := re.match(r"@@ \S+ \+(\d+)(?:,(\d+))? @@", line):
            first, count = int(match[1]), int(match[2] or 1)
            lines.setdefault(file, set()).update(range(first, first + count))
    return lines


def chosen(paths: Sequence[str], seed: int, count: int, since: str | None) -> list[Mutant]:
    """The mutants to run, by seed."""
    lines = changed_since(since) if since else None
    known = {row.split(" # ")[0].strip() for row in EQUIVALENT.read_text().splitlines()}
    every = []
    for path in paths:
        folder = ROOT / path
        for file in sorted(folder.rglob("*.py")) if folder.is_dir() else [folder]:
            name = file.relative_to(ROOT).as_posix()
            for mutant in mutants_of(name, file.read_text(encoding="utf-8")):
                wanted = lines is None or mutant.line in lines.get(name, ())
                if wanted and mutant.name not in known:
                    every.append(mutant)
    return random.Random(seed).sample(every, min(count, len(every)))


def tests_of(file: str) -> list[str]:
    """The tests of a file of the package, those most likely to fail first."""
    path = Path(file).relative_to("spark_prof")
    folder = ROOT / "tests" / path.parent
    while not folder.is_dir():
        folder = folder.parent
    named = re.compile(rf"test_{re.escape(path.stem)}(_|\.)")
    tests = sorted(folder.glob("test_*.py"), key=lambda test: (not named.match(test.name), test))
    whole = [test.relative_to(ROOT).as_posix() for test in tests]
    if not whole:
        whole = [folder.relative_to(ROOT).as_posix()]
    own = sum(bool(named.match(Path(test).name)) for test in whole)
    world = [WORLD] if path.parts[0] in _WORLD_SEES and (ROOT / WORLD).is_dir() else []
    return [*whole[:own], *world, *whole[own:]]


def failing(tree: Path, tests: Sequence[str], seconds: float) -> str:
    """The first of these tests that fails in a copied tree; empty where none does."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-m", "not slow", "--no-header"]
    try:
        done = subprocess.run(
            [*command, "-p", "no:cacheprovider", "-p", "no:xdist", *tests], cwd=tree, check=False,
            env=os.environ | {"PYTHONPATH": str(tree)}, capture_output=True, text=True,
            timeout=seconds,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"no end after {seconds:.0f} s"
    if done.returncode == 0:
        return ""
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    return failed[0] if failed else f"exit code {done.returncode}"


def caught(mutant: Mutant, tree: Path, tests: Sequence[str], seconds: float) -> str:
    """The test that fails with the mutant in a copied tree; empty where none does.

    Raises:
        RuntimeError: that test fails without the mutant, too.
    """
    path = tree / mutant.file
    whole = path.read_bytes()
    path.write_bytes(whole[: mutant.start] + mutant.after.encode() + whole[mutant.end :])
    try:
        found = failing(tree, tests, seconds)
    finally:
        path.write_bytes(whole)
    if "::" in found and found not in _SOUND:
        if failing(tree, [found], seconds):
            raise RuntimeError(f"{found} fails without any mutant")
        _SOUND.add(found)
    return found


_SOUND: set[str] = set()
"""Tests that were seen to pass without a mutant."""


def copied_tree(folder: str) -> Path:
    """A copy of the repository without its data, to plant faults in."""
    tree = Path(folder) / "tree"
    ignored = shutil.ignore_patterns("__pycache__", "data")
    for name in ("spark_prof", "tests", "benchmarks", "demo", "scripts"):
        shutil.copytree(ROOT / name, tree / name, ignore=ignored if name == "tests" else None)
    (tree / "tests" / "data").symlink_to(ROOT / "tests" / "data")
    for name in ("pyproject.toml", "README.md", "docs"):
        (tree / name).symlink_to(ROOT / name)
    return tree


def main() -> int:
    """Runs the mutants, prints each and the score."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("paths", nargs="*", default=["spark_prof"])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--since", metavar="REF", help="only lines changed since that commit")
    parser.add_argument("--seconds", type=float, default=900, help="most that one may take")
    parser.add_argument("--only", metavar="TESTS", help="run only tests below that folder")
    parser.add_argument("--without", metavar="TESTS", help="leave out tests below that folder")
    parser.add_argument("--least", type=float, default=0.0, help="per cent to be caught, or fail")
    asked = parser.parse_args()
    mutants = chosen(asked.paths, asked.seed, asked.count, asked.since)
    found = 0
    with tempfile.TemporaryDirectory() as folder:
        tree = copied_tree(folder)
        for number, mutant in enumerate(mutants, 1):
            tests = [asked.only] if asked.only else tests_of(mutant.file)
            tests = [t for t in tests if not (asked.without and t.startswith(asked.without))]
            begun = time.monotonic()
            by = caught(mutant, tree, tests, asked.seconds)
            found += bool(by)
            took = time.monotonic() - begun
            where = f"{mutant.file}:{mutant.line}"
            print(f"{number:3} {by or 'SURVIVED'} {took:.0f} s: {where}: {_short(mutant.before)} "
                  f"-> {_short(mutant.after)}", flush=True)  # fmt: skip
    share = 100 * found / max(len(mutants), 1)
    print(f"{found} of {len(mutants)} caught ({share:.0f} %), seed {asked.seed}")
    return int(share < asked.least)


if __name__ == "__main__":
    sys.exit(main())
