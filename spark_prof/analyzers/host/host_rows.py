"""What a report says of the host's code. Times are microseconds, shares are fractions of 1."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class HostStage:
    """The samples of one stage of a step."""

    stage: str  # of `rules.host_stages.STAGES`
    samples: int  # in gaps of the GPU
    share: float  # of the samples in gaps
    low: float  # ends of the 95 % interval of that share
    high: float
    step_us: float  # of the gaps of a mean step
    everywhere: float  # share of the samples of all recorded time


@dataclass(frozen=True)
class HostFunction:
    """A function that was on the stack while the GPU waited."""

    function: str
    file: str  # from its package on
    stage: str
    innermost: int  # samples in gaps in which it called no Python
    samples: int  # in gaps, in which it was on the stack at all
    share: float  # of the samples in gaps, of `samples`
    low: float  # ends of the 95 % interval of that share
    high: float
    step_us: float  # of the gaps of a mean step, of `samples`


@dataclass(frozen=True)
class FlameFrame:
    """A function in the place where it was called from, over the samples in gaps."""

    parent: int  # its row among these; -1 for a root
    function: str
    file: str
    samples: int  # with all that it called


@dataclass(frozen=True)
class BusyThread:
    """A thread without any Python that used a whole processor: it spins, or computes."""

    process: str  # whose thread it is, such as rank0
    name: str  # as the system has it
    thread: int  # its number in the system
    share: float  # of a processor


@dataclass(frozen=True)
class HostLimits:
    """What the machine lets the recorded processes have; None is what is not known."""

    cpus: float | None = None  # processors that it may run on
    quota: float | None = None  # processors' worth of time that control groups allow
    throttled_share: float | None = None  # of the periods of its control group
    throttled_us: float | None = None  # while stacks were sampled
    omp_threads: str = ""  # OMP_NUM_THREADS of the worker; empty where it is not set


@dataclass(frozen=True)
class HostCode:
    """Which code held the GPU back, by stacks that py-spy took from outside."""

    rounds: int  # how often it looked, in all
    gap_samples: int  # of these, while no kernel ran in a profiled step
    gap_us: float  # time in which no kernel ran, of a mean profiled step
    inside_us: float  # of that, between the step's first and last kernel
    between_us: float  # of that, before the first or after the last
    steps: int  # profiled ones
    covered: float  # share of the gaps' time in which py-spy was looking
    sure: float  # share of `gap_samples` that lie in their gap whatever the error of their times
    unknown: float  # share of `gap_samples` that no rule knows the stage of
    error_us: float  # 19 of 20 times are off by this at most
    enough: bool  # whether there are enough samples in gaps for shares
    stages: tuple[HostStage, ...] = ()  # the most in gaps first
    functions: tuple[HostFunction, ...] = ()  # the same, without those that only call another
    flame: tuple[FlameFrame, ...] = ()  # a parent before its children
    limits: HostLimits = HostLimits()
    busy: tuple[BusyThread, ...] = ()
