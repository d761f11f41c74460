"""The steps of a recording as plain columns: when each ran, how long, and on what it worked."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from spark_prof.vocabulary import PHASES

_SLOW = 1.5
"""Times the median of its like from which on a step is slow."""
_FEWEST = 8
"""Steps of a kind below which none of them is called slow."""


@dataclass(frozen=True)
class Steps:
    """One entry a step, in order of begin; the arrays have one length.

    Attributes:
        step: its number.
        phase: place in vocabulary.PHASES.
        begin_s: seconds since the first step began.
        us: its length.
        requests: that decode in it.
        prompt_tokens: that it reads.
        context: tokens in the KV cache before it, of a mean request; -1 where unknown.
        slow: whether it took 1.5 times the median of steps of its phase and size.
    """

    step: npt.NDArray[np.int64]
    phase: npt.NDArray[np.int8]
    begin_s: npt.NDArray[np.float64]
    us: npt.NDArray[np.float64]
    requests: npt.NDArray[np.int64]
    prompt_tokens: npt.NDArray[np.int64]
    context: npt.NDArray[np.float64]
    slow: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.step)

    def of(self, phase: str) -> npt.NDArray[np.int64]:
        """Places of the steps of that phase."""
        return np.flatnonzero(self.phase == PHASES.index(phase))


@dataclass(frozen=True)
class BatchTimes:
    """How long decode steps of one size took.

    Attributes:
        requests: that decode in each.
        steps: how many there are.
        median_us: of their length.
        p10_us: tenth percentile.
        p90_us: ninetieth.
    """

    requests: int
    steps: int
    median_us: float
    p10_us: float
    p90_us: float

    @property
    def tokens_per_s(self) -> float:
        """What all requests of a median step get, where each gets one token of it."""
        return 1e6 * self.requests / self.median_us if self.median_us else 0.0


def steps_of(table: pd.DataFrame) -> Steps:
    """The steps of that table.

    Args:
        table: step, phase, begin_ns, step_us and the counts of requests and tokens, as
            analyzers.step_accounting.step_books returns them.
    """
    begin = table["begin_ns"].to_numpy(np.int64)
    names = table["phase"].astype(str).to_numpy()
    requests = table["decode_requests"].to_numpy(np.int64)
    prompt = table["prefill_tokens"].to_numpy(np.int64)
    phase = np.select(
        [names == name for name in PHASES], range(len(PHASES)), PHASES.index("unknown")
    )
    us = table["step_us"].to_numpy(np.float64)
    all_requests = requests + table["prefill_requests"].to_numpy(np.int64)
    context = table["context_tokens"].to_numpy(np.float64)
    known = (context >= 0) & (all_requests > 0)
    return Steps(
        step=table["step"].to_numpy(np.int64),
        phase=phase.astype(np.int8),
        begin_s=(begin - begin.min(initial=np.iinfo(np.int64).max)) / 1e9 if len(begin) else us,
        us=us,
        requests=requests,
        prompt_tokens=prompt,
        context=np.where(known, context / np.maximum(all_requests, 1), -1.0),
        slow=_slow(phase, requests, prompt, us),
    )


def batch_times(steps: Steps) -> tuple[BatchTimes, ...]:
    """Decode steps by how many requests decode in them, the smallest size first."""
    own = steps.of("decode")
    own = own[steps.requests[own] > 0]
    sizes, place = np.unique(steps.requests[own], return_inverse=True)
    us = steps.us[own]
    order = np.argsort(place, kind="stable")
    groups = np.split(us[order], np.flatnonzero(np.diff(place[order])) + 1) if len(own) else []
    found = []
    for size, group in zip(sizes.tolist(), groups, strict=True):
        p10, median, p90 = np.quantile(group, [0.1, 0.5, 0.9]).tolist()
        found.append(BatchTimes(int(size), len(group), median, p10, p90))
    return tuple(found)


def _slow(
    phase: npt.NDArray[np.int64],
    requests: npt.NDArray[np.int64],
    prompt: npt.NDArray[np.int64],
    us: npt.NDArray[np.float64],
) -> npt.NDArray[np.bool_]:
    """Prompts of other lengths are not alike: only steps without any, or of the same."""
    kinds = pd.DataFrame({"phase": phase, "requests": requests, "prompt": prompt, "us": us})
    groups = kinds.groupby(["phase", "requests", "prompt"])["us"]
    median = groups.transform("median").to_numpy(np.float64)
    many = groups.transform("size").to_numpy() >= _FEWEST
    slow: npt.NDArray[np.bool_] = many & (us > _SLOW * median)
    return slow
