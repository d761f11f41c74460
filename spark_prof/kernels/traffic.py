"""The bytes that a call has to move at least: every input read once, every output written once."""

from __future__ import annotations

from fractions import Fraction

from spark_prof.kernels.entry import Traffic
from spark_prof.kernels.tuning import Work

BYTES_A_WEIGHT = {
    "nvfp4": Fraction(9, 16),  # a code of 4 bits, and an E4M3 scale for 16 of them
    "mxfp4": Fraction(17, 32),  # and an E8M0 scale for 32
    "fp8": Fraction(1),
    "bf16": Fraction(2),
    "fp32": Fraction(4),
}
"""What a weight, or a logit, takes in memory with its part of a scale."""

_BF16, _FLOAT = 2, 4


def _linear(work: Work) -> int:
    return _linear_bf16(work) + _FLOAT * work.rows


def _linear_bf16(work: Work) -> int:
    weights = work.rows * work.columns * BYTES_A_WEIGHT[work.format]
    return int(weights) + _BF16 * work.tokens * (work.rows + work.columns)


def _moe(work: Work) -> int:
    hidden, inner = work.columns, work.rows // 2
    used = min(work.tokens * work.top_k, work.experts)
    weights = 3 * hidden * inner * BYTES_A_WEIGHT[work.format] + _FLOAT * (2 * inner + hidden)
    between = 2 * _BF16 * work.tokens * work.top_k * inner
    return int(used * weights) + between + _BF16 * work.tokens * (2 * hidden + work.experts)


def _routing(work: Work) -> int:
    logits = int(work.experts * BYTES_A_WEIGHT[work.format])
    return work.tokens * (logits + 2 * _FLOAT * work.top_k)


LINEAR = Traffic("N K w + 4 N + 2 M (N + K)", _linear)
"""w: bytes a weight, see `BYTES_A_WEIGHT`; 4 N: a factor for each row."""

LINEAR_BF16 = Traffic("N K w + 2 M (N + K)", _linear_bf16)
"""Without factors, of which BF16 rows have none."""

MOE = Traffic("D (3 H I w + 4 (2 I + H)) + 4 M k I + 2 M (2 H + E)", _moe)
"""D: the experts that take part, at most the smaller of M k and E; 4 M k I: what lies between."""

ROUTING = Traffic("w M E + 8 M k", _routing)
