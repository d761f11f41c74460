"""Whether measured ceilings are believable, on the GPU of this machine.

A kernel that streams cannot be faster than the memory, and a product not faster than the tensor
cores: each ceiling is held against the data sheet. The read bandwidth is held against another
reader as well, cuBLAS's product of a large matrix with one vector, which is what decoding runs.

usage: python benchmarks/ceilings_truth.py [--keep FOLDER]

It fails where a ceiling lies outside its bounds, or the other reader is 3 % faster.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from statistics import median

from spark_prof.kernels.bench.ceilings import Device, room_of
from spark_prof.profiler.measure import measure
from spark_prof.rules.gpus import find_gpu
from spark_prof.traces.measured import keep_measured
from spark_prof.vocabulary import PRECISIONS

BANDWIDTHS = (0.7, 1.0)
PEAKS = (0.5, 1.02)
"""Shares of the data sheet; clocks above the boost clock make a peak a little higher."""

FASTER = 1.03


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", type=Path, help="write the file of ceilings to this folder")
    options = parser.parse_args()
    ceilings = measure(lambda line: print(line, file=sys.stderr))
    for entry in ceilings.measurements:
        print(f"{entry.quantity:13} {entry.value:12.4g} {entry.unit}   {entry.how}")
    print(*ceilings.notes, f"before: {ceilings.before}", f"after:  {ceilings.after}", sep="\n")
    if options.keep:
        print(keep_measured(ceilings, options.keep))
    gpu = find_gpu(ceilings.device, ceilings.compute_capability)
    if gpu is None:
        print(f"{ceilings.device} is not in the table of GPUs: nothing to hold it against")
        return 1
    failures = [
        f"{name}: {value / sheet:.2f} of the data sheet"
        for name, sheet, (lowest, highest) in (
            *((name, gpu.memory_bandwidth.value, BANDWIDTHS) for name in ("read", "copy")),
            *((name, gpu.peaks[name].value, PEAKS) for name in PRECISIONS if name in gpu.peaks),
        )
        if (value := ceilings.value(name)) is not None and not lowest <= value / sheet <= highest
    ]
    other, read = matrix_vector(), ceilings.value("read") or 0.0
    print(f"matrix-vector {other:12.4g} B/s   {other / read:.3f} of what read")
    if other > FASTER * read:
        failures.append("a product with a vector reads faster than the reader")
    print(*failures, sep="\n")
    return 1 if failures else 0


def matrix_vector() -> float:
    """Bytes per second that a product of a large BF16 matrix with one vector reads."""
    import torch

    device = Device("cuda")
    columns = 4096
    rows = room_of(device).buffer_bytes // (2 * columns)
    matrix = torch.randn(rows, columns, dtype=torch.bfloat16, device="cuda")
    vector = torch.randn(columns, dtype=torch.bfloat16, device="cuda")
    spoil = torch.empty(1 << 26, device="cuda")
    seconds = device.seconds(lambda: torch.mv(matrix, vector), lambda: spoil.fill_(0.0))
    return float(matrix.numel() * 2 / median(seconds))


if __name__ == "__main__":
    raise SystemExit(main())
