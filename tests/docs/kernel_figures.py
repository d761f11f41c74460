"""The measured figures of docs/kernels.md and README.md, from what benchmarks/kernels.py wrote.

The pages choose the bars and layers; `python -m tests.docs.pages` writes the other cells of their
rows.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from benchmarks.kernel_targets import Reached, judge_bars, read_report
from spark_prof.kernels.bench.results import BenchCell, MachineCeilings, work_text

ROOT = Path(__file__).parents[2]
_RESULTS = ROOT / "benchmarks" / "results"
REPORT = read_report(_RESULTS / "kernels-vllm033-h200.json")
BARS = {found.bar.claim: found for found in judge_bars(REPORT.cells, REPORT.ceilings)}


class _Measured(NamedTuple):
    """A piece of work, and what its run's machine reaches."""

    cell: BenchCell
    ceilings: MachineCeilings


_LAYERS = {
    (layer, work_text(cell).partition(" ")[2]): _Measured(cell, REPORT.ceilings)
    for cell in REPORT.cells
    for layer in cell.label.split(", ")
}
"""By whose layer it is and words such as `mxfp4 5120 x 2880, M 1`."""
_SHOWN = (1, 8, 16)


def with_figures(page: str, layer: Callable[[str, str], list[str]]) -> str:
    """The page with the figures of today in every row that names a bar, or a layer and its weight.

    Args:
        page: its text.
        layer: what follows behind a layer and its weight.
    """
    return "".join(_row(line, layer) for line in page.splitlines(keepends=True))


def for_the_page(layer: str, weight: str) -> list[str]:
    """Megabytes of one token's weights; for 1, 8 and 16 tokens time, floor, share and gain."""
    shown = [_LAYERS[layer, f"{weight}, M {tokens}"] for tokens in _SHOWN]
    return [f"{shown[0].cell.weight_bytes / 1e6:.1f}", *map(_beside_the_floor, shown)]


def for_the_readme(layer: str, weight: str) -> list[str]:
    """For one token: time, that of the fastest of vLLM's, the gain, the share of read bandwidth."""
    found = _LAYERS[layer, f"{weight}, M 1"]
    cell = found.cell
    return [f"{_ours(cell):.1f} us", f"{peer(cell)[1]:.1f} us", _gain(cell), _share(found)]


def peer(cell: BenchCell) -> tuple[str, float]:
    """The fastest of vLLM's kernels and its time; in BF16 vLLM takes cuBLAS."""
    found = cell.best_peer("cuBLAS" if cell.work.format == "bf16" else "vLLM")
    assert found is not None
    return found


def _row(line: str, layer: Callable[[str, str], list[str]]) -> str:
    cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
    if cells[0] in BARS:
        cells[1:] = _bar(BARS[cells[0]])
    elif len(cells) > 1 and (cells[0], f"{cells[1]}, M 1") in _LAYERS:
        cells[2:] = layer(*cells[:2])
    else:
        return line
    return f"| {' | '.join(cells)} |\n"


def _bar(found: Reached) -> list[str]:
    assert found.value is not None
    value, worst = found.cells[0]
    measured = f"{found.value:.2f}" + ("" if found.passed else ", **missed**")
    return [measured, str(len(found.cells)), f"{value:.2f}: {work_text(worst)}"]


def _beside_the_floor(found: _Measured) -> str:
    floor = found.ceilings.floor_us(found.cell)
    return f"{_ours(found.cell):.1f} ({floor:.1f}), {_share(found)}, {_gain(found.cell)}"


def _share(found: _Measured) -> str:
    return f"{100 * found.ceilings.share(found.cell, _ours(found.cell)):.0f} %"


def _gain(cell: BenchCell) -> str:
    return f"{peer(cell)[1] / _ours(cell):.2f} x"


def _ours(cell: BenchCell) -> float:
    assert cell.ours is not None
    return cell.ours
