"""The command line: bad input is exit code 2 and one line on stderr, never a traceback."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from spark_prof.cli import main
from spark_prof.cli.app import app
from tests.cli.conftest import Refuses, Run
from tests.support import Recorded, eager_decode, engine

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path) -> None:
    """A bundle `b`, a file `file`, a full folder `full`, an empty one, a bundle that was cut."""
    engines = {0: [engine(0, -50, 950), engine(1, 960, 1950)]}
    Recorded({0: [eager_decode()]}, engines).assemble(tmp_path / "b")
    for name, text in (("file", "x"), ("full/x", "x"), ("cut/meta.json", '{"schema": 1')):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "empty").mkdir()


BAD = [
    "report nosuch",
    "report file",
    "report empty",
    "report full",
    "report cut",
    "report b/steps-rank0.parquet",
    "report",
    "report b file",
    "report b --format pdf",
    "report b --rank 7",
    "report b --rank -1",
    "report b --rank x",
    "report b --nosuch",
    "report b -o nosuch/report.md",
    "report b -o full",
    "report b -o file/report.md",
    "report b --out",
    f"report {'x' * 300}",
    "nosuch",
    "--nosuch",
    "record",
    "record --",
    "record -- ls",
    "record -- nosuch-program",
    "record -- vllm bench serve",
    "record -o full -- python -c pass",
    "record -o file -- python -c pass",
    "record -o file/b -- python -c pass",
    "record --steps -1 -- python -c pass",
    "record --steps many -- python -c pass",
    "record --backend nsys -- python -c pass",
    "record --attach http://example.com:8000",
    "record --attach http://localhost:99999",
    "record --stop",
    "record --stop -- vllm serve m",
    "record --attach http://localhost:8000 -- python -c pass",
    f"report b -o {'x' * 300}",
    f"report b -o {'x' * 300}/r.md",
    f"record -o {'x' * 300} -- python -c pass",
    "record --attach http://[",
]


def test_bad_input(refuses: Refuses) -> None:
    for line in BAD:
        refuses(line)


MODEL = ROOT / "tests/data/models/gpt-oss-20b"
LOG = ROOT / "tests/data/logs/gpt-oss-20b-mxfp4.log"
SAYS = {
    f"report {LOG}": f"is an engine's log and no recording; ask: spark-prof doctor {LOG}",
    f"report {MODEL}": f"is a model and no recording; ask: spark-prof doctor {MODEL}",
    f"report {MODEL}/config.json": f"ask: spark-prof doctor {MODEL}/config.json",
    f"compare b {MODEL}": "is a model and no recording",
    "record --attach": "see spark-prof record --help",
    "report": "see spark-prof report --help",
    "export b": "see spark-prof export --help",
    "export b -o p.perfetto": "ends neither in .json nor in .json.gz",
    f"query SELECT {MODEL}": "the query comes last",
    f"report {ROOT}/docs/schema": "; give a recording of spark-prof, a trace of another tool, or",
    "tune": "no model and no command; put one after --: -- vllm serve MODEL",
    "ab --b moe=spark_prof -- ./nomodel": "./nomodel is neither a model's folder nor a program",
}


def test_an_error_says_what_to_type(refuses: Refuses) -> None:
    for line, says in SAYS.items():
        refuses(line, says)


def test_a_column_of_another_view_is_found(refuses: Refuses) -> None:
    errors = refuses(("query", "b", "select component from kernels"), "; component is in ")
    assert "placed" in errors.partition("; component is in ")[2]


def test_help(run: Run) -> None:
    for line in ("", "--help", "-h", "report --help", "report -h", "record --help"):
        code, out, errors = run(*line.split())
        assert (code, errors) == (0, ""), line
        assert "Usage:" in out
        assert "spark-prof" in out


def test_version(run: Run) -> None:
    code, out, _ = run("--version")
    assert code == 0
    assert out.startswith("spark-prof ")


@pytest.mark.slow
def test_a_report_in_every_format(run: Run, tmp_path: Path) -> None:
    for kind in ("text", "md", "html", "json"):
        code, out, errors = run("report", "b", "--format", kind)
        assert (code, errors) == (0, "")
        assert "flash_fwd" in out
        code, shown, errors = run("report", "b", "--format", kind, "-o", "report")
        assert (code, shown, errors) == (0, "", "spark-prof: wrote report\n")
        assert (tmp_path / "report").read_text().rstrip("\n") == out.rstrip("\n")


def test_the_ending_of_a_file_chooses_its_format(run: Run, tmp_path: Path) -> None:
    for name, begins in (("r.json", "{"), ("r.HTML", "<!"), ("r.md", "#"), ("r.htm", "<!")):
        assert run("report", "b", "-o", name)[0] == 0
        assert (tmp_path / name).read_text().startswith(begins)


def _spark_prof(*words: str, **more: object) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "spark_prof.cli.main", *words]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, **more)  # type: ignore[call-overload]


def test_the_exit_code_is_the_process_s(tmp_path: Path) -> None:
    child = _spark_prof("report", str(tmp_path / "nosuch"))
    errors = child.communicate()[1].decode()
    assert child.returncode == 2
    assert errors.count("\n") == 1


@pytest.mark.slow
def test_a_reader_that_goes_away_is_no_error(run: Run, tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    child = _spark_prof("report", str(tmp_path / "b"), stdout=writing)
    os.close(writing)
    errors = child.communicate()[1].decode()
    assert "Traceback" not in errors
    assert "BrokenPipe" not in errors
    assert child.returncode == 0


def test_help_says_what_an_option_takes(run: Run) -> None:
    commands = [each.callback.__name__ for each in app.registered_commands if each.callback]
    for command in ["kernels bench", *commands]:
        words = command.replace("import_traces", "import").split()
        out = run(*words, "--help")[1]
        assert not re.search(r"<\w|list\[|int range", out), command


def test_a_file_is_replaced_and_a_folder_has_to_be_new(run: Run, refuses: Refuses) -> None:
    for words in ("export b -o p.json", "report b -o r.md"):
        assert [run(*words.split())[0] for _ in range(2)] == [0, 0]
    assert run("export", "b", "-o", "tables")[0] == 0
    refuses("export b -o tables")
    refuses("import b -o full")


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (MemoryError(), True),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), True),
        (ImportError("libparquet.so: failed to map segment from shared object"), True),
        (RuntimeError("can't start new thread"), True),
        (ImportError("no module"), False),
        (RuntimeError("a fault of ours"), False),
    ],
)
def test_no_memory_is_one_line(
    error: Exception,
    told: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fails() -> int:
        raise error

    monkeypatch.setattr(main, "_run", fails)
    if not told:
        with pytest.raises(type(error)):
            main.main()
        return
    assert main.main() == 2
    assert capsys.readouterr().err == (
        "spark-prof: there is not enough memory; give it more, or less to read\n"
    )
