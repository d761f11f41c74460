"""What is measured: the options of a run, its engines, and the blocks of a generation."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spark_prof.ab.command import EngineCommand
from spark_prof.ab.engine_options import with_options
from spark_prof.errors import CommandError
from spark_prof.profiler.commands import option_value
from spark_prof.speculate.acceptance import MOST_DRAFTS, Acceptance, Prompts

OPTION = "--speculative-config"
TABLE = "num_speculative_tokens_per_batch_size"
MOST = "num_speculative_tokens"
_EXAMPLE = f"""{OPTION} '{{"method": "ngram", "{MOST}": 4}}'"""
_FIXED_METHODS = frozenset({"suffix", "medusa", "mlp_speculator", "custom_class"})
"""Methods for which vLLM has one number of drafts in the whole engine."""
_NOT_SERVED = ("rejection_sample_method", "synthetic_acceptance_rates",
    "synthetic_acceptance_length")  # fmt: skip


@dataclass(frozen=True)
class SpeculateOptions:
    """The options of a run."""

    folder: Path  # where everything goes
    drafts: tuple[int, ...]  # the numbers of drafts to measure, from 1 on
    batch_sizes: tuple[int, ...]
    contexts: tuple[int, ...]  # tokens of each prompt
    minutes: float  # to spend in all
    seconds: float  # on each batch size and context
    acceptance: Acceptance | None = None  # that is known beforehand
    prompts: Prompts = ()  # of requests whose acceptance is measured
    answer_tokens: int = 256  # that each of those generates at most
    at_once: int = 1  # engines that are alive together
    proof: bool = True  # the best number is served and compared with no drafts
    timeout: float = 600.0
    """Seconds after which an engine that neither answers nor logs is given up."""
    gate_tokens: int | None = None  # as of `spark_prof.ab.setting.Options`


@dataclass(frozen=True)
class Variant:
    """One engine of a run."""

    drafts: tuple[int, ...]  # that its steps can have; none for an engine without a drafter
    name: str  # of its log

    @property
    def words(self) -> str:
        """The engine in words, as messages have it."""
        if not self.drafts:
            return "the engine without drafts"
        if len(self.drafts) > 1:
            return f"the engine with {self.drafts[0]} to {self.drafts[-1]} drafts"
        return f"the engine with {self.drafts[0]} drafts" if self.drafts[0] > 1 else (
            "the engine with 1 draft"
        )  # fmt: skip


PLAIN = Variant((), "without")


def drafter_of(command: EngineCommand) -> dict[str, Any]:
    """The drafter of a command, as its JSON has it; CommandError where it has none."""
    text = option_value(command.arguments, OPTION, "-sc")
    if text is None:
        raise CommandError(f"the command has no drafter as JSON; give it one, such as {_EXAMPLE}")
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CommandError(f"{OPTION} is no JSON ({error}); write it as {_EXAMPLE}") from error
    if not isinstance(config, dict):
        raise CommandError(f"{OPTION} is no JSON object; write it as {_EXAMPLE}")
    return config


def default_drafts(config: Mapping[str, Any], most: int) -> tuple[int, ...]:
    """The numbers of drafts to measure where none are named: 1 to `most`."""
    if config.get("method") in _FIXED_METHODS:
        most = min(most, 4)  # an engine each
    return tuple(range(1, most + 1))


def variants_of(config: Mapping[str, Any], drafts: Sequence[int]) -> tuple[Variant, ...]:
    """The engines that measure these numbers of drafts: one for all of them where vLLM can."""
    if max(drafts) > MOST_DRAFTS:
        raise CommandError(f"{max(drafts)} drafts in a step: at most {MOST_DRAFTS} are measured")
    fixed = config.get("parallel_drafting") or config.get("method") in _FIXED_METHODS
    if fixed or len(drafts) == 1:
        return fixed_variants(drafts)
    return (PLAIN, Variant((0, *drafts), "with"))


def fixed_variants(drafts: Sequence[int]) -> tuple[Variant, ...]:
    """An engine for each number of drafts."""
    return (PLAIN, *(Variant((count,), f"with-{count}") for count in drafts))


def blocks_of(drafts: Sequence[int], steps: int) -> tuple[tuple[int, int], ...]:
    """A generation in which each number of drafts has two blocks at the same mean place.

    blocks_of((0, 1, 2), 9) has 0, 1, 2, 2, 1, 0, so that what drifts in proportion to time, as the
    context does, is the same for all.
    """
    order = (*drafts, *reversed(drafts))
    return tuple((count, steps) for count in order)


def served_config(
    config: Mapping[str, Any], best: Mapping[int, int], most_requests: int | None = None
) -> dict[str, Any] | None:
    """The drafter's configuration that has the best number of drafts at each batch size.

    None where no drafts are best everywhere.

    Args:
        best: the best number by batch size, for those that were measured.
    """
    rest = drafter_like(config)
    counts = set(best.values())
    if not counts or counts == {0}:
        return None
    if len(counts) == 1:
        return {**rest, MOST: counts.pop()}
    return {**rest, MOST: max(counts), TABLE: table_of(best, most_requests)}


def table_of(best: Mapping[int, int], most_requests: int | None = None) -> list[list[int]]:
    """The table of drafts by batch size; between two that were measured the lower one's.

    table_of({1: 3, 8: 1}, 32) == [[1, 7, 3], [8, 32, 1]]
    """
    rows: list[list[int]] = []
    sizes = sorted(best)
    for at, size in enumerate(sizes):
        begin = size if at else 1
        end = sizes[at + 1] - 1 if at + 1 < len(sizes) else max(most_requests or size, size)
        if rows and rows[-1][2] == best[size]:
            rows[-1][1] = end
        else:
            rows.append([begin, end, best[size]])
    return rows


def with_drafter(command: EngineCommand, config: Mapping[str, Any] | None) -> tuple[str, ...]:
    """The command's arguments with another drafter, or with none."""
    return with_options(command.arguments, drafter_words(config))


def served_words(command: EngineCommand, config: Mapping[str, Any] | None) -> tuple[str, ...]:
    """The command line with another drafter, or with none."""
    words = ("vllm", "serve", *command.text) if command.form == "model" else command.text
    return with_options(words, drafter_words(config))


def drafter_words(config: Mapping[str, Any] | None) -> tuple[str, str]:
    """The option that gives an engine a drafter, or none."""
    return OPTION, "None" if config is None else json.dumps(config)


def drafter_like(config: Mapping[str, Any]) -> dict[str, Any]:
    """A drafter without what says how many tokens it drafts."""
    return {
        name: value for name, value in config.items() if name not in (TABLE, MOST, *_NOT_SERVED)
    }


def drafts_at(config: Mapping[str, Any], requests: int) -> int:
    """How many tokens a drafter drafts at a batch size; vLLM's table ends with its last row."""
    rows, most = config.get(TABLE), config.get(MOST)
    with suppress(TypeError, ValueError):  # of what vLLM refuses, too
        for begin, _, drafts in reversed(rows or ()):
            if begin <= requests:
                return int(drafts)
    return most if isinstance(most, int) else 0
