"""The file that holds one side's logits: a NumPy array with one record for each sampled token.

Format: .npy 1.0 (numpy.lib.format) of the records ``request, step, token, prompt, <dtype>``: which
request in the order of arrival, which token of its answer, the token with the largest logit,
CRC-32 of the prompt's tokens, and the logits' bits. The last field's name is the dtype that the
logits have; the bits are stored as integers, because NumPy has no bfloat16.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.lib.format
import numpy.typing as npt
import torch

from spark_prof.ending import removed_afterwards
from spark_prof.errors import CommandError

LARGEST_BYTES = 2 << 30
"""Logits of one file at most, which are in the host's memory until they are written."""

MOST_ROWS = 1 << 20
"""Records of one file at most."""

_BITS = {"bfloat16": "<i2", "float16": "<i2", "float32": "<i4"}


@dataclass(frozen=True, eq=False)
class TappedRow:
    """The logits of one sampled token.

    Attributes:
        request: which of the requests since the tap was turned on, from 0.
        step: which token of its answer, from 0.
        prompt: CRC-32 of the prompt's tokens.
        logits: [V], on the CPU.
    """

    request: int
    step: int
    token: int
    prompt: int
    logits: torch.Tensor


def write_logits(path: Path, rows: Sequence[TappedRow]) -> None:
    """Writes the rows, which have one dtype and one length; the file is whole or not there.

    Raises:
        CommandError: there are no rows, or the file cannot be written.
    """
    if not rows:
        raise CommandError(f"{path}: no logits came while the tap was on; nothing is written")
    dtype = str(rows[0].logits.dtype).removeprefix("torch.")
    record = _record(dtype, len(rows[0].logits))
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with removed_afterwards(temporary):
            with temporary.open("wb") as stream:
                header = {"descr": record.descr, "fortran_order": False, "shape": (len(rows),)}
                numpy.lib.format.write_array_header_1_0(stream, header)  # type: ignore[no-untyped-call, unused-ignore]
                for row in rows:
                    keys = (row.request, row.step, row.token, row.prompt)
                    stream.write(np.array([(*keys, _bits(row.logits))], dtype=record).tobytes())
            os.replace(temporary, path)
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
