"""`spark-prof kernels` from the command line: list, check, bench; formats and exit codes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_prof.kernels.registry import KERNELS
from spark_prof.kernels.tuning import Tuned, TunedShape, known_runs, save
from spark_prof.kernels.tuning import TuningRun as Measured
from tests.cli.conftest import Refuses, Run

SLOTS = {"layer", "qkv", "o", "mlp", "moe", "router", "lm_head"}
COMMAND = "kernels"
QUICK = "router-topk"
DATA = Path(__file__).parents[1] / "data"
GPT = DATA / "h100-gpt-oss-20b-mxfp4-graphs"


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    known_runs.cache_clear()
    yield
    known_runs.cache_clear()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of its own: what was measured and compiled here does not count."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "spark-prof"


def on_cpu() -> None:
    """Skips where kernels cannot run on the CPU."""
    pytest.importorskip("torch")
    from tests.emulator.compiler import compiler

    if compiler() is None:
        pytest.skip("no C++ compiler: kernels do not run on the CPU")


def has_gpu() -> bool:
    return bool(pytest.importorskip("torch").cuda.is_available())


def test_the_list_keeps_the_contract(run: Run) -> None:
    code, out, err = run("list", "--format", "json")
    found = json.loads(out)
    assert (code, err) == (0, "")
    assert [kernel["name"] for kernel in found] == [kernel.name for kernel in KERNELS]
    for kernel in found:
        assert kernel.keys() >= {"name", "slot", "formats", "shapes", "architectures", "bytes"}
        assert kernel["tolerance"]
        assert kernel["formats"]
        assert all(isinstance(each, str) for each in kernel["formats"])
    assert {kernel["slot"] for kernel in found} == SLOTS


def test_the_list_says_where_a_kernel_was_measured(run: Run, cache: Path) -> None:
    rows = (Tuned(TunedShape("dense", "nvfp4", 64, 64, 1), {}, 5.0, "other", 6.0),)
    save(Measured("sm_1", "My\x1b[2J GPU", "2026-01-01", "", {}, rows))
    out = run("list")[1]
    assert "My GPU" in out
    assert "\x1b" not in out
    found = json.loads(run("list", "--format", "json")[1])
    machines = {kernel["name"]: [m["machine"] for m in kernel["measured"]] for kernel in found}
    assert "My\x1b[2J GPU" in machines["o-w4a16"]
    assert not any("My\x1b[2J GPU" in machines[name] for name in ("moe-w4a16", "o-fp8"))


def test_a_damaged_file_of_measurements_is_one_line(run: Run, cache: Path) -> None:
    cache.mkdir(parents=True)
    (cache / "tuned.json").write_text('{"schema": 1, "runs": [{}]}')
    code, out, err = run("list")
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert "tuned.json" in err
    assert "delete it" in err


def test_a_right_kernel_passes_on_the_cpu(run: Run) -> None:
    on_cpu()
    code, out, err = run("check", QUICK, "--device", "cpu", "--format", "json")
    found = json.loads(out)
    assert code == 0
    assert "on the CPU" in err
    assert (found["device"], found["failed"], found["skipped"]) == ("cpu", 0, 0)
    assert found["passed"] == len(found["cases"]) > 10
    assert {case["kernel"] for case in found["cases"]} == {"routing"}


@pytest.mark.slow
def test_a_wrong_kernel_fails(cache: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """What makes it wrong here is a compiler that takes one function for another."""
    on_cpu()
    from tests.emulator.run import _kernel

    (cache.parent / "wrong.h").parent.mkdir(parents=True, exist_ok=True)
    (cache.parent / "wrong.h").write_text("#define expf exp2f\n")
    monkeypatch.setenv("CXX", f"c++ -include {cache.parent / 'wrong.h'}")
    _kernel.cache_clear()
    code, out, _ = run("check", QUICK, "--device", "cpu")
    _kernel.cache_clear()
    assert code == 1
    assert "elements wrong" in out.partition("Failures")[2]


def test_kernels_of_the_list_need_a_gpu(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    from spark_prof.kernels.runtime import launch

    monkeypatch.setattr(launch, "RUNNERS", {})
    code, out, err = run("check", QUICK, "--device", "cpu")
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert "no GPU" in err


@pytest.mark.parametrize(
    "words",
    [("bench",), ("bench", "qkv-w4a16"), ("check", "--device", "cuda"), ("tune", "--from", GPT)],
)
def test_without_a_gpu(run: Run, words: tuple[str, ...]) -> None:
    if has_gpu():
        pytest.skip("there is a GPU")
    code, out, err = run(*words)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert "no GPU" in err


def test_what_a_recording_s_layers_are_raced_with_is_listed_without_a_gpu(run: Run) -> None:
    code, out, err = run("bench", "--list", "--from", GPT, "--format", "json")
    found = json.loads(out)
    assert (code, err) == (0, "")
    work = {each["label"]: each for each in found["work"]}
    assert list(work) == ["gpt qkv", "gpt o", "gpt router", "gpt", "gpt lm_head"]
    assert (work["gpt"]["experts"], work["gpt"]["top_k"], work["gpt"]["format"]) == (32, 4, "mxfp4")
    assert 5 < work["gpt router"]["recorded"]["us"] < 7
    assert {each["tokens"] for each in found["work"]} == {1}
    text = run("bench", "o-w16a16", "--list", "--from", GPT, "--tokens", 2)[1]
    assert "2880 x 4096" in text
    assert "5120 x 2880" not in text
    assert "183 of 472 kernels of a step of gpt are not raced" in text


def test_the_models_layers_are_listed_too(run: Run) -> None:
    out = run("bench", "moe-w4a16", "--list", "--model", "gpt-oss", "--tokens", "8")[1]
    assert out.count("gpt-oss-") == 2
    assert "Recorded" not in out


def test_a_bench_that_is_kept_is_what_the_dispatcher_goes_by(run: Run, cache: Path) -> None:
    if not has_gpu():
        pytest.skip("no CUDA device")
    words = ("--model", "Next", "--tokens", "1", "--seconds", "20", "--format", "json")
    code, out, _ = run("bench", "qkv-w4a16", *words, "--save")
    found = json.loads(out)
    assert code == 0
    timed = [cell for cell in found["cells"] if cell["share_of_read"]]
    assert timed
    assert all(0 < cell["share_of_read"] < 1.2 for cell in timed)
    kept = [row for run in known_runs() for row in run.rows if run.date == found["machine"]["date"]]
    assert len(kept) == len(timed)


def test_a_tune_is_kept_for_this_gpu(run: Run, cache: Path) -> None:
    if not has_gpu():
        pytest.skip("no CUDA device")
    words = ("--model", "gpt-oss-20b", "--tokens", "1", "--minutes", "0.7", "--format", "json")
    code, out, err = run("tune", "moe-w4a16", *words)
    found = json.loads(out)
    assert code == 0
    (cell,) = found["cells"]
    (ours,) = (each for each in cell["results"] if each["contestant"] == "spark-prof")
    assert ours["us"]["median"] <= cell["before_us"]
    assert "1 of 1 on this GPU" in err or "0 of 1 on this GPU" in err
    kept = [each for each in known_runs() if each.date == found["machine"]["date"]]
    assert [each.machine for each in kept] == [found["machine"]["name"]]


def test_alone_it_lists_its_commands(run: Run) -> None:
    code, out, _ = run()
    assert code == 0
    assert [word in out for word in ("list", "check", "bench", "template", "replay", "tune")] == [
        True
    ] * 6


def test_bad_input_is_one_line(refuses: Refuses) -> None:
    for words, says in (
        (["nosuch"], "nosuch"),
        (["list", "-o", "x.pdf"], "x.pdf"),
        (["list", "-o", "nosuch/x.md"], "does not exist"),
        (["list", "--format", "pdf"], "pdf"),
        (
            ["check", "qkv"],
            "did you mean qkv-w4a16 or qkv-fp8 or qkv-int4 or qkv-w16a16 or qkv-w4a4?",
        ),
        (["check", "qkv-w4a61"], "did you mean qkv-w4a16?"),
        (["check", "qkv-w4a16", "o-w4a16"], "o-w4a16"),
        (["check", "--device", "tpu"], "tpu"),
        (["check", "x" * 300], "known are"),
        (["check", "\x1b[2J"], "known are"),
        (["bench", "nosuch"], "known are"),
        (["bench", "--tokens", "17"], "--tokens 17: these kernels take up to 16"),
        (["bench", "o-w4a4", "--tokens", "33"], "--tokens"),
        (["bench", "--tokens", "0"], "--tokens"),
        (["bench", "--seconds", "-1"], "--seconds"),
        (["bench", "--seconds", "nan"], "--seconds"),
        (["bench", "--list", "--from", "nosuch"], "nosuch"),
        (["tune", "--minutes", "0"], "--minutes"),
        (["tune", "router-topk"], "nothing to be timed beside"),
        (["bench", "--list", "--from", GPT, "--model", "gpt"], "leave out --model or --from"),
        (["bench", "qkv-w4a16", "--list", "--from", GPT], "its layers are qkv in bf16, o in bf16"),
        (["bench", "--list", "--model", "nosuch"], "no layer is of a model named like nosuch"),
    ):
        refuses(words, says)
