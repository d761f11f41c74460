"""The whole protocol against an engine that speaks the messages, with times drawn from a model."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from spark_prof.ab.result import SideComparison
from spark_prof.ab.statistics import Interval
from tests.ab.engines import run
from tests.rows import each_row

SWAP = ("--b", "o=spark_prof")
SMALL = ("--batch-sizes", "1,4", "--prefill", "64")


def gain_of(run: SideComparison) -> Interval:
    assert run.estimate.gain is not None
    return run.estimate.gain


def test_a_known_gain_is_found_in_one_engine(tmp_path: Path) -> None:
    done = run(tmp_path, *SWAP, *SMALL, model={"gain": 1.25})
    assert done.code == 0, done.errors
    result = done.result
    assert (result.mode, result.finished, result.failure) == ("one engine", True, "")
    shapes = [(r.phase, r.requests, r.prompt_tokens) for r in result.runs]
    assert shapes == [("decode", 1, 128), ("decode", 4, 128), ("prefill", 1, 64)]
    for found in result.runs:
        assert gain_of(found).value == pytest.approx(1.25, rel=0.01)
        assert gain_of(found).half_width < 0.01
        assert not found.estimate.dropped
    [itself] = result.aa
    assert itself.test.estimate.gain is not None
    assert itself.test.estimate.gain.value == pytest.approx(1, abs=0.003)
    # The gate comes before the times, at each batch size.
    assert [(gate.requests, gate.verdict.passed) for gate in result.gates] == [(1, True), (4, True)]
    log = (done.folder / "engine.log").read_text().split("\n")
    asked = [line.removeprefix("asked ") for line in log if line.startswith("asked ")]
    assert asked[:9] == ["Start", "DescribeSwaps", *["Compare"] * 6, "Switch"]
    assert asked[-1] == "Shutdown"
    # The result says what was compared, and nothing else is left.
    a, b = result.sides
    assert (a.name, b.name, b.swaps) == ("stock", "o=spark_prof", "o=spark_prof")
    assert b.costs.swap_bytes == 3 << 20
    assert (b.costs.graphs, b.costs.capture_s, b.costs.load_s) == (5, 0.5, 1.5)
    assert [swap.live for swap in result.swaps[0].swaps] == [True] * 3
    assert result.versions["vllm"] == "0.32.0"
    assert "clocks: not known; no quad was dropped for them" in result.missing
    assert result.command[:2] == ("spark-prof", "ab")
    names = sorted(path.name for path in done.folder.iterdir())
    assert names == ["engine.log", "report.html", "result.json"]


def test_each_context_is_a_shape_of_its_own(tmp_path: Path) -> None:
    asked = ("--batch-sizes", "1,2", "--prefill", "none", "--contexts", "256,128, 64")
    done = run(tmp_path, *SWAP, *asked, model={"gain": 1.25})
    assert done.code == 0, done.errors
    shapes = [(r.requests, r.prompt_tokens) for r in done.result.runs]
    assert shapes == [(1, 64), (2, 64), (1, 128), (2, 128), (1, 256), (2, 256)]
    assert [(gate.requests, gate.prompt_tokens) for gate in done.result.gates] == shapes
    assert [each.prompt_tokens for each in done.result.aa] == [64]
    assert "batch 2, context 256" in done.output
    assert "context 128" not in done.output
    assert not list(done.folder.glob(".logits*"))


def test_a_context_beyond_the_engine_is_missing(tmp_path: Path) -> None:
    asked = ("--batch-sizes", "1", "--prefill", "none", "--contexts", "128,64k")
    done = run(tmp_path, *SWAP, *asked, model={"gain": 1.25})
    assert [run.prompt_tokens for run in done.result.runs] == [128]
    (line,) = [line for line in done.result.missing if "65536" in line]
    assert "decoding at batch size 1, context 65536 needs requests of 65589 tokens" in line


def test_contexts_that_are_all_beyond_the_engine_are_refused(tmp_path: Path) -> None:
    asked = ("--batch-sizes", "1", "--prefill", "none", "--contexts", "8k,64k")
    done = run(tmp_path, *SWAP, *asked, words="serve m --max-model-len 4096")
    assert done.code == 2
    assert "context 8192 needs requests of 8245 tokens; this engine takes 4096" in done.errors
    assert not done.folder.exists()
    done = run(tmp_path, *SWAP, "--contexts", "1k,x")
    assert (done.code, "give --contexts 1k,8k, say" in done.errors) == (2, True)


def test_where_vllm_rounds_activations_the_logits_are_stated(tmp_path: Path) -> None:
    """The layers keep their bits, and their bound is that of the rounding."""
    model = {"rounded": "fp8", "layer_error": 0.036}
    done = run(tmp_path, *SWAP, *SMALL, model=model)
    assert done.code == 0, done.errors
    verdict = done.result.gates[0].verdict
    assert (verdict.passed, verdict.bits) == (True, "changed")
    assert {(each.bits, each.rounded) for each in verdict.layers} == {("kept", "fp8")}
    said = "vLLM rounds activations to FP8 in 3 layers; the kernels here do not"
    assert said in verdict.notes
    assert said in (done.folder / "report.html").read_text()
    wrong = run(tmp_path / "wrong", *SWAP, *SMALL, model=model | {"layer_error": 1.0})
    assert not wrong.result.gates[0].verdict.passed
    told = run(tmp_path / "told", *SWAP, *SMALL, model={"layer_error": 0.036})
    assert not told.result.gates[0].verdict.passed


def test_two_engines_are_started_in_turns(tmp_path: Path) -> None:
    """The sides differ in an option and a variable of vLLM's."""
    side = ("--b", "moe=marlin FAKE_SIDE=b", "--starts", "8")
    done = run(tmp_path, *side, *SMALL, model={"gain": 1.25, "bits": "", "ahead": True})
    assert done.code == 0, done.errors
    result = done.result
    assert result.mode == "two engines"
    assert {(found.ahead_a, found.ahead_b) for found in result.runs} == {(1.0, 1.0)}
    assert result.mode_why == "the sides differ in vLLM's options and the environment"
    logs = sorted(path.name for path in done.folder.glob("*.log"))
    assert "".join(name.split("-")[2][0] for name in logs) == "abbabaab"
    assert [a.test.passed for a in result.aa] in ([True], [False])
    for found in result.runs:
        assert gain_of(found).value == pytest.approx(1.25, rel=0.01)
    assert result.sides[1].environment == {"FAKE_SIDE": "b"}
    assert result.sides[1].arguments == ("m", "--moe-backend", "marlin")
    assert not list(done.folder.glob(".logits*"))


def test_one_start_a_side_is_a_quick_look_without_an_interval(tmp_path: Path) -> None:
    done = run(tmp_path, "--b", "FAKE_SIDE=b", "--starts", "2", *SMALL, model={"gain": 1.25})
    assert done.code == 0, done.errors
    logs = sorted(path.name for path in done.folder.glob("*.log"))
    assert "".join(name.split("-")[2][0] for name in logs) == "ab"
    for found in done.result.runs:
        assert found.estimate.gain is None
        assert "give each side two starts or more" in found.estimate.missing
    shown = " ".join(done.output.split())
    said = re.search(r"told at batch 1 \(.* -> .*, (.*) x without an interval\): ", shown)
    assert said is not None, shown
    assert float(said[1]) == pytest.approx(1.25, rel=0.01)


def moments(logs: list[str], what: str) -> list[float]:
    """When each engine first did something, by its log."""
    return [float(re.search(rf"{what} at (.*)", log)[1]) for log in logs]  # type: ignore[index]


@pytest.mark.slow
def test_engines_that_load_at_once_are_measured_in_turn(tmp_path: Path) -> None:
    """Every engine has answered its start before the first is measured; none is left behind."""
    options = ("--b", "FAKE_SIDE=b", "--at-once", *SMALL)
    words = "serve m --kv-cache-memory-bytes 1000000"
    done = run(tmp_path, *options, model={"gain": 1.25, "slow": 1.0}, words=words)
    assert done.code == 0, done.errors
    for found in done.result.runs:
        assert gain_of(found).value == pytest.approx(1.25, rel=0.01)
    progress = done.errors.splitlines()
    first = next(n for n, line in enumerate(progress) if "timing" in line)
    assert any("starting 4 engines at once" in line for line in progress[:first])
    logs = [path.read_text() for path in sorted(done.folder.glob("engine-*.log"))]
    assert len(logs) == 4
    assert min(moments(logs, "(?:Compare|Generate) came")) > max(moments(logs, "started"))
    assert not [line for line in done.result.missing if "memory full" in line]
    full = run(tmp_path / "full", *options, model={"gain": 1.25, "full": 3}, words=words)
    told = sorted(line.split(" while")[0] for line in full.result.missing if "memory full" in line)
    assert told == [f"engine {n} (b) found the GPU's memory full 3 times" for n in (2, 3)]
    failing = run(
        tmp_path / "failing", *options, model={"die": "Start", "die_in": "b"}, words=words
    )
    assert failing.code == 2
    assert "did not load beside the others" in failing.errors
    assert [path.name for path in failing.folder.glob("*-again.log")] == ["engine-2-b-again.log"]
    unfixed = run(tmp_path / "unfixed", *options)
    assert unfixed.code == 2
    assert "--kv-cache-memory-bytes" in unfixed.errors


@pytest.mark.slow
@each_row("options", [SWAP, ("--b", "FAKE_SIDE=b")])
def test_where_the_host_is_behind_what_the_device_alone_needs_is_measured(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    model = {"gain": 1.25, "ahead": False, "device_us": [900, 500]}
    command = ("ab", "--seconds", "0.1")
    done = run(tmp_path, *options, *SMALL, command=command, model=model)
    for found in done.result.runs:
        known = found.phase == "decode"
        assert found.device_a_us == (pytest.approx(900, rel=0.01) if known else None)
        assert found.device_b_us == (pytest.approx(500, rel=0.01) if known else None)
        gain = found.device_gain
        assert (gain is not None) == known
        assert gain is None or gain.low <= 1.8 <= gain.high < 1.9
    del model["device_us"]
    lacking = run(tmp_path / "lacking", *options, *SMALL, command=command, model=model)
    assert lacking.result.runs[0].device_a_us is None
    assert lacking.result.runs[0].device_gain is None
    assert any("what the device alone needs" in line for line in lacking.result.missing)


@each_row(
    ("options", "wrong", "runs"),
    [(SWAP, 5.0, 0), ((*SWAP, "--time-anyway"), 5.0, 3), (("--b", "FAKE_SIDE=b"), 50.0, 0)],
)
def test_a_wrong_side_fails_and_is_timed_only_where_that_is_wanted(
    tmp_path: Path, options: tuple[str, ...], wrong: float, runs: int
) -> None:
    done = run(tmp_path, *options, *SMALL, model={"gain": 1.25, "wrong": wrong})
    assert (done.code, len(done.result.runs)) == (1, runs)
    assert {gate.verdict.passed for gate in done.result.gates} == {False}
    timed = "nothing was timed" in "\n".join(done.result.missing)
    assert timed == (runs == 0)
    assert len(list(done.folder.glob("*.log"))) == (2 if "FAKE_SIDE=b" in options else 1)


@each_row("options", [SWAP, ("--b", "FAKE_SIDE=b")])
def test_a_text_has_a_perplexity_on_both_sides(tmp_path: Path, options: tuple[str, ...]) -> None:
    text = tmp_path / "text"
    text.write_text("what was said")
    done = run(tmp_path, *options, *SMALL, "--all", "--text", str(text), model={"wrong": 0.01})
    for gate in done.result.gates:
        assert gate.verdict.figures is not None
        assert gate.verdict.floor is not None
        for figures, more in ((gate.verdict.figures, 0.01), (gate.verdict.floor, 0.0)):
            assert figures.text is not None
            assert (figures.text.loss_a, figures.text.extra_nats) == (1.5, pytest.approx(more))
    assert "Perplexity of the text" in done.output


@each_row("request_name", ["Start", "DescribeSwaps", "Compare", "Switch"])
def test_an_engine_that_dies_is_one_line(tmp_path: Path, request_name: str) -> None:
    done = run(tmp_path, *SWAP, *SMALL, model={"die": request_name})
    assert done.code == 2
    lines = done.errors.splitlines()
    assert "Traceback" not in done.errors
    assert "ended with exit code 9" in lines[-1]
    assert "CUDA out of memory; leave it more with a lower --max-model-len" in lines[-1]
    assert not done.result.finished
    assert done.result.failure in lines[-1]


@pytest.mark.slow
@pytest.mark.parametrize("request_name", ["Start", "Generate"])
def test_an_engine_that_hangs_is_given_up(tmp_path: Path, request_name: str) -> None:
    done = run(tmp_path, *SWAP, *SMALL, "--timeout", "1.5", model={"hang": request_name})
    assert done.code == 2
    assert "the engine has been silent for 2 s while" in done.errors.splitlines()[-1]
    assert f"asked {request_name}" in done.errors.splitlines()[-1]
    assert "Traceback" not in done.errors


def test_what_was_measured_before_a_failure_is_kept(tmp_path: Path) -> None:
    model = {"fail": "Generate"}
    done = run(tmp_path, *SWAP, *SMALL, model=model)
    assert done.code == 2
    assert "RuntimeError: made to fail" in done.result.failure
    assert len(done.result.gates) == 2
    assert (done.folder / "report.html").exists()


def test_the_starts_before_a_failure_are_kept(tmp_path: Path) -> None:
    model = {"die": "Generate", "die_in": "b"}
    done = run(tmp_path, "--b", "FAKE_SIDE=b", *SMALL, model=model)
    assert done.code == 2
    assert len(done.result.runs) == 3
    for found in done.result.runs:
        assert found.estimate.a_us is not None
        assert found.estimate.gain is None
        assert found.estimate.missing


def test_shapes_beyond_the_engine_are_missing(tmp_path: Path) -> None:
    sizes = ("--batch-sizes", "1,32", "--prefill", "64,3000,9000")
    done = run(tmp_path, *SWAP, *sizes)
    assert done.code == 0
    assert [(r.phase, r.requests, r.prompt_tokens) for r in done.result.runs] == [
        ("decode", 1, 128),
        ("prefill", 1, 64),
    ]
    missing = "\n".join(done.result.missing)
    assert "batch size 32: the engine runs 16 requests at most" in missing
    assert "prefill of 3000 tokens: the engine computes 2048 tokens in a step at most" in missing
    assert "prefill of 9000 tokens needs requests of 9002 tokens" in missing


@each_row(
    ("options", "words"),
    [
        (("--b", "moe=nothing"), "there is no kernel nothing"),
        ((), "both sides are stock"),
        ((*SWAP, "--mode", "three"), "--mode three"),
        ((*SWAP, "--starts", "6"), "give a multiple of 4"),
        ((*SWAP, "--batch-sizes", "1,1"), "once"),
        ((*SWAP, "--batch-sizes", "0"), "from 1 on"),
        ((*SWAP, "--prefill", "x"), "is no list of whole numbers"),
        (("--b", "X=1", "--mode", "one"), "cannot change"),
        ((*SWAP, "--mxfp4-layers", "moe"), "no slot moe"),
        ((*SWAP, "--timeout", "inf"), "are finite numbers"),
        ((*SWAP, "--seconds", "inf"), "are finite numbers"),
        ((*SWAP, "--gate-tokens", "4"), "--gate-tokens"),
        ((*SWAP, "--text", "nowhere"), "there is no such file"),
    ],
)
def test_usage_is_refused_before_anything_starts(
    tmp_path: Path, options: tuple[str, ...], words: str
) -> None:
    done = run(tmp_path, *options)
    assert done.code == 2
    assert words in done.errors
    assert len(done.errors.strip().splitlines()) == 1
    assert not done.folder.exists()
