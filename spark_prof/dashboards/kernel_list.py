"""Draws what `spark-prof kernels list` lists."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from spark_prof.dashboards.formats import MISSING, clean, count
from spark_prof.dashboards.outline import without_empty_columns
from spark_prof.dashboards.section import Column, Document, Section
from spark_prof.kernels.registry import ReplacementKernel
from spark_prof.kernels.tuning import Run, Work

_LETTERS = (
    "Bytes: M tokens, N rows and K columns of a weight, w bytes a weight with its scales. Of "
    "experts: D of E take part, k a token, H hidden and I intermediate size. Of quantized rows: c "
    "bytes a code and s of scales for each, P: M filled up to a multiple of 128."
)


def render_kernels(
    kernels: Sequence[ReplacementKernel],
    runs: Sequence[Run],
    kind: str,
    width: int = 100,
    color: bool = False,
) -> str:
    """Draws the list of replacement kernels.

    Args:
        kernels: what to list.
        runs: what was measured of them.
        kind: text, md or json.
        width: columns of the text.
        color: whether the text is coloured.
    """
    if kind == "json":
        from spark_prof.dashboards import json_report

        return json_report.write([_record(kernel, runs) for kernel in kernels])
    from spark_prof.dashboards import markdown, text

    sections = (_kernels(kernels, runs), _proofs(kernels))
    document = Document(
        "spark-prof: replacement kernels",
        (("kernels", count(len(kernels))),),
        tuple(without_empty_columns(section) for section in sections if section.rows),
    )
    return markdown.draw(document) if kind == "md" else text.draw(document, width, color)


def _kernels(kernels: Sequence[ReplacementKernel], runs: Sequence[Run]) -> Section:
    columns = (
        Column("Name"),
        Column("Slot"),
        Column("Formats"),
        Column("Tokens"),
        Column("Sizes", "prose"),
        Column("Computes", "prose"),
        Column("Tuned on", "prose"),
    )
    rows = tuple(
        (
            kernel.name,
            kernel.slot,
            " ".join(kernel.formats),
            " to ".join(map(count, kernel.tokens)),
            kernel.shapes,
            kernel.does,
            ", ".join(dict.fromkeys(clean(r.machine) for r in _measured(kernel, runs))) or MISSING,
        )
        for kernel in kernels
    )
    everywhere = ", ".join(dict.fromkeys(a for kernel in kernels for a in kernel.architectures))
    intro = (
        f"The tests compile them for {everywhere} and look at the machine code. Tuned on: whose "
        "measurements the dispatcher goes by; passes that quantize activations have no choices."
    )
    return Section("kernels", "Kernels", columns, rows, (intro,))


def _proofs(kernels: Iterable[ReplacementKernel]) -> Section:
    columns = (
        Column("Name", "prose"),
        Column("A result may be off by", "prose"),
        Column("Bytes of a call", "prose"),
    )
    alike: dict[tuple[str, str], list[str]] = {}
    for kernel in kernels:
        alike.setdefault((kernel.tolerance, kernel.bytes.formula), []).append(kernel.name)
    rows = tuple((", ".join(names), *proof) for proof, names in alike.items())
    return Section("proofs", "What each is held against", columns, rows, (_LETTERS,))


def _measured(kernel: ReplacementKernel, runs: Iterable[Run]) -> list[Run]:
    """Where any of its formats was; another kernel's row of the same code says nothing of it."""

    def is_its(work: Work) -> bool:
        return work.kernel == kernel.tuned_as and work.format in kernel.formats

    return [run for run in runs if any(is_its(row.work) for row in run.rows)]


def _record(kernel: ReplacementKernel, runs: Iterable[Run]) -> dict[str, Any]:
    """The keys of the contract, then what else is known."""
    fewest, most = kernel.tokens
    return {
        "name": kernel.name,
        "slot": kernel.slot,
        "formats": list(kernel.formats),
        "shapes": {"fewest_tokens": fewest, "most_tokens": most, "sizes": kernel.shapes},
        "architectures": list(kernel.architectures),
        "computes": kernel.does,
        "operation": kernel.operation.path,
        "reference": kernel.reference.path,
        "bytes": kernel.bytes.formula,
        "tolerance": kernel.tolerance,
        "check": kernel.check,
        "measured": [
            {"architecture": run.architecture, "machine": run.machine, "date": run.date}
            for run in _measured(kernel, runs)
        ],
    }
