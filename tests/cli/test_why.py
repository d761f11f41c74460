"""`spark-prof why` through the command line: any mix of checkpoints and recordings."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

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
