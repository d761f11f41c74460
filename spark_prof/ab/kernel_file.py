"""Checks that a file has the function that a swap names, before an engine is started for it."""

from __future__ import annotations

import ast
from pathlib import Path

from spark_prof.errors import CommandError

__all__ = ["checked_file"]


def checked_file(path: Path, function: str) -> str:
    """FILE:FUNCTION with the whole path. The file is read, not run.

    Args:
        path: of the file.
        function: a name at its top level.

    Raises:
        CommandError: it cannot be read, is no Python, or has no such name.
    """
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CommandError(f"cannot read {path}: {error.strerror or error}") from error
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise CommandError(f"{path} is no Python file: {error}") from error
    if "," in str(path.absolute()):
        raise CommandError(f"{path.absolute()}: a path with a comma cannot be given; move the file")
    names = {
        name.id if isinstance(name, ast.Name) else getattr(name, "name", "")
        for statement in tree.body
        for name in (statement, *getattr(statement, "targets", ()))
    }
    names |= {
        alias.asname or alias.name
        for statement in tree.body
        if isinstance(statement, ast.Import | ast.ImportFrom)
        for alias in statement.names
    }
    if function not in names:
        raise CommandError(f"{path} has no function {function or '(empty)'} at its top level")
    return f"{path.absolute()}:{function}"
