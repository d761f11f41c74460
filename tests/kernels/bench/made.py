"""Results of races that nobody ran."""

from __future__ import annotations

from spark_prof.kernels.bench.results import OURS, Ceilings, Cell, Kind, Result, Spread
from spark_prof.kernels.tuning import Work

MARLIN, CUBLAS = "vLLM Marlin", "cuBLAS BF16"

CEILINGS = Ceilings(
    read=Spread(3e12, 2.9e12, 3.1e12, 20),
    copy=Spread(2.4e12, 2.3e12, 2.5e12, 20),
    launch_us=Spread(1.0, 0.9, 1.1, 20),
    read_by="torch.sum",
    copied_by="Tensor.copy_",
    launched="empty kernels",
)
"""3 bytes a picosecond: a megabyte takes a third of a microsecond."""


def cell(
    times: dict[str, float | None],
    *,
    kind: Kind = "dense",
    tokens: int = 1,
    megabytes: float = 30.0,
    is_lm_head: bool = False,
) -> Cell:
    """A piece of work and what everybody took for it in microseconds, None for who failed."""
    size = int(megabytes * 1e6)
    results = [
        Result(name, None, 0.5, "wrong result")
        if us is None
        else Result(name, Spread(us, 0.9 * us, 1.1 * us, 20), 0.001)
        for name, us in times.items()
    ]
    work = Work(kind, "nvfp4", 4096, int(size / 4096 / 0.5625), tokens)
    return Cell(kind, work, "a layer", size, size, is_lm_head, tuple(results), {"warps": 8})


def ours(us: float, **others: float) -> dict[str, float | None]:
    """Our time and Marlin's or cuBLAS's."""
    names = {"marlin": MARLIN, "cublas": CUBLAS}
    return {OURS: us, **{names[name]: other for name, other in others.items()}}
