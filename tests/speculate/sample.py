"""Results of `spark-prof speculate`, as data."""

from __future__ import annotations

from dataclasses import replace

from spark_prof.speculate.acceptance import given_acceptance
from spark_prof.speculate.best_k import best_of
from spark_prof.speculate.speculate_result import (
    IfAccepted,
    Measured,
    Proof,
    SpeculateResult,
)
from spark_prof.speculate.step_cost import StepCost

ACCEPTANCE = given_acceptance("0.8,0.6,0.4")
ROUNDS = {
    1: tuple(
        {0: 10_000.0 * drift, 1: 11_000.0 * drift, 2: 11_500.0 * drift, 3: 14_500.0 * drift}
        for drift in (1.0, 1.01, 1.02, 1.005, 1.015)
    ),
    16: tuple(
        {0: 20_000.0 * drift, 1: 38_000.0 * drift, 2: 60_000.0 * drift, 3: 80_000.0 * drift}
        for drift in (1.0, 1.002, 1.001, 1.003, 1.0)
    ),
}
DRAFTER = {"method": "eagle3", "model": "drafter", "num_speculative_tokens": 3}
DRAFTED = SpeculateResult(
    model="m",
    engine=("vllm", "serve", "m", "--speculative-config", "{}"),
    drafter=DRAFTER,
    minutes=10,
    taken="2026-11-29T12:00:00+00:00",
    gpu="NVIDIA H200",
    vllm="0.33.0",
    execution="torch.compile, CUDA graphs",
    together=True,
    engines=3,
    start_seconds=61.0,
    measured=tuple(
        Measured(requests, 128, rounds, (rounds[0][0] * 1.1,) * 5)
        for requests, rounds in ROUNDS.items()
    ),
    acceptance=ACCEPTANCE,
    bests=tuple(best_of(requests, 128, rounds, ACCEPTANCE) for requests, rounds in ROUNDS.items()),
    config={
        "method": "eagle3",
        "model": "drafter",
        "num_speculative_tokens": 2,
        "num_speculative_tokens_per_batch_size": [[1, 15, 2], [16, 16, 0]],
    },
    serve=("vllm", "serve", "m", "--speculative-config", '{"num_speculative_tokens": 2}'),
    proofs=(Proof(1, 2, 10_000.0, 4_800.0, StepCost(2.083, 2.05, 2.11), 2.4, 15, 16, 1500, 1536),),
    missing=("batch 64 after 128 tokens: the engine runs 32 requests at most",),
    finished=True,
)
ONE = replace(
    DRAFTED,
    bests=DRAFTED.bests[:1],
    measured=DRAFTED.measured[:1],
    config={**DRAFTER, "num_speculative_tokens": 2},
)
UNKNOWN = replace(
    DRAFTED,
    acceptance=None,
    bests=tuple(best_of(requests, 128, rounds, None) for requests, rounds in ROUNDS.items()),
    if_accepted=(IfAccepted(1, 128, 0.5, 2), IfAccepted(16, 128, 0.5, 0)),
    config=None,
    serve=(),
    proofs=(),
)
STOPPED = replace(DRAFTED, bests=(), measured=(), finished=False, failure="it was stopped",
    proofs=(), config=None, serve=())  # fmt: skip
