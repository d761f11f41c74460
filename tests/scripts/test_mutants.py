"""scripts/mutants.py: which faults it plants, and with which tests it looks for them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.rows import each_row
from tests.scripts.loading import load

mutants = load("scripts/mutants.py")
reached = load("scripts/reached.py")


@each_row(
    ("before", "after"),
    [
        ("a < 1", ["(a <= 1)", "2"]),
        ("a in b", ["(a not in b)"]),
        ("a + b * 3", ["(a - b * 3)", "(b / 3)", "4"]),
        ("'%s' % a", []),
        ("a and not b", ["(a or not b)", "b"]),
        ("0.5 if a else True", ["0.5 if not a else True", "1.0", "False"]),
        ("x.min(0)", ["x.max", "1"]),
        ("any(b for b in c)", ["all"]),
        ("zip(a, b, strict=True)", []),
        ("logger.info('%d', 3)", []),
        ("f'{a + 1}'", []),
        ("'ä' < a", ["('ä' <= a)"]),
    ],
)
def test_what_is_made_of(before: str, after: list[str]) -> None:
    source = f"x = {before}\n"
    found = list(mutants.mutants_of("m.py", source))
    assert [mutant.after for mutant in found] == after
    for mutant in found:
        raw = source.encode()
        changed = raw[: mutant.start] + mutant.after.encode() + raw[mutant.end :]
        compile(changed, "m.py", "exec")
        assert raw[mutant.start : mutant.end].decode() == mutant.before


def test_a_seed_chooses_the_same() -> None:
    paths = ["spark_prof/analyzers/instants.py"]
    one, other = (mutants.chosen(paths, seed, 10, None) for seed in (3, 4))
    assert one == mutants.chosen(paths, 3, 10, None)
    assert len({mutant.name for mutant in one}) > 5
    assert one != other
    # A draw of more has the same ones first.
    assert mutants.chosen(paths, 3, 20, None)[:10] == one


SOURCE = """\
LIMIT = 5


def small(number: int, more: int = 2) -> bool:
    return (
        number + more <
        LIMIT)


class Kept:
    size: int = LIMIT + 1
"""
OTHER = "from spark_prof.m import LIMIT, Kept\n\n\ndef size():\n    return Kept().size * LIMIT\n"
TEST = "from spark_prof.m import small\n\n\ndef test_both():\n    assert small(2) > small(3)\n"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A package of two files, with a test of one of them."""
    for name, text in (("spark_prof/__init__.py", ""), ("spark_prof/m.py", SOURCE),
                       ("spark_prof/n.py", OTHER), ("tests/__init__.py", ""),
                       ("tests/test_m.py", TEST)):  # fmt: skip
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


@each_row(
    ("line", "first"),
    [
        (1, {"spark_prof/m.py": {7}, "spark_prof/n.py": {5}}),  # all functions that read it
        (4, {"spark_prof/m.py": {5, 6, 7}}),  # a default: what its function does
        (6, {"spark_prof/m.py": {6}}),
        (11, {"spark_prof/n.py": {5}}),
    ],
)
def test_lines_whose_tests_see_a_change(tree: Path, line: int, first: dict[str, set[int]]) -> None:
    assert next(iter(reached.Package(tree).lines("spark_prof/m.py", line, line))) == first


def test_tests_that_import_a_file(tree: Path) -> None:
    (tree / "tests/test_n.py").write_text("from spark_prof import n\nimport spark_prof.m\n")
    package = reached.Package(tree)
    assert package.importers("spark_prof/m.py") == ["tests/test_m.py", "tests/test_n.py"]
    assert package.importers("spark_prof/n.py") == ["tests/test_n.py"]
    assert package.importers("spark_prof/__init__.py") == ["tests/test_n.py"]


def test_one_of_several_like_it_is_equivalent() -> None:
    one, other = mutants.mutants_of("m.py", "x = 1\ny = 1  # of x\n")
    assert one.name == other.name
    for names, in_list in (({one.name}, (True, True)), ({f"{one.name} @ x = 1"}, (True, False))):
        assert (one.is_in(names), other.is_in(names)) == in_list


def test_tests_that_run_a_line_are_ordered_by_file_and_time(tree: Path) -> None:
    pytest.importorskip("coverage")
    from coverage import CoverageData

    folder = tree / "reach"
    folder.mkdir()
    rows = [("tests/test_m.py::test_both", 1.0, {"cache:c": 2.0}), ("tests/test_m.py::slow", 9, {}),
            ("tests/test_n.py::quick", 0.1, {}), ("tests/test_n.py::gone", 0.1, {})]  # fmt: skip
    (tree / "tests/test_n.py").write_text("")
    (folder / "tests-1.jsonl").write_text("".join(
        json.dumps({"test": name, "seconds": took, "shared": shared, "passed": "gone" not in name})
        + "\n" for name, took, shared in rows
    ))  # fmt: skip
    data = CoverageData(str(folder / "lines"))
    for context, line in (("cache:c", 6), ("tests/test_n.py::quick", 6), (rows[1][0], 7)):
        data.set_context(context)
        data.add_lines({str(tree / "spark_prof/m.py"): [line]})
    data.close()
    (tree / "tests/ab").mkdir()
    (tree / "tests/ab/test_o.py").write_text("")
    (tree / "tests/engine").mkdir()
    (tree / "tests/engine/test_p.py").write_text("")
    found = reached.Reached(folder, tree)
    assert found.lacking == ["tests/ab"]
    names = found.of_lines({"spark_prof/m.py": {5, 6, 7}})
    assert names == {name for name, _, _ in rows[:3]}
    assert found.of_lines({"spark_prof/m.py": {7}}) == {rows[1][0]}
    assert found.ordered(names, "tests/test_m", 99) == [rows[0][0], rows[2][0], rows[1][0]]
    assert found.ordered(names, "tests/test_m", 3.5) == [rows[0][0], rows[2][0]]


@pytest.mark.slow
def test_a_mutant_is_found_in_a_fork_and_leaves_nothing_behind(tree: Path) -> None:
    script = f"""
import sys
from pathlib import Path
sys.path.insert(0, {str(mutants.ROOT)!r})
from scripts.forked import Collected
tree = Path({str(tree)!r})
file = tree / "spark_prof/m.py"
whole = file.read_bytes()
def work(collected):
    names = collected.expanded(["tests/test_m.py"])
    for before, after in ((b"<", b"<="), (b"= 5", b"= 6"), (b"= 2", b"= 3"), (b"5", b"5 + 0"),
                          (b"number +", b"number - -")):
        changed = whole.replace(before, after, 1)
        print(collected.first_failure(names, 60, file, changed) or "none", file=sys.stderr)
Collected.collect(tree, ["tests/test_m.py"], work)
assert file.read_bytes() == whole
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=tree, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    failed = "tests/test_m.py::test_both"
    assert done.stderr.split() == [failed, failed, failed, "none", "none"]


def test_only_lines_that_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*words: str) -> None:
        subprocess.run(["git", "-c", "user.name=n", "-c", "user.email=e", *words], cwd=tmp_path,
                       check=True, capture_output=True)  # fmt: skip

    file = tmp_path / "spark_prof" / "m.py"
    file.parent.mkdir()
    file.write_text("a = 1\nb = 2\n")
    git("init", "-q")
    git("add", "-A")
    git("commit", "-qm", "one")
    file.write_text("a = 1\nb = 3\nc = 4\n")
    monkeypatch.setattr(mutants, "ROOT", tmp_path)
    assert mutants.changed_since("HEAD") == {"spark_prof/m.py": {2, 3}}
    found = mutants.chosen(["spark_prof"], 0, 50, "HEAD")
    assert sorted(mutant.line for mutant in found) == [2, 3]


def test_each_equivalent_one_can_still_be_made() -> None:
    for row in mutants.EQUIVALENT.read_text().splitlines():
        name, _, why = row.partition(" # ")
        assert why, row
        file = name.partition(":")[0]
        source = (mutants.ROOT / file).read_text()
        assert any(mutant.is_in({name}) for mutant in mutants.mutants_of(file, source)), row
