"""Rules about how kernels of decode steps are cut into blocks and tiles."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from spark_prof.analyzers.classify.classifier import is_gemm, short_name
from spark_prof.analyzers.finding import NamedKernel
from spark_prof.analyzers.findings.rule import (
    FindingRule,
    Observation,
    decode_steps_us,
    is_at_least,
    ms_per_token,
)
from spark_prof.analyzers.model import Report
from spark_prof.analyzers.roofline.roofline_rows import RooflineRow
from spark_prof.analyzers.roofline.rows import together
from spark_prof.analyzers.shapes.shape_rows import ShapeRow
from spark_prof.analyzers.swapped_run import runs_already
from spark_prof.rules import thresholds
from spark_prof.rules.gpus import find_gpu
from spark_prof.rules.number_formats import BITS

_MUCH = thresholds.STAKE_SHARE.value
_LEAST_US = thresholds.PRODUCT_TIME.value
_IDLE = thresholds.IDLE_BLOCKS.value
_HOLLOW_TAIL = thresholds.TAIL_PLACES.value
_MUCH_WASTE = thresholds.EMPTY_ROWS.value
_NEAR_THE_RIDGE = thresholds.RIDGE_SHARE.value
_SLOW_READER = thresholds.SLOW_READ.value
_FEW_WARPS = thresholds.FEW_WARPS.value
_DEEP_PIPELINE = thresholds.DEEP_PIPELINE.value
_NAMED = 3


_Stake = tuple[float, ShapeRow]  # what could be won in a shape over all decode steps at most, in us


def _products(report: Report) -> Iterator[ShapeRow]:
    """Shapes that stream weights or the KV cache, and last long enough to be more than a start."""
    for row in report.shapes.rows if report.shapes else ():
        if row.us_per_call >= _LEAST_US and (is_gemm(row.name) or row.component == "attention"):
            yield row


def _floors(report: Report) -> dict[tuple[str, str], RooflineRow]:
    """What the roofline says of decode steps, by kernel and component; empty without one."""
    rows = together(report.decode_roofline.rows) if report.decode_roofline else {}
    return {key: row for key, row in rows.items() if row.floor_us is not None and row.us > 0}


def _shapes(
    name: str,
    looks_for: str,
    stake: Callable[[Report, ShapeRow, RooflineRow | None], float | None],
    text: str,
    describe: str,
    fix: str,
    evidence: str,
) -> FindingRule[Report]:
    """A rule about launch shapes, where they are more of a decode step than too little to speak of.

    Args:
        stake: which share of a shape's time could be won at most; None of what it is not about.
        text: what is found; {shapes} stands for those with the most at stake.
        describe: the figures of each of them.
        fix: {kernel} stands for how to get another kernel for them.
    """

    def look(report: Report) -> Iterator[Observation]:
        floors = _floors(report)
        stakes = [
            (row.us * share, row)
            for row in _products(report)
            if (share := stake(report, row, floors.get((row.name, row.component)))) is not None
        ]
        us, whole = sum(us for us, _ in stakes), decode_steps_us(report)
        won = ms_per_token(report, us)
        if report.shapes is not None and won is not None and whole and us >= _MUCH * whole:
            words = {
                "shapes": _named(stakes, describe),
                "multiprocessors": report.shapes.multiprocessors,
            }
            options = _options(report, stakes)
            advice = fix.format(kernel=_other_kernel(options))
            components = tuple(dict.fromkeys(row.component for _, row in stakes))
            kernels = tuple(NamedKernel(r.name, r.component) for _, r in _most(stakes)[:_NAMED])
            yield Observation(
                won, text.format(**words), advice, (evidence,), components=components,
                tries=tuple(options), kernels=kernels,
            )  # fmt: skip

    return FindingRule(name, looks_for, look, "kernels")


def _named(stakes: Sequence[_Stake], describe: str) -> str:
    """The shapes with the most at stake, each with the figures that `describe` formats."""
    ordered = _most(stakes)
    texts = [
        f"{short_name(row.name)} ({row.component}): {describe.format(row=row)}"
        for _, row in ordered[:_NAMED]
    ]
    rest = len(ordered) - len(texts)
    return "; ".join(texts) + (f"; and {rest} more" if rest else "")


def _most(stakes: Sequence[_Stake]) -> list[_Stake]:
    return sorted(stakes, key=lambda stake: -stake[0])


def _options(report: Report, stakes: Sequence[_Stake]) -> dict[str, str]:
    """The options that choose their kernels, each with what it is for."""
    components = {
        row.component
        for _, row in stakes
        if not runs_already(report.run.swaps, row.component)  # no option chooses its kernel
    }
    # vLLM 0.24 has both options; where the version is not known they are not promised.
    if not is_at_least(report, 0, 24):
        return {}
    rest = components - {"experts", "attention"}
    return {
        **({"--moe-backend": "the experts"} if "experts" in components else {}),
        **({"--attention-backend": "attention"} if "attention" in components else {}),
        **({"--linear-backend": "quantized linear layers"} if rest else {}),
    }


def _other_kernel(options: Mapping[str, str]) -> str:
    """The options that choose another kernel for these layers, in words."""
    texts = [f"{option} for {layers}" for option, layers in options.items()]
    return f"another {', '.join(texts)}" if texts else "another backend"


def _idle(row: ShapeRow, floor: RooflineRow | None) -> float:
    """The share of the GPU that idles, and no more than the time is above its lower bound."""
    idle = 1 - (1.0 if row.busy is None else row.busy)
    return min(idle, _above(floor)) if floor else idle


def _above(floor: RooflineRow) -> float:
    return max(0.0, 1 - (floor.floor_us or 0.0) / floor.us)


def _few_blocks(report: Report, row: ShapeRow, floor: RooflineRow | None) -> float | None:
    count = report.shapes.multiprocessors if report.shapes else None
    few = row.blocks < (count or 0) and (row.busy or 1.0) < 1 - _IDLE
    return _idle(row, floor) if few else None


_SMALL_GRIDS = _shapes(
    "grid-smaller-than-gpu",
    "matrix products and attention over 5 us with fewer blocks than multiprocessors, 2 % of a "
    "decode step at stake",
    _few_blocks,
    "Kernels have fewer blocks than the GPU's {multiprocessors} multiprocessors: {shapes}.",
    "{row.blocks}",
    "A kernel with narrower tiles or a split inner dimension has more blocks: try {kernel}. "
    "Products that share an input can be one (q, k and v; gate and up).",
    "The time of these kernels by the share of the multiprocessors without a block, and no "
    "more than it is above their lower bound where that is known: an upper bound.",
)


def _hollow_tail(_: Report, row: ShapeRow, floor: RooflineRow | None) -> float | None:
    hollow = (row.waves or 0.0) > 1 and (row.busy or 1.0) < _HOLLOW_TAIL
    return _idle(row, floor) if hollow else None


_TAIL_WAVES = _shapes(
    "tail-wave",
    "the same kernels in more than one wave that fills less than 80 % of its places, 2 % at stake",
    _hollow_tail,
    "The last wave of blocks leaves much of the GPU idle: {shapes}.",
    "{row.blocks} blocks in {row.waves:.2f} waves",
    "Other tiles, so that the blocks fill whole waves, or a persistent kernel: try {kernel}.",
    "The time of these kernels by the places that the last wave leaves empty, if all blocks "
    "take equally long, and no more than it is above their lower bound where that is known: an "
    "upper bound.",
)


def _empty_rows(report: Report, row: ShapeRow, _: RooflineRow | None) -> float | None:
    waste = row.tile_waste or 0.0
    ratio = _arithmetic_over_memory(report, row) if waste >= _MUCH_WASTE else 0.0
    return waste * min(ratio, 1.0) if ratio >= _NEAR_THE_RIDGE else None


_TILE_WASTE = _shapes(
    "tile-waste",
    "tiles half empty whose arithmetic takes half as long as their memory traffic, 2 % at stake",
    _empty_rows,
    "Tiles are mostly empty and still cost arithmetic: {shapes}.",
    "{row.rows_used:.3g} of {row.tile.token_rows} rows hold a token",
    "A kernel with fewer rows a tile, or with its operands swapped: try {kernel}. Larger "
    "batches fill the rows without more time.",
    "The empty rows' share of the time, where the arithmetic of a whole tile takes at least "
    "half as long as reading its weights does, by the GPU's data sheet.",
)


def _few_warps(_: Report, row: ShapeRow, floor: RooflineRow | None) -> float | None:
    slow = floor and floor.limiter == "memory" and (floor.of_reached or 1.0) < _SLOW_READER
    occupancy, full = row.occupancy, row.busy is not None and row.busy >= 1 - _IDLE
    if not floor or not slow or not full or occupancy is None or occupancy.share > _FEW_WARPS:
        return None
    return _above(floor) if occupancy.blocks * row.shared_bytes < _DEEP_PIPELINE else None


_LOW_OCCUPANCY = _shapes(
    "low-occupancy",
    "memory-bound products at under half of the bandwidth with at most 25 % of the warps and "
    "little fetched ahead, 2 % at stake",
    _few_warps,
    "Kernels that wait for memory have too few warps in flight to hide it: {shapes}.",
    "{row.occupancy.warps} warps at a time, limited by {row.occupancy.limiters[0]}",
    "A kernel that needs fewer registers or threads a block, or that fetches ahead into shared "
    "memory: try {kernel}.",
    "They read at less than half of what this GPU's memory delivers; the time above "
    "their lower bound is what more warps could save at most.",
)


def _arithmetic_over_memory(report: Report, row: ShapeRow) -> float:
    """How long the tile's arithmetic takes over how long reading its weights does; 0 if unknown."""
    gpu = find_gpu(report.gpu.name, report.gpu.compute_capability)
    kernel = next((k for k in report.kernels if k.name == row.name), None)
    if gpu is None or kernel is None or row.tile is None or row.tile.token_rows is None:
        return 0.0
    bits = BITS.get(kernel.weights or kernel.precision or "")
    peak = gpu.peaks.get(kernel.precision or "")
    if not bits or not peak:
        return 0.0
    return 2 * row.tile.token_rows / (bits / 8) * gpu.bandwidth.value / peak.value
