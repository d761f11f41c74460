"""Say from a name alone where a kernel ran, in which precision, and for what.

The rules are data, in rules.py. A name that no rule knows keeps engine and evidence "unknown"
and no component; a rule that cannot tell one of them leaves it open as well. Counters and
machine code are better evidence: where a bundle has them, they go before this.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from spark_prof.analyzers.classify.formats import arithmetic_in, stored_in
from spark_prof.analyzers.classify.names import NAME_LIMIT, split_name
from spark_prof.analyzers.classify.rules import IN_ARGUMENTS, IN_NAME, RULES, Rule


@dataclass(frozen=True)
class Label:
    """What a kernel's name says about it, in the words of spark_prof.vocabulary.

    `component` is None where the name alone does not tell; `evidence` is that of the engine,
    "name" or "unknown"; `weights` is None where the weights are stored in what it computes in.
    """

    component: str | None
    engine: str
    precision: str | None
    evidence: str
    conversion: str | None
    weights: str | None = None


_UNKNOWN = Label(None, "unknown", None, "unknown", None)

_BASE_LIMIT = 512
"""Characters of a base name that are searched; what tells a kernel's family stands before them."""

_COMPILED = tuple((rule, re.compile(rule.pattern), re.compile(rule.arguments)) for rule in RULES)


def classify(name: str) -> Label:
    """Label a GPU kernel, a memory copy or a CPU operator by its name."""
    return _classify(name[:NAME_LIMIT])[1]


def is_gemm(name: str) -> bool:
    """Whether the name is that of a matrix product, on any engine.

    The kernel that only adds up the parts of a split product is none.
    """
    rule = find_rule(name)
    return rule is not None and rule.gemm


def finishes_gemm(name: str) -> bool:
    """Whether the kernel of that name adds up the parts of the product before it."""
    rule = find_rule(name)
    return rule is not None and rule.finishes_gemm


def is_attention(name: str) -> bool:
    """Whether the name is that of a layer's attention, which each layer has once.

    What goes with it, such as the indexer of a sparse attention, is none.
    """
    rule = find_rule(name)
    return rule is not None and rule.component == "attention" and not rule.helps


def find_rule(name: str) -> Rule | None:
    """The first rule that knows the name."""
    return _classify(name[:NAME_LIMIT])[0]


@lru_cache(maxsize=16384)
def _classify(name: str) -> tuple[Rule | None, Label]:
    base, arguments = split_name(name)
    base = base[:_BASE_LIMIT]
    for rule, pattern, arguments_pattern in _COMPILED:
        if pattern.search(base) and arguments_pattern.search(arguments):
            return rule, _label(rule, base, arguments)
    return None, _UNKNOWN


def _label(rule: Rule, base: str, arguments: str) -> Label:
    """What the rule says about a name of its family."""
    texts = {IN_NAME: base, IN_ARGUMENTS: arguments}
    precision, weights = rule.precision, rule.weights
    if precision in texts:
        precision = arithmetic_in(texts[precision], rule.engine)
    if weights in texts:
        weights = stored_in(texts[weights], precision)
    evidence = "unknown" if rule.engine == "unknown" else "name"
    return Label(rule.component, rule.engine, precision, evidence, rule.conversion, weights)
