"""What the search tries of BF16 weights: few configurations, all of which a GPU can run."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from spark_prof.kernels.bench.configurations import bf16_candidates
from spark_prof.kernels.bench.shapes import TOKENS, DenseShape, dense_work
from spark_prof.kernels.operands import stacks_at_a_time
from tests.rows import each_row

SHAPES = [shape for shape, _ in dense_work((), ["bf16"])]
PROCESSORS = 132


@each_row("shape", SHAPES)
@each_row("tokens", TOKENS)
def test_they_are_few_and_possible(tokens: int, shape: DenseShape) -> None:
    tried = list(bf16_candidates(shape.rows, shape.columns, tokens, PROCESSORS))
    assert 10 <= len(tried) == len(set(tried)) <= 52
    for config in tried:
        stacks = stacks_at_a_time(config.warps, config.split)
        assert config.split <= -(-shape.columns // 128)
        assert config.min_blocks >= 1
        assert config.warps * config.min_blocks <= 64
        blocks = config.blocks * PROCESSORS
        assert blocks < -(-shape.rows // (16 * stacks)), "as many blocks as without a limit"


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_more_tokens_leave_registers_for_fewer_warps(depth: int) -> None:
    few, many = (
        max(
            config.warps * config.min_blocks
            for config in bf16_candidates(201088, 2880, tokens, PROCESSORS)
            if config.depth == depth
        )
        for tokens in (8, 9)
    )
    assert few > many
