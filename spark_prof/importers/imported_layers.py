"""Places what no range of the trace places: by another trace, else by what repeats.

An eager run whose modules are known tells what the kernels of a CUDA graph work for: within a step
both launch the same sequence but for what a compiler fused. Every kernel placed so is marked
`aligned`.

A captured graph replays its launches in the order in which they were captured. While vLLM and
SGLang capture it, operators run in Python: the n-th launch was made for the operator around it, and
so is the n-th kernel of each replay. Launches that were captured have no kernel in the capture's
trace.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from spark_prof.analyzers.attribution.order import CODES
from spark_prof.analyzers.attribution.placement import place_kernels
from spark_prof.analyzers.classify.classifier import classify, finishes_gemm, is_gemm, split_name
from spark_prof.analyzers.lookup import NameColumn
from spark_prof.arrays import Flags, Int64s
from spark_prof.importers.imported_steps import ImportedSteps
from spark_prof.importers.modules import Modules, modules_of
from spark_prof.importers.repeats import Repeats, guess_layers
from spark_prof.traces.bundle import Bundle
from spark_prof.traces.foreign import Foreign, Window
from spark_prof.traces.host_timeline import FIRST_MODULE
from spark_prof.traces.scopes import enclosing, innermost
from spark_prof.vocabulary import COMPONENTS

_NAME = re.compile(r"(?:\w+_)?capture_(\d{1,7})_(FULL|PIECEWISE)")
_SIZE = re.compile(r"(?:^|[-_.])bs[-_]?(\d{1,7})(?!\d)")  # how SGLang's files tell the batch size
_LOOKED_AT = 256 << 20
_WORK = ("launchkernel", "memcpy", "memset")


@dataclass(frozen=True)
class Capture:
    """One captured graph of the whole model."""

    source: str
    tokens: int  # tokens of the batch that it was captured for
    # For each launch the number of its component in COMPONENTS, -1 where nothing tells it.
    components: Int64s


def captures_of(foreign: Foreign, path: Path) -> list[Capture]:
    """The graphs of the whole model that a capture's trace holds."""
    captures = []
    for window in foreign.windows:
        scopes = foreign.processes[window.process].scopes
        frame = modules_of(scopes)
        names = np.append(frame.frame["component"].astype(str).to_numpy(object), "")
        components = np.array([CODES.get(name, -1) for name in names], np.int64)
        for tokens, start, end in _stretches(window, path.name):
            launches = _captured(window, start, end)
            scope = _scope_at(window.calls, launches["start_ns"].to_numpy(np.int64))
            captures.append(Capture(path.name, tokens, components[frame.of_scope[scope]]))
    return captures


def components_by_capture(
    correlation: Int64s, tokens: Int64s, captures: Sequence[Capture]
) -> tuple[Int64s, tuple[str, ...]]:
    """The component's number of each kernel by the capture of its graph, and what was used.

    Args:
        correlation: of each row its graph's launch, -1 outside graphs; rows in order of start.
        tokens: tokens of each row's step, 0 where unknown.
        captures: the captured graphs; one fits a replay of as many rows as it has launches.

    Returns:
        A number a row, -1 for none; and, where there are captures, one line about them.
    """
    components = np.full(len(correlation), -1, np.int64)
    inside = pd.Series(np.flatnonzero(correlation >= 0))
    used: Counter[str] = Counter()
    replays = inside.groupby(correlation[correlation >= 0]).indices.values()
    for rows in replays if captures else ():
        rows = inside.to_numpy()[rows]
        fitting = [c for c in captures if len(c.components) == len(rows)]
        same = [c for c in fitting if c.tokens == tokens[rows[0]]]
        if fitting:
            capture = (same or fitting)[0]
            components[rows] = capture.components
            used[capture.source] += 1
    idle = sorted({capture.source for capture in captures} - set(used))
    uses = [f"{name} on {count} of {len(replays)} replays" for name, count in sorted(used.items())]
    uses += [f"{', '.join(idle)} on none"] if idle else []
    line = f"captured graphs were laid, launch by launch, {'; '.join(uses)}"
    return components, (line,) if captures else ()


def _stretches(window: Window, name: str) -> list[tuple[int, int, int]]:
    """Tokens, begin and end of each capture of a whole model."""
    markers = window.trace.markers
    times = markers[["start_ns", "end_ns"]].to_numpy(np.int64).tolist()
    stretches = []
    for marker, (start, end) in zip(markers["name"].astype(str), times, strict=True):
        match = _NAME.fullmatch(marker)
        if match and match[2] == "FULL":
            stretches.append((int(match[1]), start, end))
    launches = window.trace.launches
    if not stretches and len(launches):
        size = _SIZE.search(name)
        begin, end = int(launches["start_ns"].min()), int(launches["end_ns"].max())
        stretches.append((int(size[1]) if size else 0, begin, end))
    return stretches


def _captured(window: Window, start: int, end: int) -> pd.DataFrame:
    """The launches of a stretch that ran nothing then: a graph took them."""
    launches = window.trace.launches
    chosen = NameColumn(launches["name"]).flags(
        lambda name: any(word in name.lower() for word in _WORK)
    )
    chosen &= launches["start_ns"].between(start, end).to_numpy()
    chosen &= ~launches["correlation"].isin(window.trace.gpu["correlation"]).to_numpy()
    return launches[chosen].sort_values("start_ns", kind="stable")


def _scope_at(calls: pd.DataFrame, times: Int64s) -> Int64s:
    """The scope of the innermost call at each time, -1 for none; one thread captures."""
    calls = calls.sort_values(["start_ns", "end_ns"], ascending=[True, False], kind="stable")
    start, end = (calls[name].to_numpy(np.int64) for name in ("start_ns", "end_ns"))
    call = innermost(start, end, enclosing(start, end), times)
    return np.append(calls["scope"].to_numpy(np.int64), -1)[call]


_MOST_CELLS = 60_000_000
"""Longer pairs of sequences are not aligned: it would take more than a quarter of a gigabyte."""

_MOST_SEQUENCES = 4  # so many different reference steps of a phase are tried

_LEAST_MATCHED = 0.5
"""Where fewer of a step's kernels have a partner, the two runs are not of one model."""


@dataclass(frozen=True)
class _ReferenceStep:
    """Kernels of a reference step in launch order, places as numbers of Reference.places or -1.

    Of steps that launch kernels of the same names, one stands for all.
    """

    names: tuple[str, ...]
    components: tuple[str, ...] = field(compare=False)
    places: Int64s = field(compare=False)


@dataclass(frozen=True)
class ReferenceTrace:
    """A trace whose layers are known."""

    source: str
    places: pd.DataFrame
    sequences: dict[str, list[_ReferenceStep]]

    def place(self, names: tuple[str, ...], phase: str) -> Int64s | None:
        """The place of each kernel of a step, -1 for none; None where no step is like it.

        Args:
            phase: the step's phase; of an unknown one all sequences are tried.
        """
        candidates = self.sequences.get(phase) or [
            s for sequences in self.sequences.values() for s in sequences
        ]
        fitting = [s for s in candidates if len(names) * len(s.names) <= _MOST_CELLS]
        partners = [align(names, sequence.names) for sequence in fitting]
        matched = [int((partner >= 0).sum()) for partner in partners]
        if not matched or max(matched) < _LEAST_MATCHED * len(names):
            return None
        best = matched.index(max(matched))
        return _filled(names, partners[best], fitting[best])


def reference_of(bundle: Bundle, rank: int) -> ReferenceTrace:
    """Reads what one rank of a bundle knows about its kernels' places."""
    rank = rank if rank in bundle.ranks else bundle.ranks[0]
    kernels = place_kernels(bundle, rank, ["module"])
    kernels = kernels[(kernels["kind"] == "kernel") & (kernels["step"] >= 0)]
    modules = bundle.frame("modules", rank).set_index("module")
    module_rows = modules[["path", "type"]].reindex(kernels["module"]).fillna("").astype(str)
    frame = module_rows.reset_index(drop=True).assign(
        layer=kernels["layer"].to_numpy(), component=kernels["component"].astype(str).to_numpy()
    )
    is_placed = kernels["placed"] & (kernels["component"] != "other")
    places, number = distinct(frame, is_placed.to_numpy())
    phases = bundle.frame("steps", rank, ["step", "phase"]).set_index("step")["phase"].astype(str)
    counters: dict[str, Counter[_ReferenceStep]] = {}
    for step, rows in kernels.assign(place=number).groupby("step", sort=True):
        names, components = (tuple(rows[name].astype(str)) for name in ("name", "component"))
        sequence = _ReferenceStep(names, components, rows["place"].to_numpy())
        counters.setdefault(phases.get(step, "unknown"), Counter())[sequence] += 1
    common = {
        phase: [sequence for sequence, _ in counter.most_common(_MOST_SEQUENCES)]
        for phase, counter in counters.items()
    }
    return ReferenceTrace(bundle.path.name, places, common)


def distinct(rows: pd.DataFrame, chosen: Flags) -> tuple[pd.DataFrame, Int64s]:
    """What differs among the chosen rows, and the number of each row among it, -1 for others."""
    number = np.full(len(rows), -1, np.int64)
    mine = rows[chosen]
    number[chosen] = mine.groupby(list(rows.columns), sort=False, dropna=False).ngroup()
    return mine.drop_duplicates().reset_index(drop=True), number


def _filled(names: tuple[str, ...], partner: Int64s, sequence: _ReferenceStep) -> Int64s:
    """The place of each kernel: its partner's, else what the kernels there agree on.

    A kernel without partner, as one that a compiler made of several, stands for those of the
    reference that have none between the same two partners; where there are none, it goes on with
    the product before it, or belongs to one of its neighbours if that works for its component.
    """
    places = np.where(partner >= 0, sequence.places[partner], -1)
    matched = np.flatnonzero(partner >= 0)
    for index in np.flatnonzero(partner < 0).tolist():
        position = int(np.searchsorted(matched, index))
        low = int(partner[matched[position - 1]]) if position else -1
        high = int(partner[matched[position]]) if position < len(matched) else len(sequence.names)
        skipped = list(range(low + 1, high))
        near = skipped or [k for k in (high, low) if 0 <= k < len(sequence.names)]
        component = classify(names[index]).component
        similar = [k for k in near if sequence.components[k] == component]
        if finishes_gemm(names[index]) and low >= 0:
            similar = [low]
        elif component is None:
            similar = near[-1:] if skipped else near[:1]
        if similar:
            places[index] = sequence.places[similar[-1]]
    return places


def align(first: Sequence[str], second: Sequence[str]) -> Int64s:
    """For each kernel of the first sequence its partner in the second, -1 for none.

    It is the longest common subsequence, by dynamic programming. Kernels are alike that are called
    the same but for template arguments and numbers, that work for the same component, or that are
    both products; what a compiler fused is alike to the norm that its name tells.
    """
    partner = np.full(len(first), -1, np.int64)
    if not len(first) or not len(second):
        return partner
    kinds = np.array([_kind(name) for name in (*first, *second)], object)
    numbers = np.unique(kinds, return_inverse=True)[1]
    rows, columns = numbers[: len(first)], numbers[len(first) :]
    best = np.zeros((len(first) + 1, len(second) + 1), np.int32)
    for i, row in enumerate(rows, 1):
        reached = np.maximum(best[i - 1, :-1] + (columns == row), best[i - 1, 1:])
        np.maximum.accumulate(reached, out=best[i, 1:])
    i, j = len(first), len(second)
    while i and j:
        if rows[i - 1] == columns[j - 1] and best[i, j] == best[i - 1, j - 1] + 1:
            partner[i - 1] = j - 1
            i, j = i - 1, j - 1
        elif best[i, j] == best[i - 1, j]:
            i -= 1
        else:
            j -= 1
    return partner


@lru_cache(maxsize=1 << 14)
def _kind(name: str) -> str:
    """A key that kernels for the same purpose have in common."""
    if is_gemm(name):
        component = classify(name).component
        return f"product {component or ''}"
    if finishes_gemm(name):
        return "rest of a product"
    fused = re.search(r"fused\w*?(norm|rsqrt)", name)
    component = "norm" if fused else classify(name).component
    return component or re.sub(r"\d+", "", split_name(name)[0])


_MOSTLY = 0.9
"""Layers are guessed only where ranges place less of the kernel time than the rest of this."""

_ANCHORS = tuple(CODES[name] for name in ("attention", "kv_write", "experts", "ssm"))
_COLUMNS = ["module", "path", "type", "layer", "component"]


@dataclass(frozen=True)
class Placed:
    """Rows of `kernels` with places, of `modules` that these need, and what is lost and why."""

    kernels: pd.DataFrame
    modules: pd.DataFrame = field(default_factory=lambda: pd.DataFrame(columns=_COLUMNS))
    lost: tuple[str, ...] = ()


@dataclass(frozen=True)
class Layers:
    """What tells the layers where no range does."""

    # Traces of the same model whose layers are known, by rank; the entry None serves all ranks.
    references: dict[int | None, ReferenceTrace] = field(default_factory=dict)
    # Captured graphs, by rank; the entry None serves all ranks.
    captures: dict[int | None, list[Capture]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.references or self.captures)

    def place(
        self,
        kernels: pd.DataFrame,
        rank: int,
        steps: ImportedSteps,
        modules: Modules,
        training: bool,
    ) -> Placed:
        """Places the kernels of a whole process that have no layer yet.

        Args:
            kernels: rows of the `kernels` table, `in_graph` beside them.
            training: whether the trace says itself that a model is trained.
        """
        free = FIRST_MODULE + len(modules.frame)
        codes = [CODES.get(str(name), -1) for name in modules.frame["component"]]
        module = kernels["module"].to_numpy(np.int64)
        component = np.array([*codes, -1], np.int64)[
            np.maximum(module, FIRST_MODULE - 1) - FIRST_MODULE
        ]
        # Operators that vLLM hides from its compiler know what they are, but not in which layer.
        no_layer = kernels["layer"].to_numpy() < 0
        phase = (module >= 0) & (module < FIRST_MODULE)
        is_open = ((component < 0) | (np.isin(component, _ANCHORS) & no_layer)) & ~phase
        is_open &= (kernels["step"].to_numpy() >= 0) & (kernels["kind"] == "kernel").to_numpy()
        reference = self.references.get(rank, self.references.get(None))
        if reference is not None and is_open.any():
            return _aligned(kernels, is_open, reference, steps, free)
        is_open &= no_layer
        captured, used = self._captured(kernels, rank, steps)
        length = (kernels["end_ns"] - kernels["start_ns"]).where(kernels["kind"] == "kernel", 0)
        share = float(length[is_open].sum()) / max(int(length.sum()), 1)
        if not steps.has_source or share < _MOSTLY:
            return Placed(kernels, lost=used)
        component = np.where(captured >= 0, captured, np.where(is_open, component, -1))
        placed = _guessed(kernels, is_open, component, captured >= 0, steps, training, free)
        return replace(placed, lost=(*used, *placed.lost))

    def _captured(
        self, kernels: pd.DataFrame, rank: int, steps: ImportedSteps
    ) -> tuple[Int64s, tuple[str, ...]]:
        """The component of each kernel by the capture of its graph, -1 for none; what was used."""
        captures = self.captures.get(rank, self.captures.get(None, []))
        correlation = np.where(kernels["in_graph"], kernels["correlation"], -1).astype(np.int64)
        frame = steps.frame()
        tokens = np.append((frame["prefill_tokens"] + frame["decode_tokens"]).to_numpy(), 0)
        return components_by_capture(
            correlation, tokens[kernels["step"].to_numpy(np.int64)].astype(np.int64), captures
        )


def _aligned(
    kernels: pd.DataFrame,
    is_open: Flags,
    reference: ReferenceTrace,
    steps: ImportedSteps,
    free: int,
) -> Placed:
    """The kernels, the open ones placed as their partners in the reference."""
    phase = steps.frame()["phase"].to_numpy()
    step_kernels = kernels[(kernels["kind"] == "kernel") & (kernels["step"] >= 0)]
    place = pd.Series(-1, kernels.index)
    places_by_key: dict[tuple[str, tuple[str, ...]], Int64s | None] = {}
    unlike = 0
    for _, rows in step_kernels.groupby("step", sort=True):
        key = str(phase[int(rows["step"].iloc[0])]), tuple(rows["name"].astype(str))
        if key not in places_by_key:
            places_by_key[key] = reference.place(key[1], key[0])
        place_of_row = places_by_key[key]
        unlike += place_of_row is None
        place[rows.index] = -1 if place_of_row is None else place_of_row
    line = f"{unlike} steps are not like any step of {reference.source}: not aligned"
    lost = (line,) if unlike else ()
    partners = np.asarray(place)
    return _placed(kernels, is_open, partners, reference.places, "aligned", free, lost)


def _guessed(
    kernels: pd.DataFrame, is_open: Flags, component: Int64s, captured: Flags, steps: ImportedSteps,
    training: bool, free: int,
) -> Placed:  # fmt: skip
    """The kernels, the open ones placed by captures and by what repeats."""
    chosen = (kernels["kind"] == "kernel").to_numpy()
    phase = np.append(steps.frame()["phase"].to_numpy(object), "unknown")
    work = kernels.assign(phase=phase[kernels["step"].to_numpy(np.int64)])[chosen]
    if training:
        nowhere = np.full(len(work), -1, np.int64)
        repeats = Repeats(component[chosen], nowhere, ("no layers: this is training",))
    else:
        in_graph = kernels["in_graph"].to_numpy()[chosen]
        repeats = guess_layers(work, component[chosen], in_graph, steps.generates)
    names = np.array([*COMPONENTS, ""], object)[repeats.component]
    frame = pd.DataFrame({"path": "", "type": "", "layer": repeats.layer, "component": names})
    counted = (repeats.layer >= 0).any()
    sure = (repeats.layer >= 0) | captured[chosen] | ((names == "lm_head") & counted)
    places, number = distinct(frame, sure & (repeats.component >= 0))
    place = np.full(len(kernels), -1, np.int64)
    place[chosen] = number
    note = "no range tells the layers: the n-th attention of a step counts as layer n (a guess)"
    lost = (note, *repeats.notes) if counted else repeats.notes
    marks = np.where(captured, "aligned", "guess")
    return _placed(kernels, is_open, place, places, marks, free, lost)


def _placed(
    kernels: pd.DataFrame, is_open: Flags, place: Int64s, places: pd.DataFrame,
    placed_by: npt.NDArray[np.object_] | str, free: int, lost: tuple[str, ...],
) -> Placed:  # fmt: skip
    """The open rows with their `place`, the number of one of the `places`, -1 for none."""
    mine = is_open & (place >= 0)
    layer = np.append(places["layer"].to_numpy(np.int64), -1)[place]
    rows = kernels.assign(
        module=np.where(mine, place + free, kernels["module"]),
        layer=np.where(mine, layer, kernels["layer"]),
        placed_by=np.where(mine, placed_by, kernels["placed_by"]),
    )
    return Placed(rows, places.assign(module=np.arange(len(places)) + free)[_COLUMNS], lost)
