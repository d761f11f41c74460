"""`spark-prof why` through the command line: any mix of checkpoints and recordings."""

from __future__ import annotations

from pathlib import Path

from tests.checkpoints import MODELS
from tests.cli.conftest import Refuses
from tests.support import Piece, Recorded, kineto, operator, step

COMMAND = "why"
DATA = Path(__file__).parents[1] / "data"
NEXT = MODELS / "qwen3-next-80b-a3b-nvfp4"


def test_what_cannot_be_asked(refuses: Refuses) -> None:
    refuses("nowhere", "does not exist")
    refuses(f"{NEXT} --gpu abacus", "--gpu abacus is not known")
    refuses([NEXT] * 7, "7 sides are too many")
    refuses(f"{NEXT} --batch 0", "'--batch': Input should be")


def test_a_cpu_engine_is_held_against_no_gpu(refuses: Refuses, tmp_path: Path) -> None:
    piece = Piece([step(0, 0, 1000)], trace=kineto(operator("mm", 200, 400)))
    bundle = Recorded({0: [piece]}).assemble(tmp_path / "b")
    refuses([bundle.path], "is of a CPU engine")
