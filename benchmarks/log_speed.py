"""Time and memory of reading a long engine log, beside `grep` for one word in the same file.

The log is made of the lines that vLLM's engine and its web server write while they serve, which are
nearly all of a long one; what a start writes comes first.

usage: python benchmarks/log_speed.py [--megabytes 300]
"""

from __future__ import annotations

import argparse
import itertools
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from spark_prof.rules.engine_log_lines import LINE_RULES
from spark_prof.traces.readers.engine_log import read_engine_log

STATS = (
    "(APIServer pid=176) INFO 02-12 21:21:{second:02} [loggers.py:257] Engine 000: Avg prompt "
    "throughput: {number}.0 tokens/s, Avg generation throughput: {number}.5 tokens/s, Running: "
    "{number} reqs, Waiting: 35 reqs, GPU KV cache usage: 99.5%, Prefix cache hit rate: 0.1%\n"
)
ACCESS = (
    '(APIServer pid=176) INFO:     127.0.0.1:{number} - "POST /v1/completions HTTP/1.1" 200 OK\n'
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=300)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "serve.log"
        write(path, options.megabytes * 1_000_000)
        begin = time.perf_counter()
        log = read_engine_log(path)
        seconds = time.perf_counter() - begin
        begin = time.perf_counter()
        subprocess.run(["grep", "-c", "MoE backend", path], check=True, capture_output=True)
        grep = time.perf_counter() - begin
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{options.megabytes} MB, {log.lines:,} lines, {len(log.statements)} statements")
    print(f"read in {seconds:.1f} s, {options.megabytes / seconds:.0f} MB/s, {peak:.0f} MiB")
    print(f"grep for one word: {grep:.1f} s")
    return 0


def write(path: Path, size: int) -> None:
    with path.open("w") as file:
        for rule in LINE_RULES:
            file.writelines(f"INFO 02-12 21:20:00 [x.py:1] {line}\n" for line in rule.examples)
        for first in itertools.count(0, 2000):
            if file.tell() >= size:
                return
            for number in range(first, first + 2000):
                file.write(STATS.format(number=number % 3000, second=number % 60))
                file.write(ACCESS.format(number=number % 60_000))


if __name__ == "__main__":
    sys.exit(main())
