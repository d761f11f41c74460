"""What a tap does with a step's logits: it records them, or compares them with recorded ones."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

import torch

from spark_prof.errors import CommandError
from spark_prof.swaps.logits import compare_logits
from spark_prof.swaps.tap_file import (
    LARGEST_BYTES,
    MOST_ROWS,
    RecordedLogits,
    TappedRow,
    write_logits,
)
from spark_prof.swaps.tap_requests import TappedRequest


class Use(Protocol):
    """Takes the logits of sampled tokens and says which tokens they shall be."""

    compared: list[dict[str, Any]]

    def take(self, requests: list[TappedRequest], logits: torch.Tensor) -> torch.Tensor:
        """Uses the rows [R, V] of the requests; the tokens to force, int64 [R]."""

    def finish(self) -> None:
        """Writes what is to be written."""


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
