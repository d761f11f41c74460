"""Whether both sides fit, by the headers of a checkpoint, before anything is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_prof.ab.command import EngineCommand, engine_command
from spark_prof.ab.machine import check_memory
from spark_prof.ab.sides import parse_side
from tests.checkpoints import config_of, tensors_of, write_model

GB = 10**9
STOCK = parse_side("stock")


@pytest.fixture(scope="module")
def gpt_oss(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "gpt-oss-20b"
    config = config_of("gpt-oss-20b")
    write_model(folder, config, tensors_of(config, lambda _: None))
    return folder


def command(folder: Path, *options: str) -> EngineCommand:
    return engine_command([str(folder), *options])


def needed(folder: Path, b: str, *options: str) -> float:
    """GB that both sides need, by bisection of the free memory."""
    low, high = 0, 400 * GB
    while high - low > GB // 1000:
        middle = (low + high) // 2
        fits, _ = check_memory(command(folder, *options), STOCK, parse_side(b), middle)
        low, high = (low, middle) if fits else (middle, high)
    return high / GB


def test_the_model_and_the_copies_are_added_up(gpt_oss: Path) -> None:
    """90 % of the memory is vLLM's."""
    stock = needed(gpt_oss, "norm=spark_prof")
    # 24 layers of 32 experts with three matrices of 2,880 x 2,880, 4.25 bits a weight
    experts = 24 * 32 * 3 * 2880**2 * 4.25 / 8 / GB / 0.9
    assert needed(gpt_oss, "moe=spark_prof") - stock == pytest.approx(experts, rel=0.01)
    # 201,088 rows of 2,880 in bfloat16, and what becomes of them
    lm_head = 201_088 * 2_880 / GB / 0.9
    for kernel, bytes_each in (("spark_prof", 2), ("fp8", 1), ("mxfp4", 4.25 / 8)):
        more = needed(gpt_oss, f"lm_head={kernel}") - stock
        assert more == pytest.approx(lm_head * bytes_each, abs=0.01)


def test_ranks_share_and_the_user_gives_less(gpt_oss: Path) -> None:
    whole = needed(gpt_oss, "moe=spark_prof")
    half = needed(gpt_oss, "moe=spark_prof", "--tensor-parallel-size", "2")
    beside = 1.074 / 0.9
    assert half - beside == pytest.approx((whole - beside) / 2, rel=0.01)
    less = needed(gpt_oss, "moe=spark_prof", "--gpu-memory-utilization=0.45")
    assert less == pytest.approx(2 * whole, rel=0.01)


def test_what_is_not_known_is_said(tmp_path: Path) -> None:
    b = parse_side("moe=spark_prof")
    for folder, free in ((tmp_path, GB), (tmp_path / "gone", GB), (tmp_path, None)):
        words = [str(folder)] if folder.exists() else ["some/model"]
        fits, line = check_memory(engine_command(words), STOCK, b, free)
        assert fits is None
        assert line.startswith("memory for both sides was not checked")
