"""How an engine runs a model: the one place that writes and reads a bundle's fact `execution`."""

from __future__ import annotations

import re
from dataclasses import dataclass

_GRAPHS = re.compile(r"(breakable )?CUDA graphs(?: \((\w{1,40})\))?")
_COMPILED = re.compile(r"torch\.compile(?: \((\w{1,40})\))?")
_RUNNER = re.compile(r"model runner (V\d)")
_EAGER, _ASYNCHRONOUS = "eager", "asynchronous scheduling"
_USUAL = "VLLM_COMPILE"


@dataclass(frozen=True)
class Execution:
    """How an engine runs a model.

    str(Execution(graphs=True, graph_mode="FULL", eager=True)) == "eager, CUDA graphs (FULL)"
    """

    compiled: str | None = None  # mode of torch.compile, empty where unknown; None without it
    graphs: bool = False  # whether CUDA graphs are replayed
    graph_mode: str = ""  # such as FULL_AND_PIECEWISE; empty where unknown
    breakable: bool = False  # whether those graphs may be left within a step
    eager: bool = False  # whether nothing is compiled
    runner: str = ""  # version of vLLM's model runner, such as V2
    asynchronous: bool = False  # whether the next batch is chosen while the GPU works
    rest: tuple[str, ...] = ()  # what else a file says

    @property
    def launches_alone(self) -> bool:
        """Whether the host launches every kernel of a step by itself."""
        return self.eager and not self.graphs

    @property
    def brief(self) -> str:
        """In words, without what every vLLM of these years has."""
        compiled = "" if self.compiled == _USUAL else self.compiled
        return str(
            Execution(compiled, self.graphs, self.graph_mode, self.breakable, self.eager,
                      rest=self.rest)
        )  # fmt: skip

    def __str__(self) -> str:
        """In words, as reports and bundles have it."""
        return ", ".join(
            (
                *([_EAGER] if self.eager else []),
                *(["torch.compile" + _mode(self.compiled)] if self.compiled is not None else []),
                *(["breakable " * self.breakable + "CUDA graphs" + _mode(self.graph_mode)]
                  if self.graphs else []),
                *self.rest,
                *([f"model runner {self.runner}"] if self.runner else []),
                *([_ASYNCHRONOUS] if self.asynchronous else []),
            )
        )  # fmt: skip

    @classmethod
    def read(cls, text: str) -> Execution:
        """What the words of a bundle or report say; what is none of them is its rest."""
        compiled, graphs, graph_mode, breakable, runner = None, False, "", False, ""
        parts = [part for part in text.split(", ") if part]
        rest = []
        for part in parts:
            if match := _GRAPHS.fullmatch(part):
                graphs, breakable, graph_mode = True, bool(match[1]), match[2] or ""
            elif match := _COMPILED.fullmatch(part):
                compiled = match[1] or ""
            elif match := _RUNNER.fullmatch(part):
                runner = match[1]
            elif part not in (_EAGER, _ASYNCHRONOUS):
                rest.append(part)
        return cls(
            compiled, graphs, graph_mode, breakable, _EAGER in parts, runner,
            _ASYNCHRONOUS in parts, tuple(rest),
        )  # fmt: skip


def _mode(name: str | None) -> str:
    return f" ({name})" if name else ""
