"""Reports that hold one value that a threshold is asked of: what else it asks of them is given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, cast

import pandas as pd
import pytest

from spark_prof.analyzers.ceilings.schemes import BYTES
from spark_prof.analyzers.fallbacks.audit_rows import Audit, BatchRow, EngineSetup
from spark_prof.analyzers.finding import Finding
from spark_prof.analyzers.findings.engine_setup import SETUP
from spark_prof.analyzers.findings.measured_gains import _like
from spark_prof.analyzers.findings.ranking import held_to_parts, parts_of_token
from spark_prof.analyzers.findings.rule import has_qk_norm
from spark_prof.analyzers.host import host_summary
from spark_prof.analyzers.host.host_rows import HostCode, HostStage
from spark_prof.analyzers.model import ModuleRow, Report
from spark_prof.analyzers.requests.request_times import FirstTokenPart, LimitRow
from spark_prof.analyzers.roofline.roofline_rows import (
    Ceilings,
    Roofline,
    RooflinePhase,
    RooflineRow,
    StreamedWeights,
)
from spark_prof.analyzers.shapes.shape_rows import Occupancy, Tile
from spark_prof.analyzers.step_accounting import Spread
from spark_prof.analyzers.token_time import token_times
from spark_prof.kernels.tuning import known_runs
from spark_prof.rules import thresholds as t
from spark_prof.rules.gpus import find_gpu
from spark_prof.rules.thresholds import Threshold
from spark_prof.traces.bundle import Bundle
from tests.analyzers.findings.reports import (
    HEALTHY,
    MARLIN,
    STEP_US,
    STEPS,
    accounts,
    kernel,
    shape,
    shaped,
)
from tests.analyzers.findings.reports import found as findings_of_rule
from tests.analyzers.findings.test_conversion_rules import conversion, repeated
from tests.analyzers.findings.test_conversion_rules import report as converting
from tests.analyzers.findings.test_draft_rules import report as drafting
from tests.analyzers.requests.samples import LOADED, report_of

Plant = Callable[[float], Report]


class Planted(NamedTuple):
    """A threshold, the rule that asks it, and what that rule sees where a report has a value."""

    row: Threshold[int] | Threshold[float]
    finding: str
    seen: Callable[[float], bool]
    at: bool | None = None  # whether the value itself is seen; None where rounding decides


def seen_by(finding: str, plant: Plant) -> Callable[[float], bool]:
    """Whether that rule finds something in the report of a value."""
    return lambda value: bool(findings_of_rule(plant(value), finding))


def _slow_gaps(each_us: float) -> Report:
    """A million kernels a step, each so long after the one before it."""
    many = 1_000_000
    return replace(shaped(shape(calls=many)), accounts=accounts(many * each_us, 15.0))


def _mixed(share: float) -> Report:
    steps = pd.DataFrame({
        "phase": ["decode"] * STEPS + ["mixed"], "decode_requests": 1, "step_us": STEP_US,
        "output_requests": 1, "output_tokens": 1,
    })  # fmt: skip
    token = replace(token_times(steps)[0], prompts_us=share * STEP_US, decode_only_us=STEP_US)
    slow = Spread(STEP_US, STEP_US, STEP_US)
    return replace(HEALTHY, steps=replace(HEALTHY.steps, mixed=1, mixed_us=slow, token=token))


def _read(us: float, floor_us: float, name: str = MARLIN, **more: Any) -> Report:
    """One kernel of `o_proj` that the memory limits, called once a step."""
    row = RooflineRow(
        name, "o_proj", 1.0, us, 1e6, 1e6, 1e6, "w", "b", False, 1e12, None, floor_us / us,
        floor_us, "memory", us - floor_us, (us - floor_us) / 1e3,
    )  # fmt: skip
    row = replace(row, **more)
    phase = RooflinePhase("decode", STEPS, 1.0, STEP_US, 900.0, us, us, 1e6, 1e6, 1e6, (row,))
    return replace(HEALTHY, roofline=Roofline(Ceilings("H100"), (phase,), ()))


def _wide(share: float) -> Report:
    report = _read(0.9 * STEP_US, 0.8 * STEP_US)
    assert report.roofline is not None
    weights = (StreamedWeights("o_proj", "bfloat16", False, 1e9, share, ""),)
    return replace(report, roofline=replace(report.roofline, weights=weights))


def _tile(rows: float, used: float) -> Report:
    tile = Tile("Marlin", rows, 64, 64, rows)  # type: ignore[arg-type]
    row = shape(us=50.0, calls=10, tile=tile, rows_used=used)
    known = (kernel(MARLIN, "o_proj", row.us, precision="bf16", weights="fp4"),)
    return replace(shaped(row), kernels=known)


_H100 = find_gpu(HEALTHY.gpu.name, "9.0")
assert _H100 is not None
_RIDGE_ROWS = _H100.bandwidth.value / _H100.peaks["bf16"].value * 4
"""Shares of the memory's time for a row of a tile on an H100: 4-bit weights, BF16 products."""


def _warps(reached: float = 0.2, share: float = 0.1, shared: float = 0.0) -> Report:
    row = shape(us=50.0, calls=10, shared=round(shared))
    row = replace(row, occupancy=Occupancy(1, 4, share, ("registers",)))
    floor = _read(row.us_per_call, 0.2 * row.us_per_call, of_reached=reached)
    return replace(floor, shapes=shaped(row).shapes, kernels=shaped(row).kernels)


def _speculation(report: Report, last: Sequence[tuple[str, float]] = (), **more: Any) -> Report:
    """With that of the last place changed."""
    own = report.speculation
    assert own is not None
    changed = replace(own.positions[-1], **dict(last))
    return replace(
        report, speculation=replace(own, positions=(*own.positions[:-1], changed), **more)
    )


def _costly(share: float) -> Report:
    """Drafts with which a token takes so much longer at best than without."""
    report = drafting([0, 0], drafter_us=300.0)
    own = report.speculation
    assert own is not None
    assert own.cost is not None
    best = own.cost.step_us / (1 + sum(place.high for place in own.positions))
    cost = replace(own.cost, plain_high_us=best / (1 + share), plain_low_us=best / (1 + share))
    return replace(report, speculation=replace(own, cost=cost))


def _waiting(rule_limit: str = "sequences", **changed: Any) -> Report:
    limits = (LimitRow(rule_limit, 75, 0.75),)
    return report_of(replace(LOADED, limits=limits), **changed)


def _queue(share: float) -> Report:
    assert LOADED.ttft is not None
    us = share * LOADED.ttft.p50
    return _waiting(parts=(FirstTokenPart("queue", us, us, us, us),))


def _head(product: float = 0.0, cast: float = 0.0, narrow: float = 0.0) -> Report:
    """An lm_head whose product in FP32, and whose casts, take these shares of a step."""
    base = converting(*([conversion("cast", "lm_head", cast)] if cast else []))
    steps, spread = base.steps, base.steps.decode_us
    assert spread is not None
    us = product * spread.median * steps.decode
    name = "nvjet_tst_64x8_64x16_4x1_v_bz_TNT"
    own = replace(
        kernel(name, "lm_head", us, precision="bf16" if narrow else "fp32"),
        decode_us_per_step=us / steps.decode,
    )
    layers = ModuleRow("experts", "FusedMoE", "", "", "uint8", "", 24, round(1e9 * (narrow or 1)))
    rest = replace(layers, weight_dtype="bfloat16", bytes=round(1e9 * (1 - (narrow or 1))))
    head = ModuleRow("lm_head", "ParallelLMHead", "", "", "bfloat16", "", 1, 10**9)
    return replace(base, kernels=(own,), modules=(layers, rest, head))


def _repeated(share: float) -> Report:
    sample = converting()
    assert sample.steps.decode_us is not None
    return repeated(share * sample.steps.decode_us.median)


def _padded(times: float = 2.0, share: float = 1.0) -> bool:
    """Steps of 100 tokens, so many of 10,000, in graphs so many times as large."""
    rows = (BatchRow(100, round(10_000 * share), round(100 * times)),
            BatchRow(8, 10_000 - round(10_000 * share), 8))  # fmt: skip
    audit = Audit(EngineSetup(graph_sizes=(8,)), batches=rows)
    (rule,) = (rule for rule in SETUP if rule.id == "graph-sizes-missing")
    return any(rule.find(audit))


def _claims(*shares: float) -> list[Finding]:
    """Findings about one part of the token that claim such shares of it, held to it."""
    room = parts_of_token(HEALTHY)["o_proj", ""]
    made = [Finding(f"f{n}", share * room, "", "", parts=("o_proj",))
            for n, share in enumerate(shares)]  # fmt: skip
    return held_to_parts(made, HEALTHY)


def _same_bytes(share: float) -> bool:
    """Whether a measured weight is found by a size that is off by so much of itself."""
    runs = [run for run in known_runs() if run.rows]
    row = next(row for row in runs[0].rows if row.work.kernel != "moe")
    size = row.work.rows * row.work.columns * BYTES[row.work.format] / (1 + share)
    like = _like(size, row.work.kernel, row.work.format, "spark_prof", runs[:1])
    return any(measured is row for measured, _ in like)


def _norms(width: float) -> bool:
    rows = [ModuleRow("o_proj", "", "", "", "", "1", 4, 1)]
    rows.append(ModuleRow("norm", "", "", "", "", str(round(width)), 8, 1))
    return has_qk_norm(rows)


def _host(samples: int = 1000, share: float = 0.9, gap: float = 0.2, sure: float = 0.8) -> Report:
    """Stacks in gaps, by the lower end of the interval of their stage."""
    stage = HostStage("schedule", samples, 1.0, share, 1.0, gap * STEP_US, 0.1)
    host = HostCode(
        rounds=5 * samples, gap_samples=samples, gap_us=gap * STEP_US, inside_us=0.0,
        between_us=gap * STEP_US, steps=100, covered=0.9, sure=sure, unknown=0.0, error_us=500.0,
        enough=True, stages=(stage,),
    )  # fmt: skip
    return replace(HEALTHY, accounts=accounts(copies_us=0.0), host=host)


def _spins(share: float) -> bool:
    rows = pd.DataFrame({"process": ["p"], "name": ["t"], "thread": [1], "python": [False],
                         "cpu_ns": [round(1e6 * share)], "wall_ns": [10**6]})  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(host_summary, "host_table", lambda bundle, name: rows)
        return bool(host_summary._busy(cast(Bundle, None), {"p"}))


FAR, DRAFTS = "far-from-memory-floor", "drafts-do-not-pay"
WIDE = "bf16-weights-dominate"
REREAD = "read-more-than-needed"
WIDENED = "lm-head-widened"
TILES = "tile-waste"
WARPS = "low-occupancy"
QUEUE = "requests-queue"
PLANTED = (
    Planted(t.BETWEEN_KERNELS, "host-gaps", seen_by("host-gaps", _slow_gaps)),
    Planted(t.MIXED_SHARE, "mixed-steps", seen_by("mixed-steps", _mixed), at=True),
    Planted(t.FAR_TIMES, FAR, seen_by(FAR, lambda x: _read(100 * x, 100.0)), at=False),
    Planted(t.KERNEL_SHARE, FAR, seen_by(FAR, lambda x: _read(400.0, 100.0, left_us=x * STEP_US)),
            at=False),
    Planted(t.WIDE_SHARE, WIDE, seen_by(WIDE, _wide), at=True),
    Planted(t.REREAD_TIMES, REREAD,
            seen_by(REREAD, lambda x: _read(400.0, 100.0, amplification=x)), at=True),
    Planted(t.EMPTY_ROWS, TILES, seen_by(TILES, lambda x: _tile(512, 512 * (1 - x))),
            at=True),
    Planted(t.RIDGE_SHARE, TILES, seen_by(TILES, lambda x: _tile(x / _RIDGE_ROWS, 1.0))),
    Planted(t.SLOW_READ, WARPS, seen_by(WARPS, lambda x: _warps(reached=x)),
            at=False),
    Planted(t.FEW_WARPS, WARPS, seen_by(WARPS, lambda x: _warps(share=x)),
            at=True),
    Planted(t.DEEP_PIPELINE, WARPS, seen_by(WARPS, lambda x: _warps(shared=x)),
            at=False),
    Planted(t.VERIFICATIONS, DRAFTS,
            seen_by(DRAFTS, lambda x: drafting([0, 0], of=round(x), drafter_us=450.0)), at=True),
    Planted(t.DRAFT_SHARE, DRAFTS, seen_by(DRAFTS, _costly)),
    Planted(t.HARDLY_ACCEPTED, DRAFTS, seen_by(DRAFTS, lambda x: _speculation(
        drafting([0], drafter_us=None, plain=False), [("high", x)])), at=False),
    Planted(t.SELDOM_ACCEPTED, "drafts-too-many", seen_by("drafts-too-many", lambda x: _speculation(
        drafting([180, 1], drafter_us=None, plain=False), [("high", x)])), at=False),
    Planted(t.NEARLY_ALWAYS_ACCEPTED, "drafts-too-few", seen_by("drafts-too-few", lambda x:
            _speculation(drafting([198, 196], drafter_us=100.0), [("low", x)])), at=True),
    Planted(t.MOST_DRAFTS, "drafts-too-few",
            seen_by("drafts-too-few", lambda x: drafting([200] * round(x), drafter_us=100.0)),
            at=False),
    Planted(t.OUTSIDE_GRAPHS, "drafts-outside-graphs", seen_by("drafts-outside-graphs", lambda x:
            drafting([700, 600], of=1000, outside=round(1000 * x))), at=True),
    Planted(t.QUEUE_REQUESTS, QUEUE,
            seen_by(QUEUE, lambda x: _waiting(whole=round(x))), at=True),
    Planted(t.QUEUE_SHARE, QUEUE, seen_by(QUEUE, _queue), at=True),
    Planted(t.BOUND_BATCHES, "kv-cache-bound", seen_by("kv-cache-bound", lambda x: _waiting(
        limits=(LimitRow("kv", 1, x),))), at=True),
    Planted(t.KV_FULL, QUEUE,
            seen_by(QUEUE, lambda x: _waiting(kv_most_used=x)), at=True),
    Planted(t.REPEATED_SHARE, "quantized-once-per-consumer",
            seen_by("quantized-once-per-consumer", _repeated)),
    Planted(t.QUANTIZED_SHARE, "lm-head-not-quantized",
            seen_by("lm-head-not-quantized", lambda x: _head(0.3, narrow=x)), at=True),
    Planted(t.HEAD_SHARE, WIDENED, seen_by(WIDENED, lambda x: _head(x))),
    Planted(t.HEAD_CAST_SHARE, WIDENED, seen_by(WIDENED, lambda x: _head(cast=x))),
    Planted(t.PADDED_TIMES, "graph-sizes-missing", lambda x: _padded(times=x), at=True),
    Planted(t.PADDED_STEPS, "graph-sizes-missing", lambda x: _padded(share=x), at=False),
    Planted(t.SAME_STATISTIC, "", lambda x: bool(_claims(1 / (1 - x))[0].evidence)),
    Planted(t.NOTHING_LEFT, "", lambda x: bool(_claims(1 - 0.5 * x, 0.5)[1].within)),
    Planted(t.SAME_BYTES, "", _same_bytes),
    Planted(t.QK_NORM_WIDTH, "small-kernels", _norms, at=True),
    Planted(t.HOST_SAMPLES, "host-code", seen_by("host-code", lambda x: _host(samples=round(x))),
            at=True),
    Planted(t.HOST_SHARE, "host-code", seen_by("host-code", lambda x: _host(share=x)), at=True),
    Planted(t.HOST_GAP, "host-code", seen_by("host-code", lambda x: _host(gap=x)), at=True),
    Planted(t.HOST_SURE, "host-code", seen_by("host-code", lambda x: _host(sure=x)), at=True),
    Planted(t.SPINNING_SHARE, "", _spins, at=True),
)  # fmt: skip
