"""The extension of the workers, with what the tests do to a live engine beside it."""

from __future__ import annotations

from typing import Any

from spark_prof.profiler.ranges import replace_attribute
from spark_prof.swaps.extension import Extension
from spark_prof.swaps.swap_settings import SIDES


class TestedExtension(Extension):
    """A vLLM worker; `self` is the worker."""

    def spark_prof_test_sides(self, names: list[str]) -> None:
        """Names the sides, and logs on which side the model runner computes how many requests."""
        SIDES.names = tuple(names)
        runner: Any = self.model_runner  # type: ignore[attr-defined]
        log: list[tuple[str, int]] = []
        original = runner.execute_model

        def execute_model(output: Any, *arguments: Any, **named: Any) -> Any:
            log.append((SIDES.active, len(output.num_scheduled_tokens)))
            return original(output, *arguments, **named)

        replace_attribute(runner, "execute_model", execute_model)
        runner.spark_prof_test_log = log

    def spark_prof_test_log(self) -> list[tuple[str, int]]:
        """The side and the number of requests of every step since the last call."""
        log: list[tuple[str, int]] = self.model_runner.spark_prof_test_log  # type: ignore[attr-defined]
        taken = list(log)
        log.clear()
        return taken

    def spark_prof_test_negate(self) -> None:
        """Negates the last norm's weight: every logit changes its sign."""
        model: Any = self.model_runner.get_model()  # type: ignore[attr-defined]
        model.model.norm.weight.data.neg_()
