"""Keeps spark-prof's faults away from the engine.

Every call from vLLM into spark-prof goes through a `Fence`. A fault is logged once, the hook is
off from then on, and the engine sees nothing but a hook that does nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import ParamSpec, TypeVar

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")

logger = logging.getLogger("spark_prof")


class Fence:
    """Runs the hooks of one recording so that none of them can raise into the engine."""

    def __init__(
        self,
        report: Callable[[str], None] | None = None,  # gets a line for each hook that failed
        faults: tuple[str, ...] = (),  # hooks that shall fail when first called, for the tests
    ) -> None:
        self._report = report
        self._faults = faults
        self.failed: set[str] = set()  # the hooks that are off because they failed
        self._missed: set[str] = set()

    def call(
        self,
        hook: str,
        function: Callable[_Arguments, _Result],
        *arguments: _Arguments.args,
        **named: _Arguments.kwargs,
    ) -> _Result | None:
        """Calls the function; None when it fails now or the hook failed before."""
        if hook in self.failed:
            return None
        try:
            if hook in self._faults:
                raise RuntimeError("a fault that the settings asked for")
            return function(*arguments, **named)
        except Exception as error:
            self.disable(hook, error)
            return None

    def attempt(
        self,
        task: str,
        function: Callable[_Arguments, object],
        *arguments: _Arguments.args,
        **named: _Arguments.kwargs,
    ) -> None:
        """Calls the function, however often it failed before; that is said once.

        For what looks after all recordings of a process: none may keep it from the next.
        """
        try:
            function(*arguments, **named)
        except Exception as error:
            if task not in self._missed:
                self._missed.add(task)
                logger.warning("spark-prof: %s failed: %s: %s", task, type(error).__name__, error)

    def disable(self, hook: str, error: BaseException) -> None:
        """Switches the hook off and says so once."""
        if hook in self.failed:
            return
        self.failed.add(hook)
        message = f"hook {hook} failed and is off: {type(error).__name__}: {error}"
        logger.warning("spark-prof: %s; the engine goes on", message)
        if self._report is not None:
            try:
                self._report(message)
            except Exception as report_error:
                logger.debug("could not report a fault: %s", report_error)

    def wanted_fault(self, hook: str) -> bool:
        """Whether the settings ask this hook to fail; for hooks too hot for `call`."""
        return hook in self._faults
