"""Recordings by hand, whose steps take what is planted and give what is planted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from spark_prof.traces.bundle import Bundle
from tests.support import Piece, Recorded, engine, kernel, kineto, step

US = 1000


@dataclass(frozen=True)
class Planted:
    """One step: how many requests decode, how long it takes in us, and what comes out."""

    decoding: int
    us: int
    tokens: int  # of the requests that decode
    prompts: int = 0  # requests whose prompt it reads to the end
    prompt_tokens: int = 0
    watched: bool = True
    preempted: int = 0
    again: int = 0  # of the prompt's tokens, those computed again

    @property
    def phase(self) -> str:
        """As the recorder names it."""
        if not self.decoding:
            return "prefill"
        return "mixed" if self.prompts else "decode"


def bundle_of(folder: Path, steps: Sequence[Planted], idle: float = 0.1) -> Bundle:
    """A recording with these steps, one right after the other.

    Args:
        idle: share of each step in which nothing runs.
    """
    rows, scheduled, kernels, now = [], [], [], 0
    for number, each in enumerate(steps):
        took = each.us * US
        counts = {
            "decode_requests": each.decoding, "decode_tokens": max(each.decoding, each.tokens),
            "prefill_requests": each.prompts, "prefill_tokens": each.prompt_tokens,
            "watched": int(each.watched), "preempted": each.preempted,
            "recomputed_tokens": each.again,
        }  # fmt: skip
        rows.append(step(number, now, now + took, each.phase, **counts))
        given = {"output_tokens": each.tokens + each.prompts}
        given |= {"output_requests": each.decoding + each.prompts}
        # A step of the scheduler begins with the worker's, and the next one when it is over.
        scheduled.append(engine(number, now, now + took, **given))
        if each.watched:
            end = now + round(took * (1 - idle))
            kernels += kernel("gemm_qkv", now + 1, end, number + 1, now + 1)
        now += took
    pieces = [Piece(rows, [], kineto(*kernels))]
    return Recorded({0: pieces}, {0: scheduled}).assemble(folder / "b")
