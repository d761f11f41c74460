"""One spelling for a kernel's name, however a profiler writes it.

nsys writes ``void at::native::f<(int)128, (bool)1>(T1)``, Nsight Compute ``void f<128, 1>(T1)``,
PyTorch ``void at::native::f<128, true>(int)``.
"""

from __future__ import annotations

import re
from functools import lru_cache

from spark_prof.analyzers.classify.names import NAME_LIMIT, split_name

_DROPPED = re.compile(
    r"\((?:(?:un)?signed )?(?:bool|char|short|int|long|long long)\)(?=-?\d)"  # a number's cast
    r"|(?<=\d)[uUlL]{1,3}\b"  # a number's type
    r"|<unnamed>::|\bunnamed>::|\(anonymous namespace\)::|\{anonymous\}::"
    r"|\b\w{1,256}::"  # namespaces
    r"|\bconst\b|\s"
)
_WORDS = {"true": "1", "false": "0"}
_WORD = re.compile(r"\b(?:true|false)\b")


@lru_cache(maxsize=16384)
def spelling(name: str) -> str:
    """The name without what profilers write differently: namespaces, casts, blanks, arguments.

    Two kernels may share it; a name longer than NAME_LIMIT is cut.
    """
    base, arguments = split_name(name[:NAME_LIMIT])
    plain = _WORD.sub(lambda match: _WORDS[match[0]], arguments)
    return f"{_DROPPED.sub('', base)}<{_DROPPED.sub('', plain)}>"
