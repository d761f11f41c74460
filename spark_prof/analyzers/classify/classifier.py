"""Say from a name alone where a kernel ran, in which precision, and for what.

The rules are data, in rules.py. A name that no rule knows keeps engine and evidence "unknown"
and no component; a rule that cannot tell one of them leaves it open as well. Counters and
machine code are better evidence: where a bundle has them, they go before this.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from spark_prof.analyzers.classify.names import NAME_LIMIT, split_name
from spark_prof.analyzers.classify.rules import RULES, Rule

__all__ = ["Label", "classify", "find_rule", "finishes_gemm", "is_gemm"]


@dataclass(frozen=True)
class Label:
    """What a kernel's name says about it, in the words of spark_prof.vocabulary.

    `component` is None where the name alone does not tell; `evidence` is that of the engine,
    "name" or "unknown".
    """

    component: str | None
    engine: str
    precision: str | None
    evidence: str
    conversion: str | None


_UNKNOWN = Label(None, "unknown", None, "unknown", None)

_COMPILED = tuple((rule, re.compile(rule.pattern), re.compile(rule.arguments)) for rule in RULES)

# Types as C++, Triton, CUTLASS and cuBLAS write them, and the numbers by which vLLM's Marlin
# kernels name theirs (vllm::ScalarType::id: exponent, mantissa, sign, ... packed in one integer).
_TYPE = re.compile(
    r"(?P<fp8>(?<![uU])e[45]m[32]|Float8|fp8|\b2814749767172868[lL]?\b)"
    r"|(?P<fp4>e2m1|fp4)"
    r"|(?P<bf16>bf16|bfloat16|BFloat16|\b1125899906909960[lL]?\b)"
    r"|(?P<tf32>tf32|tfloat32)"
    r"|(?P<fp16>fp16|(?<![A-Za-z0-9])f16|f16f16|__half\b|\bhalf\b|half_t\b|::Half\b"
    r"|\b1125899906910725[lL]?\b)"
    r"|(?P<int8>(?<!u)int8|i8i8|s8s8|signed char|\b1125899906909952[lL]?\b)"
    r"|(?P<fp32>\bfloat\b)"
)


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


def find_rule(name: str) -> Rule | None:
    """The first rule that knows the name."""
    return _classify(name[:NAME_LIMIT])[0]


@lru_cache(maxsize=16384)
def _classify(name: str) -> tuple[Rule | None, Label]:
    base, arguments = split_name(name)
    for rule, pattern, arguments_pattern in _COMPILED:
        if pattern.search(base) and arguments_pattern.search(arguments):
            precision = rule.precision
            if rule.precision_from_arguments:
                precision = _precision(arguments, rule.engine)
            elif rule.precision_from_name:
                precision = _precision(base, rule.engine)
            evidence = "unknown" if rule.engine == "unknown" else "name"
            label = Label(rule.component, rule.engine, precision, evidence, rule.conversion)
            return rule, label
    return None, _UNKNOWN


def _precision(text: str, engine: str) -> str | None:
    """The operands' type: the first that the text mentions, unless that does not settle it."""
    found = [match.lastgroup for match in _TYPE.finditer(text)]
    if not found:
        return None
    # FP4 beside FP8 runs at either rate, and float operands on tensor cores are not fp32.
    if {"fp4", "fp8"} <= set(found) or (found[0] == "fp32" and engine != "cuda-core"):
        return None
    return found[0]
