"""Plants random faults into a copy of the package, and asks whether the quick tests find each.

    python -m scripts.mutants [PATH ...] [--seed N] [--count N] [--since REF] [--again FILE]

A mutant is one small change: a comparison, an operator, a number, a condition. Of all that could be
made in the files at PATH (`spark_prof` if none is given), or in lines changed since REF, the seed
chooses `--count`. Each is run with the tests that run the line that it changes, by the map that
`scripts/reach.py` has made, the file of its name and the quick ones first, until one fails. What
the map does not know is run with the test file of its name, those that import it and those beside
it. Those in `scripts/equivalent_mutants.txt` change no behaviour and are not chosen: a row there is
`FILE: BEFORE -> AFTER # WHY`, for one of many like it `FILE: BEFORE -> AFTER @ ITS LINE # WHY`.
The score is printed last, and what became of each mutant is left in `build/mutants`.

mutmut changes no constant of a module, and cosmic-ray runs one command for all mutants; of both
none draws by seed. So this is a tool of its own.
"""

from __future__ import annotations

import argparse
import ast
import copy
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path

from scripts.forked import Collected
from scripts.reached import Package, Reached

ROOT = Path(__file__).resolve().parents[1]
EQUIVALENT = Path(__file__).with_name("equivalent_mutants.txt")

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
    source: str  # its line

    @property
    def name(self) -> str:
        """What it is called: the line's number is left out, as it changes with others."""
        return f"{self.file}: {_short(self.before)} -> {_short(self.after)}"

    def is_in(self, names: Collection[str]) -> bool:
        """Whether it is one of the list of equivalent ones, there by itself or with its line."""
        return self.name in names or f"{self.name} @ {_short(self.source)}" in names


def _short(text: str) -> str:
    return " ".join(text.split())


def mutants_of(file: str, source: str) -> Iterator[Mutant]:
    """All mutants of a file, in its order."""
    raw = source.encode()
    starts, whole = [0], raw.splitlines(keepends=True)
    for line in whole:
        starts.append(starts[-1] + len(line))
    for node in _expressions(ast.parse(source)):
        start = starts[node.lineno - 1] + node.col_offset
        end = starts[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)
        for changed in _changed(node):
            text = ast.unparse(changed)
            after = f"({text})" if isinstance(changed, ast.Compare | ast.BinOp | ast.BoolOp |
                                              ast.UnaryOp) else text  # fmt: skip
            before, statement = raw[start:end].decode(), whole[node.lineno - 1].decode()
            yield Mutant(file, node.lineno, start, end, before, after, statement)


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


def equivalent() -> set[str]:
    """The mutants that change no behaviour, by name."""
    return {row.split(" # ")[0].strip() for row in EQUIVALENT.read_text().splitlines()}


def chosen(paths: Sequence[str], seed: int, count: int, since: str | None) -> list[Mutant]:
    """The mutants to run, by seed."""
    lines = changed_since(since) if since else None
    equivalents = equivalent()
    every: list[tuple[str, Mutant]] = []
    numbers: Counter[str] = Counter()
    for path in paths:
        folder = ROOT / path
        for file in sorted(folder.rglob("*.py")) if folder.is_dir() else [folder]:
            name = file.relative_to(ROOT).as_posix()
            for mutant in mutants_of(name, file.read_text(encoding="utf-8")):
                is_changed = lines is None or mutant.line in lines.get(name, ())
                numbers[mutant.name] += 1
                if is_changed and not mutant.is_in(equivalents):
                    text = f"{seed} {numbers[mutant.name]} {mutant.name}"
                    every.append((sha256(text.encode()).hexdigest(), mutant))
    # What is drawn stays drawn where other lines change.
    return [mutant for _, mutant in sorted(every, key=lambda pair: pair[0])[:count]]


def mirror(file: str) -> str:
    """How the paths of the tests of a file of the package begin."""
    path = Path(file).relative_to("spark_prof")
    return (Path("tests") / path.parent / f"test_{path.stem}").as_posix()


def _files(pattern: str) -> list[str]:
    return sorted(file.relative_to(ROOT).as_posix() for file in ROOT.glob(pattern))


_SLOWER = 4
"""Times as long as alone tests may have computed when the map was made: measuring takes time."""


@dataclass
class Hunt:
    """Looks for mutants with the tests that run what they change."""

    most: float  # seconds that the tests of one mutant may compute
    reached: Reached = field(default_factory=Reached)
    package: Package = field(default_factory=Package)
    sound: dict[str, bool] = field(
        default_factory=dict
    )  # tests, and whether they pass by themselves

    def tests(self, mutant: Mutant) -> list[str]:
        """The tests that run what it changes, those first that fail soonest."""
        names: set[str] = set()
        end = mutant.line + mutant.before.count("\n")
        for lines in self.package.lines(mutant.file, mutant.line, end):
            names = names or self.reached.of_lines(lines)
        first = mirror(mutant.file)
        ordered = self.reached.ordered(names, first, _SLOWER * self.most)
        if names and any(name.startswith(first) for name in self.reached.tests):
            return ordered
        # The map knows none of its own tests: another process runs it, or they are newer.
        files = [*_files(f"{first}*.py"), *self.package.importers(mutant.file)]
        beside = f"{Path(first).parent}/test_"
        if not names or not any(name.startswith(beside) for name in self.reached.tests):
            files += _files(f"{beside}*.py")
        return [*dict.fromkeys(files), *ordered]

    def run(
        self, collected: Collected, mutants: Mapping[Mutant, Sequence[str]]
    ) -> Iterator[tuple[Mutant, str, float]]:
        """Each mutant with the test that fails, empty where none does, and how long it took."""
        for mutant, names in mutants.items():
            begun = time.monotonic()
            failed, path = "", collected.tree / mutant.file
            whole = path.read_bytes()
            if whole[mutant.start : mutant.end] != mutant.before.encode():
                raise SystemExit(f"{mutant.file} has changed since the mutants were drawn")
            after = whole[: mutant.start] + mutant.after.encode() + whole[mutant.end :]
            names = collected.expanded(names)
            while names := [name for name in names if self.sound.get(name, True)]:
                failed = collected.first_failure(names, self.most, path, after)
                if self._is_sound(failed, collected):
                    break
            yield mutant, failed, time.monotonic() - begun

    def _is_sound(self, test: str, collected: Collected) -> bool:
        """Whether it passes without a mutant; what is no test's name is."""
        if "::" not in test:
            return True
        if test not in self.sound:
            self.sound[test] = not collected.first_failure([test], 300)
            if not self.sound[test]:
                print(f"left out, as it fails without any mutant: {test}", flush=True)
        return self.sound[test]


def again(file: Path) -> tuple[list[Mutant], int]:
    """The mutants of an earlier run that survived, where they are now, and how many were caught."""
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    equivalents = equivalent()
    survived = []
    for row in rows:
        path = ROOT / row["file"]
        if row["by"] or not path.exists():
            continue
        like = [m for m in mutants_of(row["file"], path.read_text()) if not m.is_in(equivalents) and
                (m.before, m.after) == (row["before"], row["after"])]  # fmt: skip
        if like:
            survived.append(min(like, key=lambda m: abs(m.line - row["line"])))
    return survived, sum(bool(row["by"]) for row in rows)


def copied_tree(folder: str) -> Path:
    """A copy of the repository without its data, to plant faults in."""
    tree = Path(folder) / "tree"
    ignored = shutil.ignore_patterns("data")
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
    parser.add_argument("--again", metavar="FILE", type=Path,
                        help="the survivors of a run, by the file it left")  # fmt: skip
    parser.add_argument("--most", type=float, default=60, help="seconds that its tests may compute")
    parser.add_argument("--least", type=float, default=0.0, help="per cent to be caught, or fail")
    options = parser.parse_args()
    if options.again:
        mutants, caught = again(options.again)
    else:
        mutants, caught = chosen(options.paths, options.seed, options.count, options.since), 0
    whole, hunt = len(mutants) + caught, Hunt(options.most)
    if lacking := hunt.reached.lacking:
        print(f"the map of lines lacks tests: make reach IN='{' '.join(lacking)}'", flush=True)
    plan = {mutant: hunt.tests(mutant) for mutant in mutants}
    results = ROOT / "build" / "mutants" / f"{time.strftime('%H%M%S')}-seed-{options.seed}.jsonl"
    results.parent.mkdir(parents=True, exist_ok=True)

    def work(collected: Collected) -> None:
        nonlocal caught
        for mutant, by, took in hunt.run(collected, plan):
            caught += bool(by)
            where = f"{mutant.file}:{mutant.line}"
            print(f"{by or 'SURVIVED'} {took:.0f} s, {len(plan[mutant])} tests: {where}: "
                  f"{_short(mutant.before)} -> {_short(mutant.after)}", flush=True)  # fmt: skip
            with results.open("a") as file:
                file.write(json.dumps(asdict(mutant) | {"by": by}) + "\n")

    with tempfile.TemporaryDirectory() as folder:
        files = sorted({name.partition("::")[0] for names in plan.values() for name in names})
        Collected.collect(copied_tree(folder), files, work)
    share = 100 * caught / max(whole, 1)
    print(f"{caught} of {whole} caught ({share:.0f} %), seed {options.seed}; {results}")
    return int(share < options.least)


if __name__ == "__main__":
    sys.exit(main())
