"""What takes the GPU's memory after a start, from the figures that the log states."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from spark_prof.analyzers.startup.start_rows import MemoryRow, StartMemory
from spark_prof.rules.start_memory import MEMORY_PARTS
from spark_prof.traces.readers.engine_log import EngineLog
from spark_prof.traces.readers.start_marks import MemoryFigure


def start_memory_of(log: EngineLog) -> StartMemory | None:
    """The memory of the last engine in a log; None where it tells nothing of it."""
    by_process: dict[str, dict[str, MemoryFigure]] = defaultdict(dict)
    for figure in log.starts.memory:
        if figure.name == "weights":
            by_process[figure.process].clear()  # another start of the same process
        by_process[figure.process][figure.name] = figure
    workers = [figures for figures in by_process.values() if "weights" in figures]
    figures: dict[str, MemoryFigure] = {}
    # What only one rank writes holds for all.
    for more_figures in by_process.values():
        figures.update(more_figures)
    if workers:
        figures.update(max(workers, key=lambda one: one["weights"].gib))
    amounts = _parts({name: figure.gib for name, figure in figures.items()})
    if not amounts:
        return None
    lines = {name: figure.line for name, figure in figures.items()}
    return _memory(amounts, figures, lines, _has_drafter(log), len(workers))


def _parts(gib: Mapping[str, float]) -> dict[str, float]:
    """The parts without what one of them has of another."""
    parts = {name: gib[name] for name in MEMORY_PARTS if name in gib}
    if "consumed" in parts:
        # It is measured after the weights are there, and has them in it.
        weights = parts.pop("weights", None)
        if weights is not None and weights <= parts["consumed"]:
            parts["weights"], parts["non_torch"] = weights, parts.pop("consumed") - weights
        if "activation" in parts and "graphs" in parts:
            estimated = gib.get("graphs_estimated", 0.0)
            parts["activation"] = max(parts["activation"] - estimated, 0.0)
    return {name: parts[name] for name in MEMORY_PARTS if name in parts}


def _memory(
    amounts: Mapping[str, float],
    figures: Mapping[str, MemoryFigure],
    lines: Mapping[str, int],
    with_drafter: bool,
    ranks: int,
) -> StartMemory:
    budget, free, device = (
        figures[name].gib if name in figures else None for name in ("budget", "free", "device")
    )
    rows = [
        MemoryRow(
            name, MEMORY_PARTS[name], gib, gib / budget if budget else None,
            lines.get(name, lines.get("consumed", 0)),
        )
        for name, gib in amounts.items()
    ]  # fmt: skip
    named_gib = sum(row.gib for row in rows)
    if budget:
        rows.append(MemoryRow("", "", budget - named_gib, (budget - named_gib) / budget, 0))
    share = named_gib / budget if budget else None
    return StartMemory(tuple(rows), budget, named_gib, free, device, share, with_drafter, ranks)


def _has_drafter(log: EngineLog) -> bool:
    """Whether the engine's configuration names a drafter with weights of its own."""
    return any(_names_drafter(line.detail) for line in log.of("engine-config")[-1:])


def _names_drafter(configuration: str) -> bool:
    methods: Iterable[str] = ("ngram", "suffix")
    begin = configuration.find("speculative_config=SpeculativeConfig(")
    if begin < 0:
        return False
    setting = configuration[begin : begin + 120]
    return not any(f"method='{method}" in setting for method in methods)
