"""What spark-prof and the process that holds an engine say to each other, as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import msgspec

from spark_prof.ab.timed_steps import TimedStep

_LONGEST = 64 << 20


def send(connection: Connection, message: msgspec.Struct) -> None:
    """Sends one message; raises OSError where nobody listens any more."""
    connection.send_bytes(msgspec.json.encode(message))


def receive(connection: Connection, seconds: float | None) -> bytes | None:
    """The next message; None when none has come in that time, EOFError once the end is closed."""
    try:
        return connection.recv_bytes(_LONGEST) if connection.poll(seconds) else None
    except OSError as error:
        raise EOFError from error


class PromptBatch(msgspec.Struct, frozen=True):
    """Prompts of one generation; the same numbers give the same prompts."""

    requests: int
    prompt_tokens: int
    tokens: int  # that each generates
    alone: bool = False  # one request after the other, not all at once
    repeat: int = 0  # the prompts start anew after so many; 0 for never


class Check(msgspec.Struct, tag=True, frozen=True):
    """Reads the arguments of an engine and builds none; answered by `Rows`."""

    form: str
    arguments: tuple[str, ...]


class Start(Check, tag=True, frozen=True):
    """Builds the engine; answered by `Facts`."""

    environment: dict[str, str] = {}  # variables that nothing has read before
    drafts: tuple[int, ...] | None = None
    """Numbers of drafts that its steps shall be able to have, none for no drafter; None where the
    arguments may not have a drafter at all."""
    as_served: bool = False  # the drafts by batch size are those of the arguments


class DescribeSwaps(msgspec.Struct, tag=True, frozen=True):
    """Asks what is swapped; answered by `Rows`."""


class Switch(msgspec.Struct, tag=True, frozen=True):
    """Runs a side from the next step on; answered by `Rows`."""

    side: str


class Generate(msgspec.Struct, tag=True, frozen=True):
    """Generates, with a plan or without; answered by `Times`."""

    batch: PromptBatch
    plan: tuple[tuple[str, int], ...] = ()  # side and steps of each block, empty for none
    prefill: bool = False  # the plan is of steps that prefill
    held_us: int = 0  # for how long the device is held back before each step of the plan


class Compare(msgspec.Struct, tag=True, frozen=True):
    """Generates on a side and keeps its logits in a file, or compares with those that are in it.

    Answered by `Rows`, of which there are none after keeping.
    """

    side: str
    batch: PromptBatch  # what to generate
    path: str  # the file
    keep: bool  # keeps, and does not compare
    disturbed: bool = False  # with embeddings that are off by a rounding
    text: str = ""  # a file with what is said, in place of made-up prompts and side a's answers
    prompts: tuple[str | tuple[int, ...], ...] = ()  # texts or token ids; none for made-up ones


class Draft(msgspec.Struct, tag=True, frozen=True):
    """Generates with drafts, as many at a time as a plan says; answered by `Drafted`."""

    batch: PromptBatch
    plan: tuple[tuple[int, int], ...] = ()
    """Drafts and steps of each block; requests end with it. None for requests that are generated
    whole."""
    drafts: int | None = None
    """Of every step, where there is no plan; None for as many as the engine makes by itself."""
    to_the_end: bool = False  # a request goes on where the model would have ended it
    acceptance: tuple[float, ...] | None = None
    """The share of steps that accept each position with all before it; None for the real one."""
    prompts: tuple[str | tuple[int, ...], ...] = ()  # texts or token ids; none for made-up ones


class Shutdown(msgspec.Struct, tag=True, frozen=True):
    """Ends the engine and the process; answered by `Rows`."""


class Facts(msgspec.Struct, tag=True, frozen=True):
    """The engine that was built."""

    versions: dict[str, str]
    """Of vllm, torch, python, cuda and the driver, as far as they are known."""
    gpu: str  # its name; empty on a processor
    uuids: tuple[str, ...]  # of its GPUs on this host, as NVML writes them; none on a processor
    gpus: int  # how many the engine uses
    processor: str  # name of the CPU
    model: str  # name or folder
    longest: int  # tokens that a request may have, its prompt included
    most_requests: int  # that may run at once
    most_tokens: int  # that a step may compute
    vocabulary: int  # tokens that the model knows
    cache_tokens: int | None  # that fit in the KV cache; None where vLLM does not tell
    load_seconds: float  # from the arguments to an engine that answers
    execution: str  # in words, such as ``torch.compile, CUDA graphs``
    dummy: bool  # the weights are no checkpoint's
    layers: int | None  # of the decoder; None where its configuration does not tell
    routed: bool  # some of them choose experts
    drafting: str = ""
    """How it drafts: ``chosen`` where each step may have another number of drafts in the graphs
    that a fixed number has, ``pieces`` where that costs it whole graphs, ``fixed``; empty for no
    drafter."""
    drafts: int = 0  # that a step has at most
    acceptance_fixed: bool = False  # which drafts are accepted can be fixed


class Times(msgspec.Struct, tag=True, frozen=True):
    """The steps of a plan on rank 0, in the columns of `spark_prof_times`, and what it took."""

    rows: list[TimedStep]
    seconds: float


class DraftStep(msgspec.Struct, frozen=True, array_like=True):
    """One step, as the scheduler saw its result."""

    at_ns: int  # when the result came, by a clock that only goes forward
    requests: int  # that decode in it; -1 where others were prefilled, too
    fewest: int  # drafts of a request
    most: int
    drafts: int  # of all requests
    tokens: int  # tokens that they got
    context: int  # tokens before it, of all requests


@dataclass(frozen=True)
class RequestDrafts:
    """The drafts of one request."""

    steps: int  # in which it decoded, those without drafts included
    drafted: tuple[int, ...]  # steps by position: in how many it was drafted
    accepted: tuple[int, ...]  # in how many it and all before it were accepted


class Drafted(msgspec.Struct, tag=True, frozen=True):
    """What came of a generation with drafts."""

    steps: list[DraftStep]
    requests: list[RequestDrafts]
    tokens: list[list[int]]  # that each request was given, in the order of the prompts
    seconds: float


class RankAnswers(msgspec.Struct, tag=True, frozen=True):
    """The answers of all ranks to `spark_prof_swaps`, or that of rank 0 to `spark_prof_compared`.

    Without rows a request was met, and there is nothing to tell.
    """

    rows: list[dict[str, Any]] = []


class Failed(msgspec.Struct, tag=True, frozen=True):
    """Why a request could not be met, one line."""

    reason: str


Request = Start | Check | DescribeSwaps | Switch | Generate | Compare | Draft | Shutdown
Answer = Facts | Times | Drafted | RankAnswers | Failed
