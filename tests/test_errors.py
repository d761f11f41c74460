"""What ends a command in one line."""

from __future__ import annotations

import errno

import pyarrow as pa

from spark_prof.errors import lacks_memory
from tests.rows import each_row

_THREAD = "Unknown error: Failed to launch worker thread: Resource temporarily unavailable"


@each_row(
    ("error", "lacking"),
    [
        (MemoryError(), True),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), True),
        (ImportError("libx.so: failed to map segment from shared object"), True),
        (RuntimeError("can't start new thread"), True),
        (pa.lib.ArrowException(_THREAD), True),
        (pa.lib.ArrowMemoryError("malloc of size 9 failed"), True),
        (OSError(errno.ENOENT, "No such file"), False),
        (RuntimeError("a table is damaged"), False),
    ],
)
def test_memory_that_ran_out_is_known_by_its_words(error: Exception, lacking: bool) -> None:
    assert lacks_memory(error) is lacking
