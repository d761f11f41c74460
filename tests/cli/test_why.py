"""`spark-prof why` through the command line: any mix of checkpoints and recordings."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from tests.checkpoints import MODELS
from tests.cli.conftest import Refuses, Run
from tests.rows import each_row
from tests.support import Piece, Recorded, kineto, operator, step

COMMAND = "why"
DATA = Path(__file__).parents[1] / "data"
CODE = DATA / "code-h100"
NEXT = MODELS / "qwen3-next-80b-a3b-nvfp4"
TIME = re.compile(r"[\d.,]+ [um]s\b")


def test_what_cannot_be_asked(refuses: Refuses) -> None:
    refuses("nowhere", "does not exist")
    refuses(f"{NEXT} --gpu abacus", "--gpu abacus is not known")
    refuses([NEXT] * 7, "7 sides are too many")
    refuses(f"{NEXT} --batch 0", "'--batch': Input should be")


def test_a_cpu_engine_is_held_against_no_gpu(refuses: Refuses, tmp_path: Path) -> None:
    piece = Piece([step(0, 0, 1000)], trace=kineto(operator("mm", 200, 400)))
    bundle = Recorded({0: [piece]}).assemble(tmp_path / "b")
    refuses([bundle.path], "is of a CPU engine")


@pytest.mark.slow
@each_row(
    ("sides", "command"),
    [
        ((NEXT, MODELS / "qwen3-next-80b-a3b-fp8"),
         f"spark-prof record -o {NEXT.name}-run -- vllm serve {NEXT}"),
        ((NEXT / "config.json",), f"spark-prof record -o {NEXT.name}-run -- vllm serve {NEXT}"),
        ((CODE / "dense-nvfp4", CODE / "dense-awq"),
         "spark-prof ab --a=--enforce-eager --b stock -- /tmp/m/nvfp4"),
        # A checkpoint beside its own recording needs no other one.
        ((MODELS / "qwen3-30b-a3b-nvfp4", CODE / "qwen3-30b-a3b-nvfp4"),
         "spark-prof ab --b layer=spark_prof,o=spark_prof,lm_head=spark_prof -- /tmp/m/qwen"),
    ],
)  # fmt: skip
def test_the_last_line_is_one_command(run: Run, sides: tuple[Path, ...], command: str) -> None:
    code, out, _ = run(*sides)
    last = [line for line in out.splitlines() if line.strip()]
    assert (code, [line for line in last if line.startswith("$ ")]) == (0, [f"$ {command}"])
    assert last[-1] == f"$ {command}"
    assert ("is a path of the machine that was recorded" in last[-2]) is ("/tmp/m" in command)
    assert shlex.split(command)[0] == "spark-prof"


def test_times_of_the_sentences_are_those_of_the_table(run: Run) -> None:
    for other in ("dense-fp8-block", "dense-awq", "dense-bf16", "dense-fp8-token"):
        _, out, _ = run(CODE / "dense-nvfp4", CODE / other)
        answer, table, *_ = out.split("\n\n")
        against = re.search(r"\(([\d.]+ .s) against ([\d.]+ .s)\)", " ".join(answer.split()))
        assert against
        assert {*against.groups()} <= {*TIME.findall(table)}
        for waiting in re.findall(r"([\d.]+ .s) \(([\d.]+ .s) waiting\)", " ".join(answer.split())):
            assert {*waiting} <= {*TIME.findall(table)}


def test_different_models_are_not_slower_for_a_reason(run: Run) -> None:
    _, out, _ = run(CODE / "qwen3-30b-a3b-nvfp4", CODE / "gpt-oss-20b-mxfp4")
    answer = out.partition("\n\n")[0]
    assert "are different models (Qwen3MoeForCausalLM and GptOssForCausalLM)" in " ".join(
        answer.split()
    )
    assert not re.search("longer|slower|fewer|more bytes", answer)


def words(out: str) -> str:
    return " ".join(out.split())


def test_a_measured_gap_is_taken_apart(run: Run) -> None:
    """The dispute of a forum's thread: 4.158 and 3.928 GB at 231 GB/s, 35 and 44 tokens/s."""
    _, out, _ = run(NEXT, MODELS / "qwen3-next-80b-a3b-fp8", "--measured", "35,44")
    told = words(out)
    assert f"{NEXT.name} 35.0 tokens/s, 63.0 % of 55.6 at most" in told
    assert "takes 5.84 ms longer than of qwen3-next-80b-a3b-fp8: kernels, launches and" in told
    assert "the rest +4.85 ms (83.0 %), bytes +994.1 us (17.0 %)." in told
    assert "it would run at 42.2 tokens/s" in told
    _, out, _ = run(CODE / "dense-nvfp4", CODE / "dense-awq", "--measured", "190,200")
    rows = [line for line in out.splitlines() if line.startswith(("kernels beyond", "outside"))]
    assert len(rows) == 2
    _, out, _ = run(NEXT, NEXT, "--measured", "35,90")
    assert f"{NEXT.name} (2) takes 11.11 ms a step, less than its lower bound" in words(out)
    assert "The measured gap" not in out


def test_memory_batch_and_tensor_parallelism(run: Run) -> None:
    big = MODELS / "qwen3-vl-235b-a22b-nvfp4"
    _, out, _ = run(big, "--gpu", "rtx5090")
    assert "does not fit: it takes 134.1 GB, RTX 5090 has 32 GB of memory; --tensor-" in words(out)
    table = next(part for part in out.split("\n\n") if part.startswith("What a token reads"))
    assert "Tokens/s" not in table
    _, alone, _ = run(big, "--gpu", "gb10", "--format", "json")
    _, shared, _ = run(big, "--gpu", "gb10", "--tensor-parallel", "2", "--format", "json")
    [one], [two] = (json.loads(text)["sides"] for text in (alone, shared))
    assert one["memory"]["bytes"] > one["memory"]["gpu_bytes"] > two["memory"]["bytes"]
    assert one["memory"]["fitting"] == 2
    halves = [sum(part["bytes"] for part in side["parts"]) for side in (one, two)]
    assert 0.5 < halves[1] / halves[0] < 0.55
    # From so many sequences on the products take longer than the weights.
    _, out, _ = run(MODELS / "qwen3-8b-nvfp4", "--batch", "4096", "--gpu", "h100")
    assert "arithmetic" in out
    _, out, _ = run(MODELS / "qwen3-8b-nvfp4", "--context", "100000", "--gpu", "rtx5070")
    assert "KV cache" in out
    assert "does not fit" in words(out)


def test_a_recording_says_how_many_gpus_and_sequences(run: Run) -> None:
    recording, checkpoint = CODE / "qwen3-30b-a3b-nvfp4", MODELS / "qwen3-30b-a3b-nvfp4"
    _, out, _ = run(recording, checkpoint, "--tensor-parallel", "2")
    assert "is on 1 GPUs of tensor parallelism and" in words(out)


def test_times_of_another_gpu_are_no_share_of_a_bound(run: Run) -> None:
    _, there, _ = run(CODE / "dense-nvfp4")
    _, here, _ = run(CODE / "dense-nvfp4", "--gpu", "gb10")
    assert "Of bound" in there
    assert "another GPU" not in there
    assert "Of bound" not in here
    assert "dense-nvfp4 ran on another GPU, whose times are no share of this bound." in words(here)


def test_measured_and_bench(refuses: Refuses) -> None:
    refuses(f"{NEXT} --measured 1,2", "is not 1 rates in tokens/s")
    refuses(f"{NEXT} --measured 1 --bench x.txt", "say the same; give one of them")
    refuses([CODE / "dense-nvfp4", "--context", "10"], "--context is for checkpoints")


def test_a_trace_that_tells_no_weights_has_no_bound(run: Run) -> None:
    code, out, _ = run(DATA / "kineto" / "gpt-oss-eager.json.gz")
    text = " ".join(out.split())
    assert code == 0
    assert "does not tell which weights a step reads: its lower bound is not known" in text
    for figure in ("0 B", "0 us", "0.0 %", "Lower bound", "0.00"):
        assert f" {figure} " not in f" {text} ", figure
