"""A model of how long the package's kernels take, and its fit to measured times.

A kernel streams weights: stacks of 16 rows, cut into units of 128 columns. What takes longest
counts most, of three things: the memory's (bytes at its bandwidth), the multiprocessors' (their
units, one after the other) and the warps' (units of one warp, whose next load waits for a latency
once its ring is used up; Little's law). What a call takes at least is added.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from spark_prof.analyzers.shapes.shape_summary import occupancy_of
from spark_prof.kernels.dispatch import UNIT_COLUMNS
from spark_prof.kernels.operands import token_tiles
from spark_prof.kernels.tuning import TunedShape
from spark_prof.rules.gpus import SM_LIMITS, SmLimits

_PACKED = {"nvfp4": 9 / 16, "mxfp4": 17 / 32, "fp8": 1.0, "bf16": 2.0}
"""Bytes of a weight with its scales."""

_GATED = 3  # matrices of an expert: gate, up and down
_PLAN_BYTES = 4 * 1024
_MOST_REGISTERS = 255


@dataclass(frozen=True)
class GpuFacts:
    """What the model knows of a GPU."""

    name: str
    multiprocessors: int
    read: float  # bytes a second that a kernel which only reads reached
    compute_capability: str

    @property
    def limits(self) -> SmLimits:
        """What a multiprocessor has."""
        return SM_LIMITS[self.compute_capability]


@dataclass(frozen=True)
class MeasuredCall:
    """A kernel's call that was timed."""

    work: TunedShape
    config: Mapping[str, int]
    bytes: float  # of weights and activations
    weight_bytes: float
    us: float


@dataclass(frozen=True)
class WeightStream:
    """One kernel of a call."""

    bytes: float
    blocks: float  # as many as there is work for
    most_blocks: int  # of a multiprocessor, 0 for as many as there is work for
    units: float  # of one block's stacks
    units_of_warp: float  # of them that one warp has
    warps: int
    depth: int
    min_blocks: int
    shared_bytes: int
    waits_for_x: bool  # whether activations are asked for only when they are needed

    def resident(self, limits: SmLimits) -> int:
        """Blocks of a multiprocessor at a time: the compiler leaves registers for `min_blocks`."""
        threads = 32 * self.warps
        registers = min(limits.registers // (threads * self.min_blocks) // 8 * 8, _MOST_REGISTERS)
        occupancy = occupancy_of(limits, threads, registers, self.shared_bytes)
        return occupancy.blocks if occupancy else 1

    def in_flight(self, gpu: GpuFacts) -> float:
        """Bytes that a multiprocessor has asked for at a time."""
        blocks = min(self.resident(gpu.limits), self.grid(gpu) / gpu.multiprocessors)
        depth = min(self.depth, self.units_of_warp)
        total = self.blocks * self.units
        return blocks * self.warps * depth * self.bytes / max(total, 1)

    def grid(self, gpu: GpuFacts) -> float:
        """Blocks that are launched."""
        most = self.most_blocks * gpu.multiprocessors
        return min(self.blocks, most) if most else self.blocks


@dataclass(frozen=True)
class TimeConstants:
    """What is fitted: microseconds, but for the last two."""

    call: float = 2.0  # a dense layer's beside its stream
    experts: float = 6.0  # the same of a call with routing and two streams
    unit: float = 0.025  # of a multiprocessor for a unit in FP4, up to 8 tokens
    wide_unit: float = 0.04  # the same from 9 tokens on
    bf16_unit: float = 0.02
    latency: float = 0.7  # of a load while the memory is busy
    warp_unit: float = 0.15  # of a warp alone for a unit
    x: float = 0.2  # what it waits for activations that it did not ask for ahead
    wave: float = 0.1  # of blocks that begin where others have ended
    wide: float = 0.4  # of a stream for more than 8 tokens
    turn: float = 0.2  # of a block for its sums
    efficiency: float = 1.0  # of the read bandwidth
    sharpness: float = 3.0  # how much the longest of the three hides the others

    def us(self, work: TunedShape, streams: Sequence[WeightStream], gpu: GpuFacts) -> float:
        """The time of a call."""
        wide = token_tiles(work.tokens) > 1
        unit = self.bf16_unit if work.format == "bf16" else self.wide_unit if wide else self.unit
        total = self.call if work.kernel == "dense" else self.experts
        for stream in streams:
            grid, slots = stream.grid(gpu), stream.resident(gpu.limits) * gpu.multiprocessors
            turns = math.ceil(stream.blocks / grid)
            waves = max(1.0, grid / slots)
            share = grid / gpu.multiprocessors
            uneven = math.ceil(share) / share if grid <= slots else 1.0
            units = stream.units_of_warp * turns
            unit_us = self.warp_unit * unit / self.unit + self.x * stream.waits_for_x
            memory = stream.bytes / (self.efficiency * gpu.read) * 1e6
            issue = stream.blocks * stream.units / gpu.multiprocessors * uneven * unit
            chain = max(units / stream.depth - 1, 0) * self.latency + units * unit_us
            chain = (chain + turns * self.turn) * waves
            parts = (part**self.sharpness for part in (memory, issue, chain))
            total += sum(parts) ** (1 / self.sharpness) + self.wave * (waves - 1)
            total += self.wide * wide
        return total


def streams_of(call: MeasuredCall) -> tuple[WeightStream, ...]:
    """The kernels of a call that read weights."""
    work = call.work
    return (_dense(call),) if work.kernel == "dense" else tuple(_experts(call))


def _dense(call: MeasuredCall) -> WeightStream:
    work, config = call.work, call.config
    shared = _sums(config["warps"], work.tokens, 2) if config["split"] > 1 else 0
    if config["x_ahead"] == 2:
        rows = 1 << (work.tokens - 1).bit_length()
        shared = shared // 2 + 2 * rows * (work.columns + (96 - work.columns % 64) % 64)
    return _split_stream(
        call, work.rows,
        bytes=call.bytes,
        most_blocks=config["blocks"],
        shared_bytes=shared,
        waits_for_x=config["x_ahead"] == 0,
    )  # fmt: skip


def _split_stream(
    call: MeasuredCall, rows: int, matrices: float = 1, **stream_fields: Any
) -> WeightStream:
    """That of matrices whose stacks of 16 rows several warps of a block share, as `SPLIT` says."""
    config, units = call.config, -(-call.work.columns // UNIT_COLUMNS)
    at_once = config["warps"] // config["split"]
    return WeightStream(
        blocks=matrices * -(-rows // (16 * at_once)),
        units=at_once * units,
        units_of_warp=-(-units // config["split"]),
        warps=config["warps"],
        depth=config["depth"],
        min_blocks=config["min_blocks"],
        **stream_fields,
    )


def _experts(call: MeasuredCall) -> Iterator[WeightStream]:
    work, config = call.work, call.config
    hidden, inner = work.columns, work.rows // 2
    active = call.weight_bytes / (_GATED * hidden * inner * _PACKED[work.format])
    yield _split_stream(
        call, 2 * inner, active,
        bytes=call.bytes * 2 / _GATED,
        most_blocks=config["min_blocks"],
        shared_bytes=_PLAN_BYTES + _sums(config["warps"], work.tokens, 2) * (config["split"] > 1),
        waits_for_x=False,
    )  # fmt: skip
    units_of_block = active * -(-inner // UNIT_COLUMNS)
    yield WeightStream(
        bytes=call.bytes / _GATED,
        blocks=hidden // 16,
        most_blocks=0,
        units=units_of_block,
        units_of_warp=units_of_block / config["down_warps"],
        warps=config["down_warps"],
        depth=config["down_depth"],
        min_blocks=config["down_min_blocks"],
        shared_bytes=_PLAN_BYTES + 1024 + _sums(config["down_warps"], work.tokens, 1),
        waits_for_x=False,
    )


def _sums(warps: int, tokens: int, copies: int) -> int:
    return copies * warps * 8 * token_tiles(tokens) * 16 * 4


_LOOSE = 0.005  # how strongly constants are held to where they begin
_OUTLIER = 0.1  # from this relative error on a call counts by its size, not by its square
_STEPS = 60


def fit(calls: Sequence[tuple[MeasuredCall, GpuFacts]]) -> TimeConstants:
    """The constants whose times are nearest to the measured ones, in their logarithms.

    Levenberg and Marquardt's method on the logarithms of the constants.
    """
    shapes = [(call.work, streams_of(call), gpu) for call, gpu in calls]
    measured: npt.NDArray[np.float64] = np.log([call.us for call, _ in calls])
    start = np.log(astuple(TimeConstants()))

    def errors(logs: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        constants = TimeConstants(*np.exp(logs))
        times = np.log([constants.us(*shape) for shape in shapes])
        off: npt.NDArray[np.float64] = times - measured
        return off

    def cost(error: npt.NDArray[np.float64], logs: npt.NDArray[np.float64]) -> float:
        size = np.abs(error)
        bent = np.where(size < _OUTLIER, size**2 / 2, _OUTLIER * (size - _OUTLIER / 2))
        return float(bent.sum() + _LOOSE * ((logs - start) ** 2).sum())

    logs, damping = start, 1e-2
    error = errors(logs)
    for _ in range(_STEPS):
        slopes = np.stack([(errors(logs + row) - error) / 1e-4 for row in 1e-4 * np.eye(len(logs))])
        weighted = slopes * np.minimum(1, _OUTLIER / np.maximum(np.abs(error), 1e-9))
        normal = weighted @ slopes.T + 2 * _LOOSE * np.eye(len(logs))
        gradient = weighted @ error + 2 * _LOOSE * (logs - start)
        before = cost(error, logs)
        while damping < 1e8:
            damped = normal + damping * np.diag(np.diag(normal))
            ahead = logs - np.clip(np.linalg.solve(damped, gradient), -0.5, 0.5)
            tried = errors(ahead)
            if cost(tried, ahead) < before:
                break
            damping *= 4
        else:
            break
        logs, error, damping = ahead, tried, max(damping / 3, 1e-6)
        if before - cost(error, logs) < 1e-7 * before:
            break
    return TimeConstants(*map(float, np.exp(logs)))


def scaled(constants: TimeConstants, factors: Mapping[str, float]) -> TimeConstants:
    """The constants, some of them multiplied."""
    names = {field.name for field in fields(constants)}
    assert factors.keys() <= names
    return replace(constants, **{n: getattr(constants, n) * by for n, by in factors.items()})
