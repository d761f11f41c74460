"""What spark-prof and the process that holds an engine say to each other: one line of JSON each."""

from __future__ import annotations

import socket
from typing import Any

import msgspec

from spark_prof.errors import CommandError

_LONGEST = 64 << 20
_PIECE = 1 << 16


class Channel:
    """One end of the connection, over a Unix socket.

    Args:
        connection: the socket, which this owns from now on.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._rest = bytearray()

    def send(self, message: msgspec.Struct) -> None:
        """Sends one message.

        Raises:
            OSError: nobody listens any more.
        """
        self._socket.settimeout(None)
        self._socket.sendall(msgspec.json.encode(message) + b"\n")

    def line(self, seconds: float | None) -> bytes | None:
        """The next message as it came; None when it has not come in that time.

        Raises:
            EOFError: the other end has closed.
            CommandError: the line is longer than any message.
        """
        self._socket.settimeout(seconds)
        seen = 0
        while (end := self._rest.find(b"\n", seen)) < 0:
            seen = len(self._rest)
            try:
                piece = self._socket.recv(_PIECE)
            except TimeoutError:
                return None
            except OSError as error:
                raise EOFError from error
            if not piece:
                raise EOFError
            self._rest += piece
            if len(self._rest) > _LONGEST:
                raise CommandError(f"a message of more than {_LONGEST >> 20} MiB came; stopped")
        line = bytes(self._rest[:end])
        del self._rest[: end + 1]
        return line

    def close(self) -> None:
        """Closes this end."""
        self._socket.close()


class Batch(msgspec.Struct, frozen=True):
    """Prompts of one generation; the same numbers give the same prompts.

    Attributes:
        requests: how many.
        prompt_tokens: of each.
        tokens: that each generates.
        alone: one request after the other, not all at once.
        repeat: the prompts start anew after so many; 0 for never.
    """

    requests: int
    prompt_tokens: int
    tokens: int
    alone: bool = False
    repeat: int = 0


class Start(msgspec.Struct, tag=True, frozen=True):
    """Builds the engine; answered by `Facts`."""

    form: str
    arguments: tuple[str, ...]


class Check(msgspec.Struct, tag=True, frozen=True):
    """Reads the arguments of an engine and builds none; answered by `Done`."""

    form: str
    arguments: tuple[str, ...]


class DescribeSwaps(msgspec.Struct, tag=True, frozen=True):
    """Asks what is swapped; answered by `Swaps`."""


class Switch(msgspec.Struct, tag=True, frozen=True):
    """Runs a side from the next step on; answered by `Done`."""

    side: str


class Generate(msgspec.Struct, tag=True, frozen=True):
    """Generates, with a plan or without; answered by `Times`.

    Attributes:
        batch: what to generate.
        plan: side and steps of each block, empty for none.
        prefill: the plan is of steps that prefill.
    """

    batch: Batch
    plan: tuple[tuple[str, int], ...] = ()
    prefill: bool = False


class Compare(msgspec.Struct, tag=True, frozen=True):
    """Generates on a side and keeps its logits in a file, or compares with those that are in it.

    Answered by `Done` after keeping, by `Compared` after comparing.

    Attributes:
        side: which.
        batch: what to generate.
        path: the file.
        keep: keeps, and does not compare.
        disturbed: with embeddings that are off by a rounding.
    """

    side: str
    batch: Batch
    path: str
    keep: bool
    disturbed: bool = False


class Shutdown(msgspec.Struct, tag=True, frozen=True):
    """Ends the engine and the process; answered by `Done`."""


class Facts(msgspec.Struct, tag=True, frozen=True):
    """The engine that was built.

    Attributes:
        versions: of vllm, torch, python, cuda and the driver, as far as they are known.
        gpu: its name; empty on a processor.
        uuids: of its GPUs on this host, as NVML writes them; none on a processor.
        gpus: how many the engine uses.
        processor: name of the CPU.
        model: name or folder.
        longest: tokens that a request may have, its prompt included.
        most_requests: that may run at once.
        most_tokens: that a step may compute.
        vocabulary: tokens that the model knows.
        cache_tokens: that fit in the KV cache; None where vLLM does not tell.
        load_seconds: from the arguments to an engine that answers.
        execution: in words, such as ``torch.compile, CUDA graphs``.
        dummy: the weights are no checkpoint's.
        layers: of the decoder; None where its configuration does not tell.
        routed: some of them choose experts.
    """

    versions: dict[str, str]
    gpu: str
    uuids: tuple[str, ...]
    gpus: int
    processor: str
    model: str
    longest: int
    most_requests: int
    most_tokens: int
    vocabulary: int
    cache_tokens: int | None
    load_seconds: float
    execution: str
    dummy: bool
    layers: int | None
    routed: bool


class Swaps(msgspec.Struct, tag=True, frozen=True):
    """The answers of all ranks to `spark_prof_swaps`, as `ab.swapped` reads them."""

    ranks: list[dict[str, Any]]


class Times(msgspec.Struct, tag=True, frozen=True):
    """The steps of a plan on rank 0, in the columns of `spark_prof_times`, and what it took."""

    rows: list[list[Any]]
    seconds: float


class Compared(msgspec.Struct, tag=True, frozen=True):
    """The rows of `spark_prof_compared` of rank 0."""

    rows: list[dict[str, Any]]


class Done(msgspec.Struct, tag=True, frozen=True):
    """Nothing more to tell."""


class Failed(msgspec.Struct, tag=True, frozen=True):
    """Why a request could not be met, one line."""

    reason: str


Request = Start | Check | DescribeSwaps | Switch | Generate | Compare | Shutdown
Answer = Facts | Swaps | Times | Compared | Done | Failed
