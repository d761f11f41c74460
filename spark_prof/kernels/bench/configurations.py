"""Which configuration a kernel is timed with: a measured one, its default, or the best of a search.

The search goes from the default to whichever neighbour is fastest, and on from there. A neighbour
differs in one field. Where there is a list of candidates, all of it is timed instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any, TypeVar, cast

from spark_prof.cores import cores
from spark_prof.kernels.bench.race import Call, RaceSetting, race
from spark_prof.kernels.dense import LinearConfig, room_for_rows
from spark_prof.kernels.dispatch import fits
from spark_prof.kernels.moe import MoeConfig
from spark_prof.kernels.operands import stacks_at_a_time, token_tiles
from spark_prof.kernels.pack import STACK
from spark_prof.kernels.tuning import TunedShape, TuningRun, known_runs

_IN_FLIGHT = {
    1: ((1, 0, 24), (1, 1, 24), (2, 0, 16), (2, 1, 12), (3, 0, 12), (2, 2, 16)),
    2: ((1, 0, 16), (1, 1, 16), (2, 0, 12), (2, 1, 12), (3, 0, 8)),
}
"""Depth, x_ahead and warps of a multiprocessor that leave registers for it, by tiles of tokens."""

_MANY_ROWS = 16384
_FEW_ROWS = 1024
_FEW_UNITS = 8
_LAYOUTS = {
    "many": ((4, 1), (8, 1), (4, 4), (8, 8)),
    "some": ((4, 4), (8, 8), (12, 12), (16, 16), (8, 4), (16, 8)),
    "few": ((4, 4), (8, 8), (12, 12), (16, 16), (23, 23), (8, 4)),
    "narrow": ((4, 4), (8, 4), (4, 2), (8, 2), (4, 1)),
}
"""Warps of a block, and those of them that share a stack, by how many rows or columns there are.

23 are the units of 2880 columns.
"""


def bf16_candidates(
    rows: int, columns: int, tokens: int, processors: int
) -> Iterator[LinearConfig]:
    """Configurations for a BF16 weight, none of which the compiler gives local memory."""
    units = -(-columns // 128)
    size = "many" if rows >= _MANY_ROWS else "few" if rows <= _FEW_ROWS else "some"
    for warps, split in _LAYOUTS["narrow" if units <= _FEW_UNITS else size]:
        if split > units:
            continue
        for depth, x_ahead, warps_resident in _IN_FLIGHT[token_tiles(tokens)]:
            if warps > warps_resident or split * (depth - 1) >= units:
                continue
            config = LinearConfig(warps, split, depth, x_ahead, warps_resident // warps)
            if x_ahead == 2 and not room_for_rows(columns, tokens, config):
                continue
            yield config
            work = -(-rows // (STACK * stacks_at_a_time(warps, split)))
            if work > processors * config.min_blocks:
                yield replace(config, blocks=config.min_blocks)


C = TypeVar("C", bound=LinearConfig | MoeConfig)

VALUES: Mapping[str, Sequence[int]] = {
    "warps": (4, 6, 8, 12, 16),
    "split": (1, 2, 4, 6, 8, 12, 16),
    "depth": (1, 2, 3, 4),
    "x_ahead": (0, 1, 2),
    "min_blocks": (1, 2, 3, 4, 5, 6),
    "blocks": (0, 1, 2, 3, 4, 6, 8),
    "down_warps": (4, 8, 12, 16),
    "down_depth": (1, 2, 3, 4),
    "down_min_blocks": (1, 2, 3),
}
"""What is tried of each field of a configuration."""

_WORTH_IT = 0.99
"""A neighbour that takes more of the present time is not told apart from it."""

_MOST_ROUNDS = 6
_REPEATS = 5
_MOST_WARPS = 64  # of a multiprocessor


def known_config(
    default: C,
    work: TunedShape,
    architecture: str,
    gpu: str = "",
    runs: Sequence[TuningRun] | None = None,
) -> C:
    """What was measured to be best for this very work, on a GPU of that name if on any such one.

    Else it is what was on another GPU of the architecture, else the default.
    """
    config = default
    for of_gpu in (False, True):
        for run in known_runs() if runs is None else runs:
            if run.architecture != architecture or (of_gpu and run.machine != gpu):
                continue
            for row in run.rows:
                if row.work != work or set(row.config) != set(asdict(default)):
                    continue
                if fits(row.config, work.columns):
                    config = _with(default, row.config)
    return config


def best(
    start: C,
    work: TunedShape,
    processors: int,
    call_of: Callable[[C], Call],
    setting: RaceSetting,
    stop: Callable[[], bool],  # whether no further round shall begin
    further_starts: Sequence[C] = (),  # such as the best of a like work
) -> C:
    """The fastest configuration that a search finds; of a BF16 matrix all of a list are timed."""

    def time_all(configs: Sequence[C]) -> Sequence[float | None]:
        return _times(configs, call_of, setting)

    listed: Any = ()
    in_list = isinstance(start, LinearConfig) and work.format == "bf16"
    if in_list:
        listed = bf16_candidates(work.rows, work.columns, work.tokens, processors)
    configs: list[C] = list(dict.fromkeys((start, *further_starts, *listed)))
    if len(configs) > 1:
        start = _fastest(configs, time_all(configs))
    return start if in_list else search(start, time_all, stop)


def _times(
    configs: Sequence[C], call_of: Callable[[C], Call], setting: RaceSetting
) -> list[float | None]:
    calls = [call_of(config) for config in configs]
    _compile(calls)
    named = {str(place): call for place, call in enumerate(calls)}
    results = race(named, setting, seconds=0, fewest=_REPEATS)
    return [result.us.median if result.us else None for result in results]


def search(
    start: C,
    time_all: Callable[[Sequence[C]], Sequence[float | None]],
    stop: Callable[[], bool] = lambda: False,
) -> C:
    """The configuration that no neighbour is faster than, or the last of some rounds.

    One that does not run has None for its time.
    """
    best: C = start
    for _ in range(_MOST_ROUNDS):
        if stop():
            break
        candidates: list[C] = [best, *neighbours(best)]
        fastest = _fastest(candidates, time_all(candidates))
        if fastest == best:
            return best
        best = fastest
    return best


def _fastest(configs: Sequence[C], times: Sequence[float | None]) -> C:
    """The fastest configuration; the first one, unless another is clearly faster."""
    timed = [(us, place) for place, us in enumerate(times) if us is not None]
    if not timed:
        return configs[0]
    us, place = min(timed)
    first = times[0]
    return configs[0 if first is not None and us > _WORTH_IT * first else place]


def neighbours(config: C) -> Iterator[C]:
    """Configurations that differ from one in a single field, and that some GPU could run."""
    for name, present in asdict(config).items():
        for value in VALUES.get(name, ()):
            if value != present:
                neighbour = _with(config, {name: value})
                if _possible(asdict(neighbour)):
                    yield neighbour


def _with(config: C, fields: Mapping[str, int]) -> C:
    changed: Any = config
    return cast("C", replace(changed, **fields))


def _possible(fields: Mapping[str, int]) -> bool:
    fits = all(
        fields[f"{part}warps"] * fields[f"{part}min_blocks"] <= _MOST_WARPS
        for part in ("", "down_")
        if f"{part}warps" in fields
    )
    return fits and fields["warps"] % fields["split"] == 0


def _compile(calls: Sequence[Call]) -> None:
    """Runs each once, all together: compiling takes longer than all else."""

    def first(call: Call) -> None:
        # The race says what is wrong with it.
        with suppress(Exception):
            call(0)

    with ThreadPoolExecutor(cores()) as pool:
        list(pool.map(first, calls))
