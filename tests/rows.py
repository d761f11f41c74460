"""Rows of a table, or seeds, in one test that reports every row that fails."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from functools import wraps
from typing import Any

import pytest

Test = Callable[..., None]


def each_row(names: str | Sequence[str], rows: Iterable[Any]) -> Callable[[Test], Test]:
    """Calls a test once a row; one test is collected, and it reports all rows that fail.

    It is written as `pytest.mark.parametrize` is, with a `pytest.param` where a row has a name, and
    can be stacked. Each row has a `tmp_path` of its own, and what it patched is undone after it.
    Other fixtures are shared by the rows.

        @each_row(("name", "engine"), [("aten::mm", "unknown"), ("nvjet_sm90_hhh", "tensor-core")])
        def test_engine(name: str, engine: str) -> None:
            assert classify(name).engine == engine
    """
    own = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    table = [_named(row, len(own)) for row in rows]

    def decorate(test: Test) -> Test:
        signature = inspect.signature(test)
        missing = [name for name in own if name not in signature.parameters]
        assert not missing, f"{test.__name__} takes no {', '.join(missing)}"

        @wraps(test)
        def every(*args: Any, **kwargs: Any) -> None:
            failed: list[Exception] = []
            skipped: list[BaseException] = []
            for number, (label, values) in enumerate(table):
                given = dict(zip(own, values, strict=True))
                try:
                    with ExitStack() as stack:
                        test(*args, **_apart(kwargs, number, stack), **given)
                except pytest.skip.Exception as skip:
                    skipped.append(skip)
                except (Exception, pytest.fail.Exception) as error:
                    error.add_note(f"row {label or number}: {repr(given)[:500]}")
                    failed.append(error if isinstance(error, Exception) else AssertionError(error))
            if len(failed) == 1:
                raise failed[0]
            if failed:
                raise ExceptionGroup(f"{len(failed)} of {len(table)} rows fail", failed)
            if len(skipped) == len(table):
                pytest.skip(str(skipped[0]) if skipped else f"no rows of {', '.join(own)}")

        kept = [each for name, each in signature.parameters.items() if name not in own]
        every.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]
        del every.__wrapped__  # type: ignore[attr-defined]
        return every

    return decorate


def _named(row: Any, count: int) -> tuple[str, Sequence[Any]]:
    """The name of a row, if it has one, and its values."""
    if isinstance(row, type(pytest.param())):
        assert not row.marks, "a row of each_row has no marks"
        return str(row.id or ""), tuple(row.values)
    return "", (row,) if count == 1 else tuple(row)


def _apart(fixtures: dict[str, Any], number: int, stack: ExitStack) -> dict[str, Any]:
    """The fixtures as one row has them."""
    apart = dict(fixtures)
    if "tmp_path" in apart:
        apart["tmp_path"] = apart["tmp_path"] / str(number)
        apart["tmp_path"].mkdir()
    if "monkeypatch" in apart:
        apart["monkeypatch"] = stack.enter_context(apart["monkeypatch"].context())
    return apart
