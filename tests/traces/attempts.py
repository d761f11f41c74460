"""Calls that may be refused: what they give, or the one line that says why not."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from spark_prof.errors import CommandError

T = TypeVar("T")


def attempt(call: Callable[[], list[T]]) -> tuple[list[T], CommandError | None]:
    """What the call gives, or nothing and the error; any other exception goes on."""
    try:
        return call(), None
    except CommandError as error:
        return [], error
