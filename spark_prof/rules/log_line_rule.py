"""What a row about lines of an engine's log is made of."""

from __future__ import annotations

from dataclasses import dataclass

from spark_prof.lazy_pattern import LazyPattern

TOPICS = (
    "engine", "setting", "kernel", "fallback", "refused", "config", "warning", "install",
    "execution", "attention", "collective", "cache", "padding", "speculation", "quality",
    "failure", "start", "harmless",
)  # fmt: skip
"""What a line can be about, in the order in which they are listed."""


@dataclass(frozen=True)
class LineRule:
    """One kind of line."""

    id: str  # words joined by hyphens
    topic: str  # one of `TOPICS`
    # Stands in every such line; what is searched for before the pattern is tried, so that rules
    # share words where they can.
    word: bytes
    pattern: LazyPattern  # its groups are any of value, format, layer and detail
    means: str  # what the line says, in one sentence
    examples: tuple[str, ...]  # real lines without their prefix; each is a test
    # What kind of layer it is about, where the line itself does not tell: linear or moe.
    layer: str = ""
    format: str = ""  # the same for the weights' format


def line_rule(
    name: str, about: str, word: str, pattern: str, means: str, *examples: str
) -> LineRule:
    """A row; behind its topic stand the layer, `-` for none, and the weights' format."""
    topic, layer, stored, *_ = (*about.replace("-", "").split(" "), "", "")
    lazy = LazyPattern(pattern)
    return LineRule(name, topic, word.encode(), lazy, means, examples, layer, stored)
