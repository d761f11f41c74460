"""`spark-prof doctor`: sources, logs, models, this machine; formats, exit codes, bad input."""

from __future__ import annotations

import gzip
import io
import json
import shutil
import sys
from pathlib import Path

import pytest

from spark_prof.profiler.installed import installed
from tests.cli.conftest import Refuses, Run

COMMAND = "doctor"
DATA = Path(__file__).parents[1] / "data"
BUNDLE = DATA / "h100-qwen3-30b-a3b-nvfp4-graphs"
EAGER = DATA / "h100-gpt-oss-20b-mxfp4-eager"
MODEL = DATA / "models" / "gpt-oss-20b"
KINETO = DATA / "kineto" / "gpt-oss-eager.json.gz"

LOG = """\
vllm-1  | (EngineCore pid=310) INFO 06-01 21:36:00 [core.py:109] Initializing a V1 LLM engine \
(v0.26.0) with config: model='m', enforce_eager=False, enable_prefix_caching=False
vllm-1  | (EngineCore pid=310) INFO 06-01 21:36:09 [nvfp4.py:231] Using 'MARLIN' NvFp4 MoE backend \
out of potential backends: ['FLASHINFER_CUTLASS', 'MARLIN'].
vllm-1  | (EngineCore pid=310) INFO 06-01 21:36:09 [__init__.py:892] Using MarlinNvFp4LinearKernel \
for NVFP4 GEMM
vllm-1  | (EngineCore pid=310) WARNING 06-01 21:40:20 [marlin_utils_fp4.py:300] Your GPU does not \
have native support for FP4 computation but FP4 quantization is being used.
"""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "serve.log"
    path.write_text(LOG)
    return path


def ids(out: str) -> set[str]:
    return {finding["id"] for finding in json.loads(out)["findings"]}


def test_a_recording_and_the_log_of_the_same_run_agree(run: Run, log: Path) -> None:
    code, out, _ = run(BUNDLE, "--log", log, "--format", "json")
    found = json.loads(out)
    assert code == 0
    assert found["audit"]["conflicts"] == []
    for row in found["audit"]["rows"]:
        if row["executed"] == "W4A16 nvfp4":
            assert {w["who"] for w in row["witnesses"]} == {"engine", "log", "trace"}
    # The GPU is an H100, which has no FP4: the warning is right.
    assert "misleading-fp4-warning" not in ids(out)


def test_a_log_of_another_run_is_told(run: Run, log: Path) -> None:
    log.write_text(LOG.replace("0.26.0", "0.24.0").replace("MarlinNvFp4", "CutlassNvFp4"))
    _, out, _ = run(BUNDLE, "--log", log, "--format", "json")
    conflicts = json.loads(out)["audit"]["conflicts"]
    assert any("version of vLLM" in line for line in conflicts)
    assert any(line.startswith("qkv:") for line in conflicts)
    assert "witness-conflict" in ids(out)


def test_an_imported_trace_tells_nothing_of_its_engine(run: Run) -> None:
    code, out, err = run(KINETO, "--format", "json")
    assert (code, err) == (0, "")
    assert "weight-only-fp4" not in ids(out)


@pytest.mark.parametrize(("backend", "agrees"), [("TRITON", True), ("MARLIN", False)])
def test_an_imported_trace_and_its_log(run: Run, log: Path, backend: str, agrees: bool) -> None:
    log.write_text(f"Using '{backend}' Mxfp4 MoE backend.\n")
    found = json.loads(run(KINETO, "--log", log, "--format", "json")[1])
    (experts,) = found["audit"]["rows"]
    assert [witness["who"] for witness in experts["witnesses"]] == ["log", "trace"]
    assert (experts["conflict"] == "") == agrees


def test_this_machine(run: Run) -> None:
    code, out, err = run()
    assert (code, err) == (0, "")
    assert "What is installed here" in out
    assert json.loads(run("--format", "json")[1])["machine"]["packages"]


def test_everything_at_once(run: Run, log: Path, tmp_path: Path) -> None:
    code, _, err = run(BUNDLE, "--log", log, "--model", MODEL, "-o", tmp_path / "all.json")
    found = json.loads((tmp_path / "all.json").read_text())
    assert code == 0
    assert "wrote" in err
    assert found["audit"]
    assert found["ceilings"]


def test_findings_fail_only_if_asked(run: Run, log: Path) -> None:
    assert run("--log", log, "--gpu", "gb10")[0] == 0
    assert run("--log", log, "--gpu", "gb10", "--fail-on-findings")[0] == 1
    assert run("--log", log, "--gpu", "h100", "--fail-on-findings")[0] == 0


def test_a_log_that_says_nothing_is_no_clean_bill(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_text("hello\n")
    code, out, _ = run("--log", path)
    assert code == 0
    assert "Nothing is known about kernels and settings" in out
    assert "none of its 1 lines is known" in " ".join(out.split())


def test_bad_input_is_one_line(refuses: Refuses, tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    (tmp_path / "silent").mkdir()
    (tmp_path / "silent" / "config.json").write_text('{"architectures": ["X"]}')
    (tmp_path / "binary").write_bytes(bytes(range(256)) * 8)
    for words, says in (
        (["nosuch"], "nosuch"),
        (["--log", "nosuch"], "nosuch"),
        (["--log", "."], "cannot be read"),
        (["--log", "empty"], "is empty"),
        (["--log", "binary"], "is no text"),
        (["--model", "nosuch"], "nosuch"),
        (
            ["one.log", "empty"],
            "doctor takes one source, or -- docker run ... IMAGE; here that may "
            "be: spark-prof doctor empty",
        ),
        (["--model", "silent"], "it has no num_hidden_layers and hidden_size"),
        (["--log", "binary", "--gpu", "rtx9999"], "known are"),
        ([str(BUNDLE), "--rank", "7"], "has no rank 7"),
        (["-o", "nosuch/x.txt"], "does not exist"),
        (["-o", "x.pdf"], "x.pdf"),
        (["--format", "yaml"], "yaml"),
    ):
        refuses(words, says)


def test_hostile_lines_stay_lines(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_text(
        "Using \x1b[2J<script>alert(1)</script>LinearKernel for NVFP4 GEMM\n"
        "Unknown vLLM environment variable detected: VLLM_\u202eX\x07\n"
        "Using 'MARLIN' NvFp4 MoE backend <b>out</b>\x00\x1b]0;x\x07\n"
    )
    for kind in ("text", "md", "html"):
        code, out, _ = run("--log", path, "--gpu", "gb10", "--format", kind)
        assert code == 0
        assert "\x1b" not in out
        assert "\u202e" not in out
        assert "<script>alert" not in out
    # HTML is escaped: what the line says of itself is shown, not obeyed.
    assert "<b>out</b>" not in run("--log", path, "--gpu", "gb10", "--format", "html")[1]


def below(out: str) -> str:
    """What stands below the verdict and the name of what was looked at."""
    return out.partition("\n\n")[2]


@pytest.mark.slow
def test_a_source_is_taken_for_what_it_is(
    run: Run, refuses: Refuses, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    log = DATA / "logs" / "qwen3-30b-a3b-nvfp4.log"
    assert run(log, "--gpu", "spark") == run("--log", log, "--gpu", "gb10")
    assert "The GPU is not known" in " ".join(run(log)[1].split())
    config = MODEL / "config.json"
    assert below(run(config)[1]) == below(run("--model", config.parent)[1])
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    refuses("openai/gpt-oss-20b", "hf download openai/gpt-oss-20b config.json")
    shutil.copytree(config.parent, tmp_path / "models--openai--gpt-oss-20b" / "snapshots" / "1")
    assert below(run("openai/gpt-oss-20b")[1]) == below(run(config)[1])


def test_nothing_is_said_of_what_was_not_looked_at(run: Run) -> None:
    if not installed().gpu:
        assert "No NVIDIA GPU here" in run()[1]
        assert "Nothing to change" not in run()[1]


def test_a_server_that_has_served_is_no_load_generator(run: Run, log: Path) -> None:
    """Its status lines are what `report` reads a result from; the rest is the doctor's."""
    status = (
        "(APIServer pid=1) INFO 06-08 10:03:11 [loggers.py:259] Engine 000: Avg prompt throughput: "
        "12.4 tokens/s, Avg generation throughput: 31.5 tokens/s, Running: 1 reqs, Waiting: 0 "
        "reqs, GPU KV cache usage: 0.3%, Prefix cache hit rate: 0.0%\n"
    )
    log.write_text(LOG + status)
    code, out, _ = run(log, "--gpu", "gb10")
    assert code == 0
    assert (code, out) == run("--log", log, "--gpu", "gb10")[:2]
    assert "on Marlin although this GPU multiplies FP4" in " ".join(out[:400].split())
    packed = log.with_suffix(".gz")
    packed.write_bytes(gzip.compress((LOG + status).encode()))
    assert below(run(packed, "--gpu", "gb10")[1]) == below(out) != ""


def test_nothing_to_change_stands_beside_no_crash(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_text("(EngineCore pid=2) ERROR 06-08 10:00:20 [core.py:1330] EngineCore failed to "
                    "start.\n")  # fmt: skip
    code, out, _ = run(path, "--gpu", "gb10", "--fail-on-findings")
    assert code == 1
    assert "The engine did not start" in out.splitlines()[0]
    assert "Nothing to change" not in out


SERVING = """\
(APIServer pid=1) INFO 06-08 10:0{minute}:00 [loggers.py:259] Engine 000: Avg prompt throughput: \
0.0 tokens/s, Avg generation throughput: 812.5 tokens/s, Running: 55 reqs, \
Waiting: {waiting} reqs, {preempted}GPU KV cache usage: {usage}%, Prefix cache hit rate: 0.0%
"""


def serving(usage: float, waiting: int = 0, preempted: str = "") -> str:
    """What a server prints while it serves; the lines of its start are not there."""
    given = {"usage": usage, "waiting": waiting, "preempted": preempted}
    return "".join(SERVING.format(minute=minute, **given) for minute in range(6))


def test_a_full_kv_cache_is_told_from_a_running_servers_log(
    run: Run, refuses: Refuses, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = (
        (serving(99.7, 40), "KV cache full: 55 run, 40 wait.", {"kv-cache-full"}),
        (serving(97.0, 0, "Preemptions: 7, "), "KV cache full: 55 run, up to 7 preempted.",
         {"kv-cache-full"}),
        (serving(12.0, 0), "", set()),
        (serving(99.7, 0), "", set()),  # full, and nobody waits for it
    )  # fmt: skip
    for text, verdict, expected in rows:
        path = tmp_path / "serve.log"
        path.write_text(text)
        _, out, _ = run(path, "--format", "json")
        assert ids(out) == expected, text[:200]
        assert verdict in json.loads(out)["verdict"]["text"]
        # What `docker logs` prints comes in by a pipe.
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        _, piped, _ = run("-", "--format", "json")
        assert piped == out.replace(str(path), "standard input").replace(
            "--log standard input", "--log -"
        )


def test_a_terminal_is_no_log(run: Run, refuses: Refuses, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdin", terminal)
    refuses("spark-prof doctor -", "-")


def test_a_log_tells_what_the_start_took(run: Run) -> None:
    log = DATA / "logs" / "dense-fp8-block.log"
    code, out, _ = run(log, "--section", "startup", "--section", "memory")
    assert code == 0
    assert "DeepGEMM's warm-up" in out
    assert "What vLLM may take" in out
    record = json.loads(run(log, "--format", "json", "--section", "startup")[1])
    assert sum(row["seconds"] for row in record["startup"]["stages"]) == 190
    assert "memory" not in record
    # No minute passed until it was up.
    assert "to start;" not in run(DATA / "logs" / "gpt-oss-20b-mxfp4.log")[1]
