"""scripts/mutants.py: which faults it plants, and with which tests it looks for them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.rows import each_row
from tests.scripts.loading import load

mutants = load("scripts/mutants.py")


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


@each_row(
    ("file", "first"),
    [
        ("analyzers/step_time.py", ["tests/analyzers/test_step_time.py", "tests/world"]),
        ("analyzers/conversions/conversion_flow.py",
         ["tests/analyzers/conversions/test_conversion_flow.py", "tests/world"]),
        ("units.py", []),
    ],
)  # fmt: skip
def test_its_own_tests_come_first(file: str, first: list[str]) -> None:
    found = mutants.tests_of(f"spark_prof/{file}")
    assert found[: len(first)] == first
    assert all((mutants.ROOT / test).exists() for test in found)


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
        assert name in {mutant.name for mutant in mutants.mutants_of(file, source)}, row
