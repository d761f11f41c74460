"""What `ab --apply` prints for results that somebody else wrote is evaluated by real shells."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from spark_prof.ab.result import AbOutcome, SideFacts, to_json
from spark_prof.cli import main as cli
from spark_prof.cli.app import app
from spark_prof.rules.harmless_options import OPTIONS, VARIABLES
from tests.docs.pages import ROOT

# Typer makes the command anew each time, which takes longer than all else here.
COMMAND = typer.main.get_command(app)
Run = Callable[[dict[str, Any]], tuple[int, str, str]]
ENVIRONMENT = {"PATH": "/usr/bin:/bin", "HOME": "/", "LC_ALL": "C.UTF-8"}
SET_BY_A_SHELL = {"_", "PWD", "OLDPWD", "SHLVL"}
MAY_BE_SET = {"SPARK_PROF_SWAPS", *VARIABLES}
SHELLS = ("bash", "sh")

PAYLOADS = [
    "\ntouch CANARY\n", "\r\ntouch CANARY\r\n", "\x0btouch CANARY", "\u2028touch CANARY\u2028",
    "\x85touch CANARY\x85", "\x1b]0;x\x07\ntouch CANARY #", "\x9b2J;touch CANARY;",
    "$(touch CANARY)", "`touch CANARY`", "';touch CANARY;'", '";touch CANARY;"', ";touch CANARY;",
    "&touch CANARY&", "|touch CANARY|", "\\';touch CANARY;\\'", "\x00touch CANARY", "!touch CANARY",
    "x'\n) ; touch CANARY #", "${IFS}$(touch${IFS}CANARY)", "\u202etouch CANARY", " touch CANARY ",
]  # fmt: skip

CODE_VARIABLES = {
    "LD_PRELOAD": "/tmp/x.so", "LD_LIBRARY_PATH": "/tmp", "PATH": "/tmp", "BASH_ENV": "/tmp/x",
    "ENV": "/tmp/x", "PYTHONPATH": "/tmp", "PYTHONSTARTUP": "/tmp/x", "PYTHONHOME": "/tmp",
    "IFS": "/", "PS4": "$(id)", "PROMPT_COMMAND": "id", "HOME": "/tmp", "HF_HOME": "/tmp",
    "HF_ENDPOINT": "http://x", "CUDA_HOME": "/tmp", "CXX": "/tmp/x", "CC": "/tmp/x",
    "TRITON_CACHE_DIR": "/tmp", "TORCHINDUCTOR_CACHE_DIR": "/tmp", "CUDA_INJECTION64_PATH": "/x",
    "SPARK_PROF": "{}", "SPARK_PROF_SWAPS": "norm=/tmp/x.py:build", "SPARK_PROF_X": "1",
    "VLLM_PLUGINS": "evil", "VLLM_CONFIG_ROOT": "/tmp", "VLLM_CACHE_ROOT": "/tmp",
    "VLLM_ALLOW_INSECURE_SERIALIZATION": "1", "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
    "VLLM_SERVER_DEV_MODE": "1", "VLLM_NCCL_SO_PATH": "/x", "VLLM_CUDART_SO_PATH": "/x",
    "VLLM_RUST_FRONTEND_PATH": "/x", "VLLM_MODEL_REDIRECT_PATH": "/x", "VLLM_HOST_IP": "6.6.6.6",
    "VLLM_TUNED_CONFIG_FOLDER": "/x", "VLLM_LOGGING_CONFIG_PATH": "/x", "VLLM_API_KEY_X": "1",
    "VLLM_USAGE_STATS_SERVER": "http://x", "VLLM_RPC_BASE_PATH": "/x", "VLLM_X": "1",
    "VLLM_USE_V2_MODEL_RUNNER": "/tmp/x", "VLLM_ATTENTION_BACKEND": "evil.module.Class",
    "OMP_NUM_THREADS": "x", "X=$(touch CANARY)": "1", "a b": "1", "": "1", "x;touch CANARY;": "1",
    "VLLM_USE_V2_MODEL_RUNNER\n": "1", "ld_preload": "/tmp/x",
}  # fmt: skip

CODE_OPTIONS = [
    ("--trust-remote-code",), ("--worker-cls", "evil.W"), ("--worker-extension-cls", "evil.W"),
    ("--load-format", "evil"), ("--logits-processors", "evil.L"), ("--middleware", "evil.M"),
    ("--tool-parser-plugin", "/tmp/x.py"), ("--reasoning-parser-plugin", "/tmp/x.py"),
    ("--chat-template", "{{1}}"), ("--hf-overrides", "{}"), ("--otlp-traces-endpoint", "http://x"),
    ("--download-dir", "/tmp"), ("--model", "/tmp/evil"), ("--model=/tmp/evil",),
    ("--tokenizer", "/tmp/evil"), ("--config", "/tmp/x.yaml"), ("--allowed-origins", "*"),
    ("--compilation-config", '{"backend": "evil.f"}'), ("--compilation-config.backend", "evil.f"),
    ("-O.backend=evil.f",), ("--kv-transfer-config", "{}"), ("--scheduler-cls", "evil.S"),
    ("--distributed-executor-backend", "evil.E"), ("--attention-backend", "evil.module.C"),
    ("--moe-backend", "evil"), ("--enforce-eager", "/tmp/evil"), ("--seed=1", "/tmp/evil"),
    ("--enforce-eager=--trust-remote-code",), ("--host", "0.0.0.0"), ("--hf-token", "x"),
    ("--seed", "1\n"), ("--enforce-eager\n",), ("--trust_remote_code",), ("--trust-remote",),
    ("LD_PRELOAD=/tmp/x.so",), ("norm=/tmp/x.py:build",), ("/tmp/evil",),
]  # fmt: skip


def base(environment: dict[str, str] | None = None) -> dict[str, Any]:
    """A result of two engines, which is applied as it is."""
    a = SideFacts("a", "stock", "", ("m",))
    b = SideFacts("b", "moe=spark_prof", "moe=spark_prof", ("m",), environment or {})
    found = AbOutcome(
        model="m", mode="two engines", mode_why="", command=(), taken="", sides=(a, b)
    )
    record: dict[str, Any] = json.loads(to_json(found))
    return record


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("spark_prof.cli.app.app", COMMAND)
    monkeypatch.delenv("VLLM_PLUGINS", raising=False)

    def apply(record: dict[str, Any], *more: str) -> tuple[int, str, str]:
        Path("result.json").write_text(json.dumps(record))
        argv = ["spark-prof", "ab", "--apply", *more, "--", "result.json"]
        monkeypatch.setattr(sys, "argv", argv)
        code = cli.main()
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return apply


def evaluated(shell: str, text: str) -> dict[str, str]:
    """The environment after a shell has evaluated the text, which must print nothing."""
    words = [shell, "-c", 'eval "$1" >said 2>&1; env -0', shell, text]
    done = subprocess.run(words, env=ENVIRONMENT, capture_output=True, timeout=30)
    assert not Path("said").read_bytes(), text
    pairs = done.stdout.decode().rstrip("\0").split("\0")
    found = dict(pair.partition("=")[::2] for pair in pairs)
    return {name: value for name, value in found.items() if name not in SET_BY_A_SHELL}


def harm_of(code: int, out: str, err: str) -> Iterator[str]:
    """What is wrong with what the command printed, nothing if it is safe."""
    if code not in (0, 2) or (code and out):
        yield f"exit code {code} with {out!r}"
    if not all(line.isprintable() for text in (out, err) for line in text.split("\n")):
        yield f"control characters in {out + err!r}"
    if err.count("\n") > 1 or "#" in out:
        yield f"more than a line, or a comment: {out + err!r}"
    for shell in SHELLS if out else ():
        found = evaluated(shell, out)
        if changed := {n for n in found if found[n] != ENVIRONMENT.get(n)} - MAY_BE_SET:
            yield f"{shell} sets {changed}"
    if Path("CANARY").exists():
        Path("CANARY").unlink()
        yield "something was run"


def planted(payload: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Results with a payload in each of their texts."""

    def one(where: str, *path: Any, value: Any = None) -> tuple[str, dict[str, Any]]:
        record = place = base()
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = payload if value is None else value
        return where, record

    b = ("sides", 1)
    yield one("swaps", *b, "swaps", value=f"moe=spark_prof{payload}")
    yield one("a slot", *b, "swaps", value=f"{payload}=spark_prof")
    yield one("a kernel's file", *b, "swaps", value=f"norm=/tmp/{payload}.py:build")
    yield one("a kernel's function", *b, "swaps", value=f"norm=/tmp/x.py:{payload}")
    for name in ("--seed", "--moe-backend", "--served-model-name"):
        yield one(f"a value of {name}", *b, "arguments", value=["m", name, payload])
        yield one(f"after {name}=", *b, "arguments", value=["m", f"{name}=1{payload}"])
    yield one("an option", *b, "arguments", value=["m", f"--{payload}"])
    yield one("a word", *b, "arguments", value=["m", payload])
    yield one("the model's place", *b, "arguments", value=[payload])
    for name in ("VLLM_USE_V2_MODEL_RUNNER", "VLLM_ATTENTION_BACKEND", "OMP_NUM_THREADS", "X"):
        yield one(f"the value of {name}", *b, "environment", value={name: f"1{payload}"})
        yield one(f"behind {name}", *b, "environment", value={name + payload: "1"})
    yield one("a name", *b, "environment", value={payload: "1"})
    for key in ("model", "mode_why", "taken", "failure"):
        yield one(key, key)
    for key in ("command", "missing"):
        yield one(key, key, value=[payload])
    yield one("mode", "mode")
    yield one("versions", "versions", value={payload: payload})
    for key in ("name", "side"):
        yield one(f"sides[1].{key}", *b, key)
    yield one("notes", *b, "notes", value=[payload])


@pytest.mark.slow
def test_nothing_that_is_planted_is_run(run: Run) -> None:
    wrong, tried, applied = [], 0, 0
    for payload in PAYLOADS:
        for where, record in planted(payload):
            code, out, err = run(record)
            wrong += [(payload, where, harm) for harm in harm_of(code, out, err)]
            tried, applied = tried + 1, applied + (code == 0)
    assert not wrong
    # Texts that are not of the side do no harm, and do not stop anybody.
    assert tried == 33 * len(PAYLOADS)
    assert applied >= 8 * len(PAYLOADS)


def test_variables_that_can_load_code_are_not_taken_from_a_file(run: Run) -> None:
    wrong = []
    for name, value in CODE_VARIABLES.items():
        code, out, err = run(base({name: value}))
        wrong += [(name, harm) for harm in harm_of(code, out, err)]
        if (code, out) != (2, ""):
            wrong.append((name, f"exit code {code}: {out}"))
    assert not wrong


def test_options_that_can_run_code_are_not_taken_from_a_file(run: Run) -> None:
    wrong = []
    for words in CODE_OPTIONS:
        record = base()
        record["sides"][1]["arguments"] += words
        code, out, err = run(record)
        wrong += [(words, harm) for harm in harm_of(code, out, err)]
        if (code, out) != (2, ""):
            wrong.append((words, f"exit code {code}: {out}{err}"))
    assert not wrong


def test_a_file_that_a_result_names_is_not_run(run: Run) -> None:
    Path("k.py").write_text("open('CANARY', 'w')\ndef build(layer): ...\n")
    kernel = f"norm={Path('k.py').absolute()}:build"
    record = base()
    record["sides"][1]["swaps"] = kernel
    code, out, err = run(record)
    assert (code, out) == (2, "")
    assert kernel in err
    code, out, _ = run(record, "--b", "norm=k.py:build")
    assert (code, out) == (0, f"export SPARK_PROF_SWAPS={kernel}\n")
    assert not Path("CANARY").exists()


@pytest.mark.slow
def test_to_draw_a_result_runs_nothing(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("k.py").write_text("open('CANARY', 'w')\ndef build(layer): ...\n")
    wrong = []
    for payload in PAYLOADS[:6]:
        for where, record in planted(payload):
            record["sides"][0]["swaps"] = f"norm={Path('k.py').absolute()}:build"
            Path("result.json").write_text(json.dumps(record))
            monkeypatch.setattr(sys, "argv", ["spark-prof", "report", "result.json"])
            cli.main()
            text = "".join(capsys.readouterr())
            if not text.replace("\n", "").isprintable() or Path("CANARY").exists():
                wrong.append((payload, where, text))
    assert not wrong


def test_what_is_typed_reaches_the_shell_as_it_is(run: Run) -> None:
    record = base()
    for value in ("$(touch CANARY)", "`touch CANARY`", "';touch CANARY;'", "a b\\", "é 模型", "!x"):
        typed = '"' + value.replace("\\", "\\\\") + '"'
        record["sides"][1]["environment"] = {"X": value}
        code, out, _ = run(record, "--b", f"X={typed}")
        assert code == 0
        assert all(evaluated(shell, out)["X"] == value for shell in SHELLS)
    assert not Path("CANARY").exists()


def test_tables_take_no_paths_and_no_names_of_python() -> None:
    from spark_prof.rules.harmless_options import harmless_option, harmless_variable

    for value in ("/tmp/x", "a.b", "a:b", "http://x", "a b c", "$(id)", "1\n", "{}", "é", "٣"):
        taken = [name for name in VARIABLES if harmless_variable(name, value)]
        taken += [name for name in OPTIONS if harmless_option((name, value))]
        assert not taken, value


BENIGN = [
    ({}, [], "", {}),
    ({"VLLM_USE_V2_MODEL_RUNNER": "1"}, [], "moe=spark_prof!", {"VLLM_USE_V2_MODEL_RUNNER": "1"}),
    ({}, ["--moe-backend", "marlin"], "lm_head=mxfp4,o=fp8", {}),
    ({"OMP_NUM_THREADS": "8"}, ["--enforce-eager", "--seed=3"], "", {"OMP_NUM_THREADS": "8"}),
]


@pytest.mark.parametrize(("environment", "options", "swaps", "wanted"), BENIGN)
def test_other_results_are_applied(
    run: Run, environment: dict[str, str], options: list[str], swaps: str, wanted: dict[str, str]
) -> None:
    record = base(environment)
    b = record["sides"][1]
    b["arguments"] += options
    b["swaps"] = swaps or b["swaps"]
    code, out, err = run(record)
    assert code == 0
    assert not list(harm_of(code, out, err))
    serve = f"vllm serve MODEL {' '.join(options)}"
    assert err == (f"spark-prof: start it with: {serve}\n" if options else "")
    wanted = {**ENVIRONMENT, "SPARK_PROF_SWAPS": b["swaps"], **wanted}
    assert all(evaluated(shell, out) == wanted for shell in SHELLS)
    code, out, err = run(record, "--format", "json")
    shown = json.loads(out)
    assert (code, err, shown["options"]) == (0, "", options)
    assert {**ENVIRONMENT, **shown["environment"]} == wanted
    assert shown["serve"] == serve.rstrip()


@pytest.mark.parametrize("path", sorted((ROOT / "benchmarks" / "results" / "ab").glob("*.json")))
def test_our_own_results_are_applied(run: Run, path: Path) -> None:
    record = json.loads(path.read_text())
    code, out, err = run(record)
    assert not list(harm_of(code, out, err))
    assert evaluated("sh", out)["SPARK_PROF_SWAPS"] == record["sides"][1]["swaps"]


def test_pages_are_no_environment(run: Run) -> None:
    for kind in ("md", "html"):
        code, out, err = run(base(), "--format", kind)
        assert (code, out) == (2, "")
        assert "--format json" in err
