"""What spark-prof and the process that holds an engine say to each other, as JSON."""

from __future__ import annotations

from multiprocessing.connection import Connection
from typing import Any

import msgspec

from spark_prof.ab.timed_steps import Step

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


class Batch(msgspec.Struct, frozen=True):
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


class DescribeSwaps(msgspec.Struct, tag=True, frozen=True):
    """Asks what is swapped; answered by `Rows`."""


class Switch(msgspec.Struct, tag=True, frozen=True):
    """Runs a side from the next step on; answered by `Rows`."""

    side: str


class Generate(msgspec.Struct, tag=True, frozen=True):
    """Generates, with a plan or without; answered by `Times`."""

    batch: Batch
    plan: tuple[tuple[str, int], ...] = ()  # side and steps of each block, empty for none
    prefill: bool = False  # the plan is of steps that prefill
    held_us: int = 0  # for how long the device is held back before each step of the plan


class Compare(msgspec.Struct, tag=True, frozen=True):
    """Generates on a side and keeps its logits in a file, or compares with those that are in it.

    Answered by `Rows`, of which there are none after keeping.
    """

    side: str
    batch: Batch  # what to generate
    path: str  # the file
    keep: bool  # keeps, and does not compare
    disturbed: bool = False  # with embeddings that are off by a rounding
    text: str = ""  # a file with what is said, in place of made-up prompts and side a's answers


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


class Times(msgspec.Struct, tag=True, frozen=True):
    """The steps of a plan on rank 0, in the columns of `spark_prof_times`, and what it took."""

    rows: list[Step]
    seconds: float


class Rows(msgspec.Struct, tag=True, frozen=True):
    """The answers of all ranks to `spark_prof_swaps`, or that of rank 0 to `spark_prof_compared`.

    Without rows a request was met, and there is nothing to tell.
    """

    rows: list[dict[str, Any]] = []


class Failed(msgspec.Struct, tag=True, frozen=True):
    """Why a request could not be met, one line."""

    reason: str


Request = Start | Check | DescribeSwaps | Switch | Generate | Compare | Shutdown
Answer = Facts | Times | Rows | Failed
