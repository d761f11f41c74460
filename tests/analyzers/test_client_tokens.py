"""Clients beside the ledger of their batch size."""

from __future__ import annotations

from dataclasses import replace

from spark_prof.analyzers.client_tokens import beside_clients
from spark_prof.analyzers.clients.model import ClientRow, Comparison
from spark_prof.analyzers.step_time import Ledger, StepSpread
from spark_prof.traces.benchmarks.result import Latency
from tests.rows import each_row

NO_LATENCY = Latency()


def ledger(batch_size: int | None, step_us: float, phase: str = "decode") -> Ledger:
    """A ledger whose steps give a sequence two tokens each."""
    spread = StepSpread(step_us, step_us, step_us, step_us, step_us)
    return Ledger(phase, batch_size, 10, spread, step_us / 2e3, 0.0, ())


def client(concurrency: int | None, *comparisons: Comparison) -> ClientRow:
    return ClientRow(
        tool="vllm bench serve", model="m", label="run", concurrency=concurrency,
        mean_concurrency=None, request_rate=None, duration_s=None, completed=None, failed=None,
        output_throughput=None, ttft=NO_LATENCY, tpot=NO_LATENCY, itl=NO_LATENCY, e2e=NO_LATENCY,
        tokens_per_chunk=None, acceptance_length=None, comparisons=comparisons,
    )  # fmt: skip


TPOT = Comparison("output_token", "mean", 2600.0, 2500.0)
ITL = Comparison("chunk", "median", 5300.0, 5000.0)
LEDGERS = (ledger(None, 5000.0), ledger(1, 4000.0), ledger(8, 6000.0))


@each_row(("concurrency", "step"), [(1, 4000.0), (8, 6000.0), (3, 5000.0),
                                                   (None, 5000.0)])  # fmt: skip
def test_beside_the_ledger_of_its_batch_size(concurrency: int | None, step: float) -> None:
    token, chunk = beside_clients(LEDGERS, [client(concurrency, TPOT, ITL)])
    assert (token.ledger_us, token.beyond_us) == (step / 2, 2600.0 - step / 2)
    assert (chunk.ledger_us, chunk.beyond_us) == (step, 5300.0 - step)
    assert (chunk.quantity, chunk.statistic) == ("chunk", "median")


def test_the_first_token_is_no_decode_step() -> None:
    assert not beside_clients(LEDGERS, [client(1, Comparison("first_token", "mean", 9.0, 8.0))])


def test_nothing_to_compare() -> None:
    assert not beside_clients((), [client(1, TPOT)])
    assert not beside_clients((ledger(None, 5000.0, "prefill"),), [client(1, TPOT)])
    assert not beside_clients((replace(LEDGERS[0], ms_per_token=None),), [client(1, TPOT)])
