"""The whole protocol of `spark-prof ab` on a real vLLM engine on the CPU, right and wrong."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from spark_prof.ab.result import AbOutcome, decided, read_result
from tests.engine.conftest import (
    ONE_PROCESS,
    ROOT,
    SPARK_PROF,
    computing_without_component,
    report_of,
)

KERNELS = ROOT / "tests" / "swaps" / "kernels" / "faulty.py"
ENGINE = [
    "--load-format", "dummy", "--max-model-len", "256", "--max-num-seqs", "4",
    "--gpu-memory-utilization", "0.3", "--enforce-eager",
    "--max-num-batched-tokens", "1024",  # kernels are tried on so many
]  # fmt: skip
TRAINED = ROOT / "tests" / "data" / "small-moe"
LAYERS = 3


@dataclass(frozen=True)
class Done:
    """A run of the command."""

    code: int
    output: str
    errors: str
    folder: Path
    result: AbOutcome


def compare(
    folder: Path, environment: dict[str, str], b: str, options: str, command: list[str]
) -> Done:
    argv = [*SPARK_PROF, "ab", "--b", b, "-o", str(folder), *options.split(), "--", *command]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, cwd=ROOT)
    log = "".join(path.read_text() for path in folder.glob("*.log"))
    assert (folder / "result.json").exists(), done.stderr[-4000:] + log[-4000:]
    result = read_result(folder / "result.json")
    return Done(done.returncode, done.stdout, done.stderr + log[-4000:], folder, result)


@pytest.fixture(scope="module")
def right(
    models: dict[str, Path], environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Done:
    """Every norm by the template, every output projection in plain torch, as vLLM computes them."""
    folder = tmp_path_factory.mktemp("ab")
    norm = folder / "my_norm.py"
    subprocess.run([*SPARK_PROF, "kernels", "template", "norm", "-o", str(norm)], check=True)
    return compare(
        folder / "right",
        environment,
        f"norm={norm}:build,o={KERNELS}:right",
        "--batch-sizes 1,2 --prefill 16 --context 16 --gate-tokens 8 --seconds 1",
        [str(models["tiny-dense"]), *ENGINE],
    )


@pytest.fixture(scope="module")
def wrong(
    models: dict[str, Path], environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Done:
    """Output projections of twice the size, under the server's command line."""
    server = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--port", "9"]
    return compare(
        tmp_path_factory.mktemp("ab") / "wrong",
        environment | ONE_PROCESS,
        f"o={KERNELS}:doubled_scale",
        "--batch-sizes 1 --prefill none --context 16 --gate-tokens 8 --seconds 1",
        [*server, "--model", str(models["tiny-dense"]), *ENGINE],
    )


@pytest.fixture(scope="module")
def trained(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Done:
    """The trained model on text that it was not trained on, with right kernels."""
    return compare(
        tmp_path_factory.mktemp("ab") / "trained",
        environment | ONE_PROCESS,
        ",".join(f"{slot}={KERNELS}:right" for slot in ("o", "qkv", "router", "lm_head")),
        f"--batch-sizes 2 --prefill none --gate-tokens 384 --text {TRAINED / 'held-out.txt'} "
        "--seconds 1 --no-record",
        [str(TRAINED), "--max-model-len", "1024", *ENGINE[4:]],
    )


@pytest.mark.slow
def test_two_ranks_swap_at_the_same_steps(
    models: dict[str, Path], environment: dict[str, str], tmp_path: Path
) -> None:
    """Else what they add up would be of two sides, and no gate would pass."""
    two_ranks = compare(
        tmp_path / "two-ranks",
        environment | {"VLLM_CPU_OMP_THREADS_BIND": "0|1"},
        ",".join(f"{slot}={KERNELS}:right" for slot in ("qkv", "o", "router", "lm_head")),
        "--batch-sizes 1,2 --prefill none --context 16 --gate-tokens 8 --seconds 1 --no-record",
        [str(models["tiny-moe"]), *ENGINE, "--tensor-parallel-size", "2"],
    )
    assert two_ranks.code == 0, two_ranks.errors
    assert two_ranks.result.mode == "one engine"
    assert [gate.verdict.passed for gate in two_ranks.result.gates] == [True, True]
    first, second = two_ranks.result.swaps
    assert (first.rank, second.rank) == (0, 1)
    assert all(swap.live for rank in (first, second) for swap in rank.swaps)
    calls = [[(swap.name, swap.calls) for swap in rank.swaps] for rank in (first, second)]
    assert calls[0] == calls[1]


def test_a_trained_model_has_a_perplexity(trained: Done) -> None:
    """Where random weights have near ties, it has answers, and the sides agree on them."""
    assert trained.code == 0, trained.errors
    [gate] = trained.result.gates
    for figures in (gate.verdict.figures, gate.verdict.floor):
        assert figures is not None
        assert figures.positions == 2 * 384
        assert decided(figures)
        assert figures.agreement is not None
        assert figures.agreement > 0.97
        assert figures.text is not None
        assert 1 < figures.text.perplexity_a < 2.5
        assert abs(figures.text.extra_nats) < 0.01
    assert "Perplexity of the text" in trained.output


def test_a_right_kernel_passes(right: Done) -> None:
    assert right.code == 0, right.errors
    assert (right.result.finished, right.result.failure) == (True, "")
    assert right.result.mode == "one engine"
    assert [gate.requests for gate in right.result.gates] == [1, 2]
    for gate in right.result.gates:
        assert gate.verdict.passed
        assert gate.verdict.figures is not None
        assert gate.verdict.figures.positions == 8 * gate.requests
        assert len(gate.verdict.layers) == LAYERS + 2 * LAYERS + 1


def test_every_module_is_live(right: Done) -> None:
    [rank] = right.result.swaps
    slots = [swap.slot for swap in rank.swaps if swap.live and swap.side == "b"]
    assert (slots.count("o"), slots.count("norm")) == (LAYERS, 2 * LAYERS + 1)
    assert len(slots) == len(rank.swaps)


def test_every_shape_is_timed(right: Done) -> None:
    runs = right.result.runs
    shapes = [(run.phase, run.requests, run.prompt_tokens) for run in runs]
    assert shapes == [("decode", 1, 16), ("decode", 2, 16), ("prefill", 1, 16)]
    for run in runs:
        assert run.estimate.gain is not None, run.estimate.missing
        assert not run.estimate.dropped
    [itself] = right.result.aa  # without a GPU nothing is captured
    assert not itself.captured_again
    assert itself.test.estimate.gain is not None


def test_both_sides_were_recorded(right: Done) -> None:
    names = [recording.folder for recording in right.result.recordings]
    assert names == ["recording-a-1", "recording-b-1"]
    for name in names:
        report = report_of(right.folder / name)
        assert report["steps"]["decode"] == report["steps"]["count"] > 40
        assert not computing_without_component(right.folder / name)


def test_the_gain_is_split(right: Done) -> None:
    [split] = right.result.attributions
    rows = {row.component: row for row in split.components}
    assert rows["norm"].touched
    assert rows["o_proj"].touched
    assert not rows["mlp"].touched
    layers = {proof.layer for proof in split.proofs if proof.slot == "o"}
    assert layers == set(range(LAYERS))
    assert {proof.ran for proof in split.proofs if proof.slot == "o"} == {"ran"}


def test_the_page_and_the_text_say_the_same(right: Done) -> None:
    headline = right.output.splitlines()[0]
    assert " is " in headline
    assert headline[:40] in (right.folder / "report.html").read_text()


def test_what_cannot_be_known_here_is_said(right: Done) -> None:
    missing = "\n".join(right.result.missing)
    assert "the weights are random" in missing
    assert "clocks: not known" in missing


def test_a_wrong_kernel_fails(wrong: Done) -> None:
    assert wrong.code == 1, wrong.errors
    [gate] = wrong.result.gates
    assert not gate.verdict.passed
    assert any("alone is 100.00% from vLLM's result" in line for line in gate.verdict.reasons)
    assert wrong.result.runs == ()
    assert wrong.output.splitlines()[0].partition(" fails the gate")[1]


def test_a_wrong_kernel_is_not_applied(wrong: Done, environment: dict[str, str]) -> None:
    argv = [*SPARK_PROF, "ab", "--apply", "--", str(wrong.folder / "result.json")]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert "fails the correctness gate" in done.stderr


def test_a_right_kernel_is_applied(right: Done, environment: dict[str, str]) -> None:
    norm = right.folder.parent / "my_norm.py"
    typed = f"norm={norm}:build,o={KERNELS}:right"
    argv = [*SPARK_PROF, "ab", "--apply", "--b", typed, "--", str(right.folder / "result.json")]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True)
    assert done.stdout == f"export SPARK_PROF_SWAPS={typed}\n"
