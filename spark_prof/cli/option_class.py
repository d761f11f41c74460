"""A command's options as the fields of a dataclass: one table, read by Typer and by the command."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, fields
from functools import wraps
from inspect import Parameter, Signature
from typing import Any, TypeVar, get_type_hints

Options = TypeVar("Options")
Result = TypeVar("Result")


def takes(
    options: type[Options],
) -> Callable[[Callable[[Options], Result]], Callable[..., Result]]:
    """Makes a command whose options are the fields of a dataclass, in their order.

    @takes(QueryOptions) over `def query(options: QueryOptions)`; a field is what a parameter of a
    Typer command is: `limit: Annotated[int, typer.Option(min=1)] = 10`.
    """
    hints = get_type_hints(options, include_extras=True)
    parameters = [
        Parameter(
            field.name,
            Parameter.KEYWORD_ONLY,
            default=Parameter.empty if field.default is MISSING else field.default,
            annotation=hints[field.name],
        )
        for field in fields(options)  # type: ignore[arg-type]
    ]

    def decorate(run: Callable[[Options], Result]) -> Callable[..., Result]:
        @wraps(run)
        def command(**values: Any) -> Result:
            return run(options(**values))

        del command.__wrapped__  # its signature is not the command's
        command.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = hints
        return command

    return decorate
