"""What a collective does, by its name."""

from __future__ import annotations

import re
from functools import lru_cache

from spark_prof.analyzers.classify.classifier import classify, split_name
from spark_prof.rules.collectives import KINDS

_COMPILED = tuple((kind, re.compile(pattern, re.IGNORECASE)) for kind, pattern, _ in KINDS)


@lru_cache(maxsize=16384)
def collective_kind(name: str) -> str | None:
    """The kind of a collective; "unknown" where the name tells no more, None for anything else.

    collective_kind("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(int)") == "all_reduce"
    """
    if classify(name).component != "collective":
        return None
    base = split_name(name)[0]
    return next((kind for kind, pattern in _COMPILED if pattern.search(base)), "unknown")
