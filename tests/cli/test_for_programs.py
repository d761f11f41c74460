"""What programs rely on: exit codes, bounds, and JSON that is alone on stdout."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

import pytest

from spark_prof.cli.written import WriteReceipt, stdout_is_ours
from tests.cli.conftest import Refuses, Run
from tests.docs.pages import DOCS
from tests.rows import each_row

DATA = Path(__file__).parents[1] / "data"
GRAPHS = DATA / "h100-gpt-oss-20b-mxfp4-graphs"
EAGER = DATA / "h100-gpt-oss-20b-mxfp4-eager"
CPU = DATA / "ab-cpu" / "result.json"

CODES = [
    (0, f"report {GRAPHS}"),
    (0, f"doctor {GRAPHS}"),
    (0, f"compare {GRAPHS} {EAGER}"),
    (0, f"compare {EAGER} {GRAPHS} --fail-on decode_us.median>900%"),
    (1, f"compare {GRAPHS} {EAGER} --fail-on decode_us.median>3% --strict"),
    (1, f"doctor {GRAPHS} --fail-on-findings"),
    (2, "report nowhere"),
    (2, "report"),
    (2, "no-such-command"),
    (2, f"report {GRAPHS} --section nothing"),
    (2, f"report {GRAPHS} --limit 0"),
    (2, f"report {GRAPHS} --format nothing"),
    (2, f"compare {GRAPHS} {EAGER} --fail-on nonsense"),
    (2, f"query {GRAPHS} drop-table"),
    (2, "ab --b moe=spark_prof -- /no/such/model"),
    (2, "record -- /no/such/program"),
    (2, f"query {GRAPHS} show-tables --format parquet --limit 3 -o x.parquet"),
]


@pytest.mark.slow
@each_row("code, line", CODES)
def test_exit_codes(code: int, line: str, run: Run) -> None:
    """With JSON as well: an error is one line on stderr, and nothing on stdout."""
    for more in ([], ["--format", "json"]):
        own = line.startswith(("ab ", "record ")) or "--format" in line
        found, out, errors = run(*line.split(), *([] if own else more))
        assert found == code, (line, out, errors)
        assert (code == 2) == (not out), line
        assert code == 0 or line.startswith("doctor") or errors.count("\n") == 1, errors


def test_the_documented_codes_are_those() -> None:
    page = (DOCS / "commands.md").read_text().partition("## Exit codes")[2].partition("\n## ")[0]
    told = {int(code) for row in re.findall(r"^\| (\d[\d, ]*) \|", page, re.M) for code in
            row.split(",")}  # fmt: skip
    assert told == {code for code, _ in CODES} | {129, 130, 143}


def test_a_section_is_one_in_every_format(run: Run, refuses: Refuses) -> None:
    for kind in ("text", "md", "html"):
        _, out, _ = run("report", GRAPHS, "--section", "copies", "--format", kind)
        assert "Memcpy" in out
        assert "lower bound" not in out
    said = refuses(f"report {GRAPHS} --section copies --section none --format json")
    assert "there is no section none; there are" in said
    assert "findings" in said


def test_a_section_by_its_id_has_its_keys(run: Run) -> None:
    document = json.loads(run("report", GRAPHS, "--section", "floors", "--format", "json")[1])
    assert document.keys() == {"schema", "verdict", "roofline", "left_out"}


@each_row("kind, rows", [("text", 2 + 2 + 1), ("csv", 1 + 2), ("json", 2)])
def test_rows_of_a_query(kind: str, rows: int, run: Run) -> None:
    words = ("query", GRAPHS, "select name from kernels", "--format", kind, "--limit", "2")
    code, out, _ = run(*words)
    assert code == 0
    found = json.loads(out) if kind == "json" else out.splitlines()
    assert len(found["rows"] if kind == "json" else found) == rows
    if kind == "json":
        assert found["left_out"] > 100


def test_what_was_written(run: Run, tmp_path: Path) -> None:
    shutil.copytree(GRAPHS, tmp_path / "a b")
    code, out, errors = run("export", "a b", "-o", "t.json", "--json")
    assert (code, errors) == (0, "")
    told = json.loads(out)
    assert (told["command"], told["path"], told["kind"]) == ("export", "t.json", "perfetto")
    code, out, _ = run("salvage", "a b", "--format", "json")
    told = json.loads(out)
    assert told["next"] == "spark-prof report 'a b'"
    assert told["state"] == "complete"
    assert told["coverage"] == json.loads(run("report", "a b", "--format", "json")[1])["coverage"]


def test_a_recorded_command_leaves_stdout_alone(capfd: pytest.CaptureFixture[str]) -> None:
    import subprocess

    for answer, where in ((WriteReceipt.JSON, 1), (WriteReceipt.TEXT, 0)):
        with stdout_is_ours(answer):
            subprocess.run([sys.executable, "-c", "print('noise')"], check=True)
        said = capfd.readouterr()
        assert (said[where], said[1 - where]) == ("noise\n", "")
