"""Sections about what was compared: the sides, their swaps and costs, and how it was measured."""

from __future__ import annotations

import shlex
from collections import Counter

from spark_prof.ab.result import Range, Result, SideFacts
from spark_prof.ab.swapped import SwappedModule
from spark_prof.dashboards.formats import MISSING, clean, count, size
from spark_prof.dashboards.section import Column, Section

_MOST_LINES = 3


def compared(result: Result) -> Section:
    """What a and b are."""
    rows: list[tuple[str, str]] = [(side.side, clean(side.name)) for side in result.sides]
    rows += [("model", clean(result.model)), ("on", _device(result))]
    rows.append((result.mode, clean(result.mode_why)))
    return _facts("ab_compared", "What was compared", rows)


def swaps(result: Result) -> Section:
    """What became of the swaps: one row a side and slot."""
    columns = (
        Column("Side"),
        Column("Slot"),
        Column("Kernel", "prose"),
        Column("Live", "number"),
        Column("Fell back", "number"),
        Column("Bits"),
        Column("Memory", "number"),
        Column("It says, or why it fell back", "prose"),
    )
    found: dict[tuple[str, str, str], list[SwappedModule]] = {}
    for rank in result.swaps:
        for swap in rank.swaps:
            found.setdefault((swap.side, swap.slot, swap.kernel), []).append(swap)
    rows = tuple((*map(clean, key), *_swap_row(modules)) for key, modules in sorted(found.items()))
    ranks = len({rank.rank for rank in result.swaps})
    intro = (f"Modules of {ranks} ranks together.",) if ranks > 1 else ()
    return Section("ab_swaps", "Swaps", columns, rows, intro)


def costs(result: Result) -> Section:
    """What the sides cost beside the time of their steps."""
    columns = (
        Column("Side"),
        Column("Start", "number"),
        Column("Packing", "number"),
        Column("Graphs", "number"),
        Column("Captured in", "number"),
        Column("Swaps hold", "number"),
        Column("GPU memory", "number"),
    )
    rows = tuple(_cost_row(side) for side in result.sides)
    shared = ("One engine: its start and its memory are those of both sides.",)
    return Section(
        "ab_costs", "Costs", columns, rows if any(map(_costs_known, rows)) else (),
        shared if result.mode == "one engine" else (),
    )  # fmt: skip


def setup(result: Result) -> Section:
    """What to repeat it with."""
    machine = result.machine
    versions = ", ".join(f"{name} {value}" for name, value in result.versions.items() if value)
    rows = [("command", shlex.join(result.command))]
    for side in result.sides:
        rows.append((f"arguments of {side.side}", shlex.join(side.arguments)))
        environment = [f"{name}={value}" for name, value in side.environment.items()]
        rows.append((f"environment of {side.side}", shlex.join(environment)))
        rows += [(f"note on {side.side}", note) for note in side.notes]
    rows += [
        ("versions", versions),
        ("driver", machine.driver),
        ("SM clock", _range(machine.sm_mhz, "MHz")),
        ("memory clock", _range(machine.memory_mhz, "MHz")),
        ("temperature", _range(machine.temperature_c, "degrees Celsius")),
        ("power", _range(machine.power_w, "W")),
        ("clocks held down by", ", ".join(machine.throttled)),
        ("begun", result.taken),
    ]
    rows += [
        (f"recording of {each.side}, batch {each.requests}", each.folder)
        for each in result.recordings
    ]
    told = [(name, clean(value)) for name, value in rows if value and value != MISSING]
    return _facts("ab_setup", "How it was measured", told)


def missing(result: Result) -> Section:
    """What could not be measured."""
    rows = tuple((clean(line),) for line in (result.failure, *result.missing) if line)
    return Section("ab_missing", "Not measured", (Column("", "prose"),), rows)


def _facts(name: str, title: str, rows: list[tuple[str, str]]) -> Section:
    told = tuple(row for row in rows if row[1])
    return Section(name, title, (Column(""), Column("", "prose")), told)


def _device(result: Result) -> str:
    machine = result.machine
    if not machine.gpu:
        return clean(machine.processor)
    several = f"{count(machine.gpus)} x " if machine.gpus > 1 else ""
    return several + clean(machine.gpu)


def _swap_row(modules: list[SwappedModule]) -> tuple[str, ...]:
    live = [swap for swap in modules if swap.live]
    lines = Counter(clean(swap.line if swap.live else swap.why) for swap in modules)
    lines.pop("", None)
    said = [f"{line} ({number} x)" if number > 1 else line for line, number in lines.most_common()]
    more = [f"and {len(said) - _MOST_LINES} other lines"] if len(said) > _MOST_LINES else []
    return (
        count(len(live)),
        count(len(modules) - len(live)),
        ", ".join(sorted({swap.bits for swap in live if swap.bits})),
        size(sum(swap.bytes for swap in live)) if live else MISSING,
        "; ".join([*said[:_MOST_LINES], *more]),
    )


def _cost_row(side: SideFacts) -> tuple[str, ...]:
    costs = side.costs
    seconds = [
        MISSING if each is None else f"{each:.1f} s"
        for each in (costs.load_s, costs.build_s, costs.capture_s)
    ]
    held, used = (
        MISSING if each is None else size(each) for each in (costs.swap_bytes, costs.device_bytes)
    )
    graphs = MISSING if costs.graphs is None else count(costs.graphs)
    return side.side, seconds[0], seconds[1], graphs, seconds[2], held, used


def _costs_known(row: tuple[str, ...]) -> bool:
    return any(cell != MISSING for cell in row[1:])


def _range(found: Range | None, unit: str) -> str:
    if found is None:
        return ""
    low, high = f"{found.lowest:,.0f}", f"{found.highest:,.0f}"
    return f"{low} {unit}" if low == high else f"{low} to {high} {unit}"
