"""The environment that makes `vllm serve` use a side."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path

from spark_prof.ab.outcome import outcome_of
from spark_prof.ab.result_file import read_result
from spark_prof.ab.sides import Side, parse_side
from spark_prof.errors import CommandError
from spark_prof.profiler.commands import with_plugin_allowed
from spark_prof.swaps.settings import SWAPS_ENVIRONMENT
from spark_prof.swaps.spec import format_swaps

__all__ = ["lines_of", "side_of_result"]


def side_of_result(path: Path) -> Side:
    """Side b of a result.

    Raises:
        CommandError: it is no result, its gate failed (exit code 1), or a value of the side is
            hidden in it.
    """
    result = read_result(path)
    if outcome_of(result) == "gate failed":
        raise CommandError(
            f"{path}: side b fails the correctness gate, so it is not applied", exit_code=1
        )
    side = result.sides[1]
    added = side.arguments[len(result.sides[0].arguments) :]
    if result.mode == "two engines":
        shared = _shared(result.sides[0].arguments, side.arguments)
        added = side.arguments[shared:]
    words = [*filter(None, [side.swaps]), *added]
    words += [f"{name}={value}" for name, value in side.environment.items()]
    if any("***" in word for word in words):
        raise CommandError(f"{path} hides a secret value of side b; give --b instead of the file")
    return parse_side(" ".join(shlex.quote(word) if word != side.swaps else word for word in words))


def lines_of(side: Side, environment: Mapping[str, str] = os.environ) -> Iterator[str]:
    """Lines for a shell, which may evaluate them.

    Args:
        side: what to serve with.
        environment: in which the lines will be evaluated.

    Raises:
        CommandError: the side changes nothing.
    """
    if not (side.swaps or side.options or side.environment):
        raise CommandError("side b is stock, so there is nothing to apply; give --b moe=spark_prof")
    if side.swaps:
        yield f"export {SWAPS_ENVIRONMENT}={shlex.quote(format_swaps(side.swaps))}"
        allowed = with_plugin_allowed(environment).get("VLLM_PLUGINS")
        if allowed != environment.get("VLLM_PLUGINS") and allowed is not None:
            yield f"export VLLM_PLUGINS={shlex.quote(allowed)}"
    for name, value in side.environment:
        yield f"export {name}={shlex.quote(value)}"
    if side.options:
        yield f"# and start it with: vllm serve MODEL {shlex.join(side.options)}"


def _shared(a: tuple[str, ...], b: tuple[str, ...]) -> int:
    """How many words both begin with."""
    same = 0
    for first, second in zip(a, b, strict=False):
        if first != second:
            break
        same += 1
    return same
