"""Records one side's logits in a file, or compares a step's logits with the recorded ones.

The file is torch's: of each sampled token the request in the order of arrival, which token of its
answer it is, the token itself and CRC-32 of the prompt's tokens; and the logits of each step.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from spark_prof.errors import CommandError, one_line
from spark_prof.files import replacing

_FORCED = 1e4
"""The logit of a forced token, beside 0 for all others: any sampling takes it."""

_LARGEST_BYTES = 2 << 30
"""Logits of one file at most, which are in the host's memory until they are written."""


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
        self._rows: list[tuple[int, int, int, int]] = []
        self._logits: list[torch.Tensor] = []
        self._bytes = 0

    def take(self, requests: list[TappedRequest], logits: torch.Tensor) -> torch.Tensor:
        """Keeps the rows; the tokens are those of the largest logits.

        Raises:
            CommandError: there are more logits than a file may hold.
        """
        tokens = logits.argmax(dim=1)
        if self._keeps:
            self._bytes += logits.nbytes
            if self._bytes > _LARGEST_BYTES:
                raise CommandError(
                    f"more than {_LARGEST_BYTES >> 30} GiB of logits; tap fewer tokens"
                )
            self._logits.append(logits.cpu())
            self._rows += [
                (request.number, request.sampled, token, request.prompt)
                for request, token in zip(requests, tokens.tolist(), strict=True)
            ]
        return tokens

    def finish(self) -> None:
        """Writes the file; it is whole or not there.

        Raises:
            CommandError: there are no rows, or the file cannot be written.
        """
        if not self._keeps:
            return
        if not self._rows:
            raise CommandError(
                f"{self._path}: no logits came while the tap was on; nothing is written"
            )
        try:
            with replacing(self._path) as temporary:
                torch.save((self._rows, self._logits), temporary)
        except (OSError, RuntimeError) as error:
            raise CommandError(one_line(f"{self._path} cannot be written: {error}")) from error


class Comparison:
    """Compares logits with those of a file, which stay on disk until they are needed.

    Args:
        compares: whether this rank compares, and not only forces tokens.

    Raises:
        CommandError: the file cannot be read.
    """

    def __init__(self, path: Path, *, compares: bool) -> None:
        self.compared: list[dict[str, Any]] = []
        self._path = path
        self._compares = compares
        try:
            rows, steps = torch.load(path, mmap=True, weights_only=True)
        except Exception as error:
            raise CommandError(
                one_line(f"{path} cannot be read as recorded logits: {error}")
            ) from error
        logits = (row for step in steps for row in step)
        self._recorded = {
            (request, sampled): (token, prompt, row)
            for (request, sampled, token, prompt), row in zip(rows, logits, strict=True)
        }

    def take(self, requests: list[TappedRequest], logits: torch.Tensor) -> torch.Tensor:
        """Compares the rows; the tokens are the recorded ones.

        Raises:
            CommandError: a token was not recorded, or other prompts or another model were.
        """
        tokens, of_a = zip(*map(self._find, requests), strict=True)
        if len(of_a[0]) != logits.shape[1]:
            raise CommandError(
                f"there are {logits.shape[1]} logits a token, recorded {len(of_a[0])}"
            )
        if self._compares:
            differences = compare_logits(torch.stack(of_a).to(logits.device), logits)
            self.compared += [
                {"step": request.sampled, "row": request.number} | asdict(difference)
                for request, difference in zip(requests, differences, strict=True)
            ]
        return torch.tensor(tokens)

    def _find(self, request: TappedRequest) -> tuple[int, torch.Tensor]:
        number, step = request.number, request.sampled
        if (number, step) not in self._recorded:
            raise CommandError(f"{self._path} has no token {step} of request {number}")
        token, prompt, row = self._recorded[number, step]
        if prompt != request.prompt:
            raise CommandError(f"{self._path}: request {number} had another prompt")
        return token, row

    def finish(self) -> None:
        """Nothing is to be written."""


Use = Recording | Comparison
"""Takes the logits of sampled tokens and says which tokens they shall be."""
