"""Says of each kernel of a source where it runs, in which precision, and how that is known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import pandas as pd

from spark_prof.analyzers.classify.classifier import find_rule
from spark_prof.analyzers.classify.code_rows import CodeRow, Conflict, code_rows
from spark_prof.analyzers.classify.evidence import KernelEvidence, evidence_of
from spark_prof.traces.bundle import Bundle
from spark_prof.traces.demangle import demangled
from spark_prof.vocabulary import COPIES


@dataclass(frozen=True)
class Classified:
    """One kernel, in the words of spark_prof.vocabulary; None where nothing tells."""

    name: str  # as the source has it, of machine code demangled
    component: str | None  # as far as the name alone tells; a report knows it from the layer
    engine: str
    precision: str | None
    evidence: str  # of the engine: counter, sass, name or unknown
    conversion: str | None
    weights: str | None
    fused_conversion: str | None  # the format change that it does beside its other work
    load_time: bool  # whether it runs when weights are loaded, not for each token
    # Architecture of the PTX that the driver would compile, where there is no machine code.
    compiled_from: str | None = None
    code: CodeRow | None = None  # its machine code
    conflict: Conflict | None = None  # where its name contradicts better evidence
    us: float | None = None  # of all its calls on all ranks; None where nothing was timed


def list_names(names: Iterable[str]) -> tuple[Classified, ...]:
    """What the names alone tell."""
    nothing = KernelEvidence()
    return tuple(_classified(name, nothing) for name in names)


def list_bundle(bundle: Bundle) -> tuple[tuple[Classified, ...], tuple[str, ...]]:
    """All kernels of a bundle by name, the longest first, and what of its code is unreadable."""
    by_name: dict[str, Classified] = {}
    lost: dict[str, None] = {}
    us: Counter[str] = Counter()
    for rank in bundle.ranks:
        evidence = evidence_of(bundle, rank)
        lost |= dict.fromkeys(evidence.lost)
        kernels = bundle.frame("kernels", rank, ["name", "kind", "start_ns", "end_ns"])
        launches = kernels[~kernels["kind"].isin(COPIES)]
        times = (launches["end_ns"] - launches["start_ns"]).groupby(
            launches["name"].astype(str)
        ).sum() / 1e3
        us.update({str(name): float(duration_us) for name, duration_us in times.items()})
        for name in map(str, times.index):
            if name not in by_name or by_name[name].evidence != "counter":
                by_name[name] = _classified(name, evidence)
    timed = any(us.values())
    ordered = sorted(by_name, key=lambda name: (-us[name], name))
    rows = (replace(by_name[name], us=us[name] if timed else None) for name in ordered)
    return tuple(rows), tuple(lost)


def list_code(
    functions: pd.DataFrame, compiled_by_driver: Mapping[str, str]
) -> tuple[Classified, ...]:
    """Every function of machine code, each for itself."""
    # Functions of one name may differ: each has only its own code as evidence.
    rows = [_classified(row.name, KernelEvidence(codes=[row])) for row in code_rows(functions)]
    names = demangled(compiled_by_driver)
    rows += [
        _classified(name, KernelEvidence(), compiled_from=architecture)
        for name, architecture in zip(names, compiled_by_driver.values(), strict=True)
    ]
    return tuple(sorted(rows, key=lambda row: row.name))


def _classified(
    name: str, evidence: KernelEvidence, compiled_from: str | None = None
) -> Classified:
    label, rule = evidence.label(name), find_rule(name)
    return Classified(
        name=name,
        **vars(label),
        fused_conversion=rule.fused_conversion if rule else None,
        load_time=rule.load_time if rule else False,
        compiled_from=compiled_from,
        code=evidence.code(name),
        conflict=next(iter(evidence.conflicts([name])), None),
    )
