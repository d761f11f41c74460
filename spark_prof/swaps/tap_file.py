"""Records one side's logits in a file, or compares a step's logits with the recorded ones.

Format: .npy 1.0 (numpy.lib.format) of the records ``request, step, token, prompt, <dtype>``: which
request in the order of arrival, which token of its answer, the token with the largest logit,
CRC-32 of the prompt's tokens, and the logits' bits. The last field's name is the dtype that the
logits have; the bits are stored as integers, because NumPy has no bfloat16.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.lib.format
import numpy.typing as npt
import torch

from spark_prof.errors import CommandError
from spark_prof.files import replacing

_FORCED = 1e4
"""The logit of a forced token, beside 0 for all others: any sampling takes it."""


@dataclass(frozen=True)
class Difference:
    """One row of logits on both sides. A number that is not finite says that a side's are not."""

    token_a: int  # the largest logit's token on side a
    token_b: int
    margin_a: float  # how far side a's largest logit lies above its second
    kl_nats: float  # Kullback-Leibler divergence of b's distribution from a's, in nats
    worst: float
    scale: float  # the standard deviation of side a's logits, to see `worst` against


def compare_logits(a: torch.Tensor, b: torch.Tensor) -> list[Difference]:
    """Compares the rows of two [R, V] on their device, in float64; waits for it.

    Tokens that both sides exclude with a logit of minus infinity count as equal.
    """
    a, b = a.double(), b.double()
    log_a, log_b = a.log_softmax(dim=1), b.log_softmax(dim=1)
    share = log_a.exp()
    # 0 * (-inf - -inf) is no number, but a token without a share contributes nothing.
    summands = torch.where(share == 0, 0.0, share * (log_a - log_b))
    difference = torch.where(a == b, 0.0, (a - b).abs())
    top = a.topk(2, dim=1).values
    included = ~a.isneginf()
    count = included.sum(dim=1, keepdim=True)
    mean = a.where(included, 0.0).sum(dim=1, keepdim=True) / count
    spread = ((a - mean).square().where(included, 0.0).sum(dim=1) / count[:, 0]).sqrt()
    numbers = torch.stack(
        [top[:, 0] - top[:, 1], summands.sum(dim=1).clamp(min=0.0), difference.amax(dim=1), spread],
        dim=1,
    ).tolist()
    tokens = zip(a.argmax(dim=1).tolist(), b.argmax(dim=1).tolist(), strict=True)
    return [
        Difference(token_a, token_b, *row)
        for (token_a, token_b), row in zip(tokens, numbers, strict=True)
    ]


def force_tokens(logits: torch.Tensor, rows: list[int], tokens: torch.Tensor) -> torch.Tensor:
    """A copy of [R, V] in which each of the rows can only give its token.

    Args:
        logits: what the model computed; left as it is.
        tokens: int64, one for each of the rows.
    """
    forced = logits.clone()
    only = torch.zeros(len(rows), logits.shape[1], dtype=logits.dtype, device=logits.device)
    only.scatter_(1, tokens.to(logits.device)[:, None], _FORCED)
    forced[rows] = only
    return forced


LARGEST_BYTES = 2 << 30
"""Logits of one file at most, which are in the host's memory until they are written."""

MOST_ROWS = 1 << 20
"""Records of one file at most."""

_BITS = {"bfloat16": "<i2", "float16": "<i2", "float32": "<i4"}


@dataclass(frozen=True, eq=False)
class TappedRow:
    """The logits of one sampled token."""

    request: int  # which of the requests since the tap was turned on, from 0
    step: int  # which token of its answer, from 0
    token: int
    prompt: int  # CRC-32 of the prompt's tokens
    logits: torch.Tensor  # [V], on the CPU


def write_logits(path: Path, rows: Sequence[TappedRow]) -> None:
    """Writes the rows, which have one dtype and one length; the file is whole or not there.

    Raises:
        CommandError: there are no rows, or the file cannot be written.
    """
    if not rows:
        raise CommandError(f"{path}: no logits came while the tap was on; nothing is written")
    dtype = str(rows[0].logits.dtype).removeprefix("torch.")
    record = _record(dtype, len(rows[0].logits))
    try:
        with replacing(path) as temporary, temporary.open("wb") as stream:
            header = {"descr": record.descr, "fortran_order": False, "shape": (len(rows),)}
            numpy.lib.format.write_array_header_1_0(stream, header)  # type: ignore[no-untyped-call, unused-ignore]
            for row in rows:
                keys = (row.request, row.step, row.token, row.prompt)
                stream.write(np.array([(*keys, _bits(row.logits))], dtype=record).tobytes())
    except OSError as error:
        raise CommandError(f"{path} cannot be written: {error.strerror or error}") from error


class RecordedLogits:
    """Reads such a file; the logits stay on disk until one asks for them.

    Raises:
        CommandError: it is not there, not such a file, or cut off.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            array = numpy.lib.format.open_memmap(path, mode="r")  # type: ignore[no-untyped-call, unused-ignore]
        except Exception as error:  # a damaged header ends in any of the Python parser's
            raise CommandError(f"{path} cannot be read as recorded logits: {error}") from error
        names = array.dtype.names or ("",)
        self._dtype = names[-1]
        shape: tuple[int, ...] = array.dtype[self._dtype].shape if self._dtype in _BITS else ()
        if len(shape) != 1 or array.ndim != 1 or array.dtype != _record(self._dtype, shape[0]):
            raise CommandError(f"{path} holds no recorded logits; record them again")
        if len(array) > MOST_ROWS:
            raise CommandError(f"{path} holds over {MOST_ROWS} tokens; tap fewer of them")
        self._array = array
        self._tokens = array["token"].tolist()
        self._prompts = array["prompt"].tolist()
        keys = zip(array["request"].tolist(), array["step"].tolist(), strict=True)
        self._number = {key: number for number, key in enumerate(keys)}
        # A token beyond the vocabulary would end a GPU's work for good when it is forced.
        inside = all(0 <= token < self.vocabulary for token in self._tokens)
        if not inside or len(self._number) != len(self._tokens):
            raise CommandError(f"{path} is damaged; record the logits again")

    @property
    def vocabulary(self) -> int:
        """V, the tokens that a row has a logit for."""
        return int(self._array.dtype[self._dtype].shape[0])

    def find(self, request: int, step: int, prompt: int) -> tuple[int, int]:
        """The record's number and its token.

        Raises:
            CommandError: there is no such record, or the request had another prompt.
        """
        number = self._number.get((request, step))
        if number is None:
            raise CommandError(f"{self._path} has no token {step} of request {request}")
        if self._prompts[number] != prompt:
            raise CommandError(f"{self._path}: request {request} had another prompt")
        return number, self._tokens[number]

    def logits(self, numbers: list[int]) -> torch.Tensor:
        """The logits of some records, [R, V], in their own dtype."""
        dtype: torch.dtype = getattr(torch, self._dtype)
        return torch.from_numpy(self._array[numbers][self._dtype].copy()).view(dtype)


def _record(dtype: str, vocabulary: int) -> np.dtype[np.void]:
    if dtype not in _BITS:
        raise CommandError(f"logits of {dtype} cannot be recorded; give the model another dtype")
    keys = [("request", "<i4"), ("step", "<i4"), ("token", "<i4"), ("prompt", "<u4")]
    return np.dtype([*keys, (dtype, _BITS[dtype], (vocabulary,))])


def _bits(logits: torch.Tensor) -> npt.NDArray[np.integer[Any]]:
    integers = torch.int32 if logits.dtype == torch.float32 else torch.int16
    found: npt.NDArray[np.integer[Any]] = logits.contiguous().view(integers).numpy()
    return found


@dataclass(slots=True)
class TappedRequest:
    """A request that has come since the tap was turned on."""

    number: int  # in the order of arrival, from 0
    prompt_tokens: int
    prompt: int  # CRC-32 of the prompt's tokens
    sampled: int = 0


class Recording:
    """Keeps logits in the host's memory until they are written.

    Args:
        keeps: whether this rank keeps them at all.
    """

    def __init__(self, path: Path, *, keeps: bool) -> None:
        self.compared: list[dict[str, Any]] = []
        self._path = path
        self._keeps = keeps
        self._rows: list[TappedRow] = []
        self._bytes = 0

    def take(self, requests: list[TappedRequest], logits: torch.Tensor) -> torch.Tensor:
        """Keeps the rows; the tokens are those of the largest logits.

        Raises:
            CommandError: there are more logits than a file may hold.
        """
        tokens = logits.argmax(dim=1)
        if self._keeps:
            self._bytes += logits.numel() * logits.element_size()
            if self._bytes > LARGEST_BYTES or len(self._rows) + len(requests) > MOST_ROWS:
                self._rows = []
                raise CommandError(
                    f"more than {LARGEST_BYTES >> 30} GiB of logits or {MOST_ROWS} tokens; "
                    "tap fewer tokens"
                )
            self._rows += [
                TappedRow(request.number, request.sampled, token, request.prompt, row)
                for request, token, row in zip(requests, tokens.tolist(), logits.cpu(), strict=True)
            ]
        return tokens

    def finish(self) -> None:
        """Writes the file; raises CommandError as `write_logits` does."""
        if self._keeps:
            write_logits(self._path, self._rows)


class Comparison:
    """Compares logits with those of a file.

    Args:
        compares: whether this rank compares, and not only forces tokens.

    Raises:
        CommandError: the file cannot be read.
    """

    def __init__(self, path: Path, *, compares: bool) -> None:
        self.compared: list[dict[str, Any]] = []
        self._recorded = RecordedLogits(path)
        self._compares = compares

    def take(self, requests: list[TappedRequest], logits: torch.Tensor) -> torch.Tensor:
        """Compares the rows; the tokens are the recorded ones.

        Raises:
            CommandError: a token was not recorded, or other prompts or another model were.
        """
        recorded = self._recorded
        found = [recorded.find(r.number, r.sampled, r.prompt) for r in requests]
        if self._compares:
            if recorded.vocabulary != logits.shape[1]:
                raise CommandError(
                    f"there are {logits.shape[1]} logits a token, recorded {recorded.vocabulary}"
                )
            of_a = recorded.logits([number for number, _ in found]).to(logits.device)
            differences = compare_logits(of_a, logits)
            self.compared += [
                {"step": request.sampled, "row": request.number}
                | asdict(difference)
                | {"agree": difference.token_a == difference.token_b}
                for request, difference in zip(requests, differences, strict=True)
            ]
        return torch.tensor([token for _, token in found])

    def finish(self) -> None:
        """Nothing is to be written."""


Use = Recording | Comparison
"""Takes the logits of sampled tokens and says which tokens they shall be."""
