"""Which nodes of CUDA graphs the bound counts, and that it stays below what was measured."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from functools import cache
from pathlib import Path

import pandas as pd
import pytest

from spark_prof.analyzers.instants import with_own_starts
from spark_prof.analyzers.model import Report
from spark_prof.analyzers.roofline import device_ceilings
from spark_prof.analyzers.roofline.device_ceilings import ceilings_of, without_step_floors
from spark_prof.analyzers.roofline.nodes import NodeShares, node_shares
from spark_prof.analyzers.roofline.roofline_rows import Place, Roofline, RooflinePhase, RooflineRow
from spark_prof.analyzers.step_time import LAUNCH_GAPS
from spark_prof.analyzers.summary import summarize
from spark_prof.analyzers.views.waterfall import DIFFERENCES, waterfall_of
from spark_prof.analyzers.why_sides import side_of_recording
from spark_prof.rules.gpus import GPUS, gpu_called
from spark_prof.rules.node_prices import DEPENDENT, NODE_PRICES, SERIAL, NodePrice
from spark_prof.traces.bundle import Bundle
from spark_prof.traces.measured import MeasuredMachine, Measurement
from tests.rows import each_row

ROOT = Path(__file__).parents[3]
DATA = ROOT / "tests" / "data"
PLANTED = NodePrice(0.7, 0.5, "planted")
H100 = "NVIDIA H100 80GB HBM3"


def placed(*rows: tuple[str, int, int, int, int, int]) -> pd.DataFrame:
    """Kernels of name, step, stream, start, end and node, in order of start."""
    names = ["name", "step", "stream", "start_ns", "end_ns", "graph_node"]
    kind = pd.Categorical(["kernel"] * len(rows))
    table = pd.DataFrame(rows, columns=names).assign(component="mlp", role="", kind=kind, part=0)
    return with_own_starts(table)


def shares(*rows: tuple[str, int, int, int, int, int]) -> dict[str, NodeShares]:
    found = node_shares(placed(*rows), pd.Index([0, 1]))
    return {place.name: counted for place, counted in found.items()}


def test_a_node_behind_another_one_of_its_step_counts() -> None:
    found = shares(("a", 0, 1, 0, 10, 5), ("b", 0, 1, 11, 20, 6), ("b", 0, 1, 22, 30, 7),
                   ("a", 1, 1, 50, 60, 5), ("b", 1, 1, 61, 70, 6))  # fmt: skip
    assert found == {"a": NodeShares(), "b": NodeShares(1.0, 0.0)}


def test_what_the_host_launches_is_no_node() -> None:
    found = shares(("a", 0, 1, 0, 10, 0), ("b", 0, 1, 11, 20, 0), ("c", 0, 1, 22, 30, 7))
    assert (found["b"], found["c"]) == (NodeShares(), NodeShares(1.0, 0.0))


def test_what_runs_beside_another_stream_hides_its_price_and_the_next_one_s() -> None:
    found = shares(("a", 0, 1, 0, 10, 1), ("b", 0, 1, 11, 20, 2), ("side", 0, 2, 15, 19, 3),
                   ("c", 0, 1, 21, 30, 4), ("d", 0, 1, 31, 40, 5))  # fmt: skip
    assert {name: one.counted for name, one in found.items()} == {
        "a": 0.0, "b": 0.0, "side": 0.0, "c": 0.0, "d": 1.0,
    }  # fmt: skip


def test_a_node_that_started_early_may_read_while_it_waits() -> None:
    found = shares(("a", 0, 1, 0, 10, 1), ("b", 0, 1, 7, 20, 2), ("c", 0, 1, 21, 30, 3))
    assert found["b"] == NodeShares(0.0, 1.0)
    assert found["b"].us(PLANTED, 0.2) == pytest.approx(0.3)
    assert found["b"].us(PLANTED, 3.0) == 0.0
    assert found["c"].us(PLANTED, 3.0) == 0.5, "the lower price: nothing tells how it depends"


def test_a_table_without_nodes_has_none() -> None:
    rows = placed(("a", 0, 1, 0, 10, 1), ("b", 0, 1, 11, 20, 2)).drop(columns="graph_node")
    assert node_shares(rows, pd.Index([0])) == {}


def test_kernels_of_other_steps_do_not_count() -> None:
    table = placed(("a", 0, 1, 0, 10, 1), ("a", 0, 1, 11, 20, 2), ("a", 3, 1, 21, 30, 3))
    assert node_shares(table, pd.Index([0])) == {Place("mlp", "", "a"): NodeShares(0.5, 0.0)}


def row_of(us: float, floor_us: float | None, calls: float, node_us: float) -> RooflineRow:
    return RooflineRow("k", "mlp", calls, us * calls, None, 0.0, 0.0, "", "", False, None, None,
                       None, floor_us, None, None, None, nodes=calls, node_us=node_us)  # fmt: skip


@each_row("seed", range(40))
def test_no_kernel_is_above_its_bound(seed: int) -> None:
    """A kernel may be shorter than the price: the rest of that is before it starts."""
    chosen = random.Random(seed)
    us, calls, price = chosen.uniform(0.1, 3), chosen.randrange(1, 9), chosen.uniform(0, 2)
    floor = chosen.choice([None, chosen.uniform(0, us)])
    row = row_of(us, floor, calls, calls * price)
    assert 0 <= row.inside_us <= min(row.step_us, calls * price) + 1e-9
    assert row.of_bound is None or row.of_bound <= 1 + 1e-9


def phase_of(step_us: float | None, floor_us: float | None, node_us: float | None) -> RooflinePhase:
    return RooflinePhase("decode", 9, 1.0, step_us, 90.0, 90.0, floor_us, 1.0, 1.0, 1.0, (),
                         nodes=40.0, node_us=node_us)  # fmt: skip


@each_row(
    ("phase", "bound_us", "share", "of_distance"),
    [
        (phase_of(100.0, 40.0, 20.0), 60.0, 0.6, 1 / 3),
        (phase_of(100.0, 40.0, 80.0), 100.0, 1.0, 1.0),  # never above what was measured
        (phase_of(100.0, 40.0, None), 40.0, 0.4, None),
        (phase_of(100.0, None, 20.0), None, None, None),
        (phase_of(None, 40.0, 20.0), 60.0, None, None),
    ],
)
def test_the_bound_of_a_step(
    phase: RooflinePhase, bound_us: float | None, share: float | None, of_distance: float | None
) -> None:
    assert phase.bound_us == bound_us
    assert phase.of_bound == (None if share is None else pytest.approx(share))
    found = phase.nodes_of_distance
    assert found == (None if of_distance is None else pytest.approx(of_distance))
    bounds = Roofline(ceilings_of("GPU", None), (phase,), ())
    assert without_step_floors(bounds, ["decode"]).phases[0].bound_us is None


def measured(**us: float) -> MeasuredMachine:
    rows = [Measurement(name, value * 1e-6, "s", 1e-7, 1e-5, 25, "a chain") for name, value in
            us.items()]  # fmt: skip
    return MeasuredMachine(H100, "2026-11-29T00:00:00+00:00", tuple(rows))


def test_the_price_is_the_least_of_the_chains_of_each_kind() -> None:
    machine = measured(node_serial=0.9, node_serial_wide=0.8, node_serial_reads=0.1,
                       node_dependent=0.6, node_dependent_wide=0.7)  # fmt: skip
    price = ceilings_of(H100, "9.0", machine).node
    assert price is not None
    assert (price.serial_us, price.dependent_us) == pytest.approx((0.8, 0.6))
    assert price.least_us == pytest.approx(0.6)
    assert "2026-11-29" in price.source
    assert ceilings_of("another", None, machine).node is None


def test_a_machine_without_chains_of_both_kinds_has_no_price() -> None:
    assert ceilings_of("unknown", None, replace(measured(node_serial=0.9), device="unknown")).node \
        is None  # fmt: skip


def test_what_doctor_measures_is_what_a_report_looks_for() -> None:
    pytest.importorskip("torch")
    from spark_prof.dashboards.doctor_report import _QUANTITIES
    from spark_prof.kernels.bench.node_price import CHAINS

    names = {chain.quantity: chain for chain in CHAINS}
    assert names.keys() >= {*SERIAL, *DEPENDENT}
    assert not any(names[name].dependent for name in SERIAL)
    assert all(names[name].dependent for name in DEPENDENT)
    assert names.keys() <= _QUANTITIES.keys()


def test_every_price_is_of_a_known_gpu_and_says_who_measured_it() -> None:
    known = {gpu.short for gpu in GPUS}
    for short, price in NODE_PRICES.items():
        assert short in known
        assert 0.05 < price.least_us <= max(price.serial_us, price.dependent_us) < 5
        assert len(price.source) > 20


def test_the_price_of_an_h200_is_what_was_measured() -> None:
    measured = json.loads((ROOT / "benchmarks/results/node-price-h200.json").read_bytes())
    price = NODE_PRICES["h200"]
    assert price.serial_us == pytest.approx(measured["serial_us"], abs=0.0005)
    assert price.dependent_us == pytest.approx(measured["dependent_us"], abs=0.0005)


@cache
def planted_report(name: str, us: float) -> Report:
    with pytest.MonkeyPatch.context() as patch:
        prices = {gpu.short: NodePrice(us + 0.2, us, "planted") for gpu in GPUS if us}
        patch.setattr(device_ceilings, "NODE_PRICES", prices)
        return summarize(Bundle(DATA / name))


RECORDED = ("h100-gpt-oss-20b-mxfp4-graphs", "architectures/llama4/default")


@pytest.mark.slow
@each_row("name", RECORDED)
@each_row("us", [0.5, 5.0])
def test_a_recording_with_a_planted_price(name: str, us: float) -> None:
    report, plain = planted_report(name, us), planted_report(name, 0)
    phase, without = report.decode_roofline, plain.decode_roofline
    assert phase is not None
    assert without is not None
    assert phase.step_us is not None
    assert (phase.floor_us, without.node_us) == (without.floor_us, None), "bytes keep their name"
    assert 0 < phase.nodes < sum(row.calls for row in phase.rows)
    assert phase.node_us == pytest.approx(phase.nodes * us, rel=0.2)
    assert phase.node_us <= phase.nodes * us * (1 + 1e-9)
    assert phase.of_floor is not None
    assert phase.of_bound is not None
    assert phase.of_floor < phase.of_bound <= 1
    assert all(row.of_bound is None or row.of_bound <= 1 + 1e-9 for row in phase.rows)
    drawn, before = waterfall_of(report), waterfall_of(plain)
    assert sum(part.us for part in drawn.parts) == pytest.approx(drawn.us)
    assert min(part.us for part in drawn.parts if part.kind not in DIFFERENCES) >= 0
    (nodes,) = (part for part in drawn.parts if part.kind == "nodes")
    gaps = [next(p.us for p in one.parts if p.kind == LAUNCH_GAPS) for one in (before, drawn)]
    inside = sum(part.node_us for part in drawn.parts)
    assert nodes.us == pytest.approx(inside + gaps[0] - gaps[1])
    assert drawn.floor_us == before.floor_us


def test_why_has_the_price_beside_the_bytes_of_each_component() -> None:
    gpu = gpu_called("h100")
    assert gpu is not None
    report = planted_report(RECORDED[0], 0.5)
    side, plain = (
        side_of_recording(one, "run", gpu) for one in (report, planted_report(RECORDED[0], 0))
    )
    phase = report.decode_roofline
    assert phase is not None
    assert phase.node_us is not None
    assert side.bound_us == plain.bound_us
    assert 0.9 * phase.node_us < side.nodes_us <= phase.node_us * (1 + 1e-9)
    assert side.nodes_of_distance is not None
    assert all((part.of_bound or 0) <= 1 for part in side.parts if part.us)
    assert (plain.nodes_us, plain.nodes_of_distance) == (0.0, None)
    another = gpu_called("h200")
    assert another is not None
    assert side_of_recording(report, "run", another).nodes_us == 0.0
