"""One module of a model with its weights, seen or derived."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Module:
    """The weights of one module, or of one projection of all experts of a layer.

    Attributes:
        path: with `*` for the number of an expert.
        parameters: elements of its matrices, unpacked.
        bytes: with scales, zero points and biases.
        matrix: whether it is a matrix large enough to have a format of its own.
        copies: experts that it holds, 1 for what is no expert.
    """

    path: str
    parameters: int
    bytes: float
    format: str
    matrix: bool
    copies: int = 1
