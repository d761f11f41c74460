"""`spark-prof why` through the command line: any mix of checkpoints and recordings."""

from __future__ import annotations

import json
from pathlib import Path

from tests.checkpoints import MODELS
from tests.cli.conftest import Refuses, Run

COMMAND = "why"
DATA = Path(__file__).parents[1] / "data"
NEXT = MODELS / "qwen3-next-80b-a3b-nvfp4"


def test_checkpoints_are_compared_on_one_gpu(run: Run) -> None:
    code, out, errors = run(
        NEXT, MODELS / "qwen3-next-80b-a3b-fp8" / "config.json", "--gpu", "gb10"
    )
    assert (code, errors) == (0, "")
    lines = out.splitlines()
    assert "reads 6% more bytes a token than" in lines[1]
    assert "GB10" in out
    assert "FP8: layers, attention and lm_head" in out
    assert len(lines) <= 70


def test_a_checkpoint_beside_its_recording(run: Run) -> None:
    recording = DATA / "h100-qwen3-30b-a3b-nvfp4-graphs"
    _, out, _ = run(MODELS / "qwen3-30b-a3b-nvfp4", recording, "--format", "json")
    found = json.loads(out)
    assert [side["measured"] for side in found["sides"]] == [False, True]
    assert found["gpu"] == "H100 SXM"
    sizes = [sum(part["bytes"] for part in side["parts"]) for side in found["sides"]]
    assert abs(sizes[0] / sizes[1] - 1) < 0.01


def test_what_cannot_be_asked(refuses: Refuses) -> None:
    refuses("nowhere", "does not exist")
    refuses(f"{NEXT} --gpu abacus", "--gpu abacus is not known")
    refuses([NEXT] * 7, "7 sides are too many")
    refuses(f"{NEXT} --batch 0", "'--batch': Input should be")
