"""What the figures of a report's JSON owe each other: the same time said twice is the same time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

from spark_prof.analyzers.model import Report
from spark_prof.analyzers.roofline.roofline_rows import Place
from spark_prof.analyzers.step_time import COPIED, GAPS
from spark_prof.analyzers.views.waterfall import waterfall_of
from spark_prof.dashboards.short_report import short_report

Json = dict[str, Any]

_SIGNED = frozenset(
    {
        "residual_us",
        "residual_percent",
        "offset_us",
        "drift_ppm",
        "difference",
        "uncertainty_us",
        "uneven_us",
        "prompts_us",
        "unprofiled_us",
        "base_us",
        "slope_us",
        "slope_low_us",
        "slope_high_us",
        "pair_us",
        "pair_low_us",
        "pair_high_us",
        "extra_us",
        "other_us",
    }
)
"""What may be negative."""
_SHARE = 1e-6
"""Shares are written with six digits."""


def contradictions(document: Json, rank: int = 0) -> list[str]:
    """Figures that are negative, above their whole, or told twice and not alike; none in a report.

    Args:
        document: what `report --format json` writes.
        rank: the rank it is about.
    """
    pairs = [*_steps(document, rank), *_tables(document), *_tokens(document), *_others(document)]
    return [
        *(f"{path} is {value}" for path, value in _numbers(document) if value < 0),
        *(f"{what}: {a} is not {b}" for what, a, b, off in pairs if abs(a - b) > off),
        *(f"{what}: {a} is above {b}" for what, a, b in _limits(document) if a > b + _off(b, 2)),
    ]


def other_figures(report: Report) -> list[str]:
    """Figures of one time that are not the very same number wherever a report has them.

    Nothing is within a tolerance: what runs when is added up once, and all else are sums of that.
    """
    pairs = [*_accounts(report), *_of_the_account(report), *_of_typical_kernels(report)]
    return [f"{what}: {a!r} is not {b!r}" for what, a, b in pairs if a != b]


Same = Iterator[tuple[str, float, float]]


def _accounts(report: Report) -> Same:
    """The parts of each typical step, of each token, and the sums of all steps."""
    for row in report.typical_steps:
        name = f"{row.phase} {row.batch_size}"
        yield f"parts of {name}", sum(part.us for part in row.parts), row.step_us
        yield f"backwards, {name}", sum(part.us for part in row.parts[::-1]), row.step_us
        if token := row.token:
            parts = token.typical_us + sum(token.beyond.values())
            yield f"token of {name}", parts, token.token_us
        if row.sums:
            gaps_us = row.steps * sum(p.spread.mean for p in row.parts if p.name in GAPS)
            if 0 < row.steps == row.sums.steps:
                yield f"gaps of {name}", round(1e3 * gaps_us), round(1e3 * row.sums.gap_us)
    if (whole := report.all_steps) is None:
        return
    for name in ("step_us", "kernels_us", "copies_us", "gap_us"):
        phases = [getattr(row.sums, name) for row in report.summed_steps[1:]]
        yield f"{name} of the phases", _ns(phases), _ns([getattr(whole, name)])
    for rows in (report.components, report.layers, report.kernels):
        yield f"{type(rows[:1])}", _ns([row.us for row in rows]), _ns([whole.kernels_us])
    yield "copies", _ns([row.us for row in report.copies.items]), _ns([whole.copies_us])


def _of_the_account(report: Report) -> Same:
    """The lengths of steps, the waterfall's parts and the roofline's steps."""
    drawn, step = waterfall_of(report), report.drawn_step
    yield "the waterfall's parts", sum(part.us for part in drawn.parts), drawn.us
    if step is None:
        return
    nodes = any(part.kind == "nodes" for part in drawn.parts)
    if drawn.of in ("step", "token") and step.steps_per_token in (None, 1) and not nodes:
        parts = {part.kind: part.us for part in drawn.parts}
        for gap in GAPS:
            yield f"{gap} of the waterfall", parts[gap], step.us(gap)
        yield "copies of the waterfall", parts["copies"], step.us(COPIED)
        beyond = sum(parts.get(kind, 0.0) for kind in ("uneven", "prompts", "unprofiled"))
        yield "the waterfall's step", drawn.us - beyond, step.step_us
    accounts = {row.phase: row for row in report.typical_steps if row.batch_size is None}
    for phase, spread in (("decode", report.steps.decode_us), ("prefill", report.steps.prefill_us)):
        if phase in accounts and spread and report.run.tells_steps:
            yield f"median {phase} step", spread.median, accounts[phase].step_us
    for phase in report.roofline.phases if report.roofline else ():
        account = step if phase.phase == step.phase else accounts.get(phase.phase)
        if account and phase.step_us is not None:
            yield f"step of the {phase.phase} roofline", phase.step_us, account.step_us
        if drawn.floor_us is not None and phase.phase == step.phase and drawn.of == "step":
            yield "lower bound of the waterfall", drawn.floor_us, phase.floor_us or 0.0


def _of_typical_kernels(report: Report) -> Same:
    """Components, layers, kernels and the roofline's rows of a typical step."""
    step = report.drawn_step
    for part in step.parts if step else ():
        if step and part.name not in (*GAPS, COPIED):
            rows = [k for k in report.typical if (k.phase, k.component) == (step.phase, part.name)]
            yield f"kernels of {part.name}", sum(row.us for row in rows), part.us
    decode = [kernel for kernel in report.typical if kernel.phase == "decode"]
    for row in report.components:
        times = [kernel.kernel_us for kernel in decode if kernel.component == row.name]
        yield f"a step's {row.name}", sum(times), row.decode_us_per_step
    for name in ("components", "layers", "kernels"):
        rows = getattr(report, name)
        whole = sum(kernel.kernel_us for kernel in decode)
        yield f"a step's {name}", sum(row.decode_us_per_step for row in rows), whole
    for phase in report.roofline.phases if report.roofline else ():
        times = {row.place: row.step_us for row in phase.rows}
        kernels = [kernel for kernel in report.typical if kernel.phase == phase.phase]
        yield f"{phase.phase} kernels", phase.kernels_us, sum(k.kernel_us for k in kernels)
        for kernel in kernels:
            place = Place(kernel.component, kernel.role, kernel.name)
            if kernel.calls and kernel.all_calls:
                yield f"{phase.phase} {place}", times[place], kernel.kernel_us


def _ns(us: Iterable[float]) -> int:
    """The sum in whole nanoseconds, which times of all steps have."""
    return sum(round(1e3 * one) for one in us)


def screen_contradictions(report: Report) -> list[str]:
    """Figures of the first screen that name the same thing, are not alike and do not say why."""
    shown = {section.id: section for section in short_report(report).sections}
    found = waterfall_of(report)
    wrong = []
    if (parts := shown.get("parts")) and parts.rows:
        *rows, (_, measured, *_) = parts.rows
        if not _alike(sum(_us(row[1]) for row in rows), found.us):
            wrong.append(f"the parts add up to another time than {measured}")
        if str(measured) not in " ".join(str(row[0]) for row in shown["verdict"].rows):
            wrong.append(f"the verdict does not say {measured}")
        kinds = {part.kind for part in found.parts if part.us > 0}
        apart = "component" in kinds and kinds & {"small", "conversion", "collective"}
        if apart and not any(text.startswith("Components count") for text in parts.intro):
            wrong.append("components lack kernels of theirs, and nothing says so")
    if (kernels := shown.get("decode_kernels")) is None:
        return wrong
    phase = report.decode_roofline
    whole = phase.kernels_us if phase else sum(row.us for row in report.kernels)
    column = [column.title for column in kernels.columns].index("A step" if phase else "In all")
    if not _alike(sum(_us(row[column]) for row in kernels.rows), whole, 0.02):
        wrong.append("the kernels add up to another time than they take")
    step = next(iter(report.typical_steps), None)
    if step and step.overlap_us > 0.01 * step.step_us and not kernels.intro:
        wrong.append("kernels take more than their parts, and nothing says so")
    return wrong


_UNITS = {"us": 1.0, "ms": 1e3, "s": 1e6}


def _us(cell: Any) -> float:
    """The time that a cell says; a table leaves out what is 0."""
    number, _, unit = str(cell).partition(" ")
    return float(number.replace(",", "")) * _UNITS[unit] if unit in _UNITS else 0.0


def _alike(a: float, b: float, share: float = 0.005) -> bool:
    return abs(a - b) <= share * max(abs(a), abs(b)) + 0.05


def _off(us: float, terms: int = 1) -> float:
    return 1e-3 * terms + 1e-9 * abs(us)


def _sum(rows: Iterable[Json], name: str = "us") -> float:
    return float(sum(row[name] for row in rows))


Pairs = Iterator[tuple[str, float, float, float]]


def _numbers(value: Any, path: str = "") -> Iterator[tuple[str, float]]:
    if isinstance(value, dict):
        for name, own in value.items():
            if name not in _SIGNED:
                yield from _numbers(own, f"{path}.{name}")
    elif isinstance(value, list):
        for own in value:
            yield from _numbers(own, path + "[]")
    elif isinstance(value, int | float):
        yield path, value


def _steps(document: Json, rank: int) -> Pairs:
    """Steps, books, time and ranks."""
    steps, books, time = document["steps"], document["books"], document["time"]
    counts = sum(steps[name] for name in ("prefill", "decode", "mixed", "unknown"))
    yield "steps", steps["count"], counts, 0
    for e in books:
        parts = e["kernels_us"] + e["copies_us"] - e["overlap_us"] + e["gap_us"] + e["residual_us"]
        yield f"books of {e['phase']}", parts, e["step_us"], _off(e["step_us"], 5)
        spread = steps.get(f"{e['phase']}_us")
        if spread and spread["mean"] is not None:
            # First uses of kernels are in no time of a step.
            apart = [u["us"] for u in steps["first_use_steps"] if u["phase"] == e["phase"]]
            whole = spread["mean"] * (e["steps"] - len(apart)) + sum(apart)
            yield f"mean {e['phase']} step", whole, e["step_us"], _off(whole, e["steps"])
    if not books:
        return
    whole, *phases = books
    for name in ("steps", "step_us", "kernels_us", "copies_us", "overlap_us", "gap_us"):
        off = _off(whole[name], 3 * whole["steps"])
        yield f"books of all, {name}", whole[name], _sum(phases, name), off
    yield "time.sum_us", time["sum_us"], whole["kernels_us"], _off(time["sum_us"])
    yield "time.union_us", time["union_us"], whole["union_us"], _off(time["union_us"])
    yield "time.gap_us", time["gap_us"], whole["gap_us"], _off(time["gap_us"])
    copies = document["copies"]
    yield "copies", copies["us"], whole["copies_us"], _off(copies["us"], 1 + len(copies["items"]))
    for row in document["ranks"]:
        if row["rank"] == rank:
            yield "steps of the rank", row["steps"], steps["count"], 0
            for name in ("step_us", "kernels_us", "gap_us"):
                yield f"{name} of the rank", row[name], whole[name], _off(row[name])


def _tables(document: Json) -> Pairs:
    """Components, layers and kernels."""
    total = document["time"]["sum_us"]
    tables = {name: document[name] for name in ("components", "layers", "kernels")}
    for name, rows in tables.items():
        yield f"all {name}", _sum(rows), total, _off(total, len(rows))
    for name in ("components", "kernels"):
        for row in tables[name]:
            yield f"share of {row['name']}", row["share"] * total, row["us"], _SHARE * total + 1e-3
    times: dict[str, dict[str, float]] = {name: defaultdict(float) for name in tables}
    calls: dict[str, dict[str, float]] = {name: defaultdict(float) for name in tables}
    for name, key, count in (("layers", "component", "kernels"), ("kernels", "component", "calls")):
        for row in tables[name]:
            times[name][row[key]] += row["us"]
            calls[name][row[key]] += row[count]
    for row in tables["components"]:
        own = row["name"]
        by_phase = sum(row[f"{name}_us"] for name in ("prefill", "decode", "mixed", "unknown"))
        yield f"{own} by phase", by_phase, row["us"], _off(row["us"], 4)
        for name in ("layers", "kernels"):
            each = [r for r in tables[name] if r["component"] == own]
            a_step = row["decode_us_per_step"]
            parts = _sum(each, "decode_us_per_step")
            yield f"{own} a step by {name}", parts, a_step, _off(a_step, len(each))
            off = _off(row["us"], len(tables[name]))
            yield f"{own} by {name}", times[name][own], row["us"], off
            yield f"calls of {own} by {name}", calls[name][own], row["kernels"], 0
    decode = _sum(tables["components"], "decode_us")
    yield "decode", _sum(tables["kernels"], "decode_us"), decode, _off(decode, 1000)
    coverage = document["coverage"]
    if total:
        known = sum(coverage[name] for name in ("proven", "derived", "guessed", "unknown"))
        yield "coverage", known, 1, 5 * _SHARE
    engines = _sum((row for row in tables["kernels"] if row["engine"] != "unknown"), "share")
    yield "coverage.engine", coverage["engine"], engines, _SHARE * (1 + len(tables["kernels"]))
    # What is in a layer, but whose component nothing tells, is no coverage.
    known = [row for row in tables["layers"] if row["layer"] is not None and row["basis"] != "none"]
    if total and _sum(known, "us") / total > coverage["placed"] + _SHARE:
        yield "coverage.placed", coverage["placed"], _sum(known, "us") / total, 0


def _tokens(document: Json) -> Pairs:
    """Typical steps and tokens."""
    for t in document["tokens"]:
        name, count, step = t["phase"], len(t["rows"]), t["step"]["median"]
        yield f"parts of {name}", _sum(t["rows"], "charged_us"), step, _off(step, count)
        yield f"shares of {name}", _sum(t["rows"], "share"), 1, _SHARE * count
        beside = _sum(t["rows"], "summed_us") - _sum(t["rows"], "charged_us")
        yield f"overlap of {name}", beside, t["overlap_us"], _off(step, 2 * count)
        if t["ms_per_token"] is not None:
            beyond = _sum([t["token"]], "uneven_us") + _sum([t["token"]], "prompts_us")
            beyond += t["token"]["unprofiled_us"]
            each = _sum(t["rows"], "ms_per_token") + beyond / 1e3
            yield f"token of {name}", each, t["ms_per_token"], 1e-5 * count
        means = sum(row["spread"]["mean"] for row in t["rows"])
        yield f"means of {name}", means, t["step"]["mean"], _off(means, count)
        spread = document["steps"].get(f"{name}_us")
        if t["batch_size"] is None and spread:
            for which in ("median", "mean", "p99"):
                # Where nothing tells the steps, what has one account is the whole recording.
                whole = document["time"]["wall_us"] if spread[which] is None else spread[which]
                yield f"{which} {name} step", t["step"][which], whole, _off(step)


def _others(document: Json) -> Pairs:
    """Conversions, copies, collectives and the roofline."""
    found, total = document["conversions"], document["time"]["sum_us"]
    for name in ("items", "charged", "layers"):
        yield f"conversions by {name}", _sum(found[name]), found["us"], _off(found["us"], 100)
    yield "share of conversions", found["share"] * total, found["us"], _SHARE * total + 1e-3
    if found["us_per_token"] is not None:
        each = _sum(found["charged"], "us_per_token")
        yield "conversions of a token", each, found["us_per_token"], _off(each, 100)
    copies = document["copies"]
    yield "copies by name", _sum(copies["items"]), copies["us"], _off(copies["us"], 100)
    screen = document["steps"]["screen_batch"]
    # Of several batch sizes the screen is of one, whose account comes after that of all.
    typical = {t["phase"]: t["step"]["median"] for t in document["tokens"]
               if t["batch_size"] in (None, screen)}  # fmt: skip
    for p in (document["roofline"] or {"phases": ()})["phases"]:
        if p["phase"] in typical and p["step_us"] is not None:
            yield f"{p['phase']} step", p["step_us"], typical[p["phase"]], _off(p["step_us"])
        if p["phase"] == "decode":
            for name in ("kernels", "layers"):
                each = _sum(document[name], "decode_us_per_step")
                yield f"a decode step's {name}", each, p["kernels_us"], _off(each, 100)
        if p["rows"]:
            each = sum(row["us"] * row["calls"] for row in p["rows"])
            yield f"{p['phase']} rows", each, p["kernels_us"], _off(each, 10 * len(p["rows"]))
        if p["floor_us"] is not None:
            floors = sum((row["floor_us"] or 0) * row["calls"] for row in p["rows"])
            floors += _sum(p["unplaced"])
            whole = min(floors, p["step_us"] or floors)
            yield f"{p['phase']} floor", p["floor_us"], whole, _off(floors, 5 * len(p["rows"]))


def _limits(document: Json) -> Iterator[tuple[str, float, float]]:
    """What is part of something else, and what that is."""
    for p in (document["roofline"] or {"phases": ()})["phases"]:
        if p["floor_us"] and p["step_us"]:
            yield f"floor of a {p['phase']} step", p["floor_us"], p["step_us"]
        for row in p["rows"]:
            yield f"floor of {row['name']}", row["floor_us"] or 0, row["us"]
    for t in document["tokens"]:
        for row in t["rows"]:
            yield f"{row['name']} without overlap", row["charged_us"], row["summed_us"]
            yield f"{row['name']} exclusive", row["alone_us"], row["charged_us"]
    for e in document["books"]:
        yield f"{e['phase']}: union", e["union_us"], e["step_us"]
        yield f"{e['phase']}: kernels of the union", e["union_us"], e["busy_us"]
    for row in document["kernels"]:
        yield f"decode of {row['name']}", row["decode_us"], row["us"]
