"""The questions that people with a slow FP4 model ask first, answered for one run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable

from spark_prof.analyzers.breakdown import KernelRow
from spark_prof.analyzers.classify.classifier import is_gemm
from spark_prof.analyzers.model import Answer, Report
from spark_prof.analyzers.roofline.roofline_rows import ENOUGH_KNOWN
from spark_prof.analyzers.step_time import HOST, LAUNCH_GAPS

_QUESTION = "Does it compute on tensor cores, and in which precision?"
_FP4 = "fp4"
_CORES = {"tensor-core": "tensor cores", "cuda-core": "CUDA cores", "copy": "copy engines"}
_FEW_BUSY = 0.5
_ALL = 0.995  # a share that is written as 100 %
_SMALLEST = 0.0005  # what would be written as nothing is left out


def tensor_cores(report: Report) -> Answer | None:
    """Engine, precision and weight format of the products; None where a run has none on a GPU."""
    decode = report.steps.decode > 0
    times = {row: row.decode_us if decode else row.us for row in report.kernels}
    products = [row for row in report.kernels if times[row] and is_gemm(row.name)]
    total = sum(times[row] for row in products)
    if not total or report.run.units == "op":
        return None
    parts = shares((_formats(row), times[row]) for row in products)
    everything = sum(times.values())
    steps = "decode kernel time" if decode else "kernel time"
    text = f"Matrix products take {100 * total / everything:.1f} % of the {steps}: {parts}."
    if any(row.weights == _FP4 for row in products) and not any(
        row.precision == _FP4 for row in products
    ):
        text += " FP4 is how weights are stored; no product computes in it."
    basis = shares((row.evidence, times[row]) for row in products)
    return Answer("tensor-cores", _QUESTION, text, f"Of the products' time: {basis}.")


def _formats(row: KernelRow) -> str:
    if row.engine == "unknown":
        return "on cores that nothing tells"
    stored = f" from {row.weights} weights" if row.weights and row.weights != row.precision else ""
    return f"{row.precision or 'unknown precision'} on {_CORES[row.engine]}{stored}"


def formats(report: Report) -> Answer | None:
    """In which formats the weights are read, and what changing formats costs."""
    roofline = report.roofline
    per_token = report.conversions.us_per_token
    if not report.steps.decode or (roofline is None and per_token is None):
        return None
    parts = []
    if roofline and roofline.weights:
        stored = shares(
            ("in fewer bits than BF16" if row.quantized else row.dtype, row.share)
            for row in roofline.weights
        )
        parts.append(f"Of the weights that a decode step streams: {stored}.")
    if per_token is not None:
        parts.append(
            f"Kernels that only change a format take {written_time(per_token)} a token."
            if per_token
            else "No kernel only changes a format."
        )
    if not parts:
        return None
    stored = "Storage types of the live model's weights; " if roofline and roofline.weights else ""
    basis = f"{stored}kernels by their names."
    basis = basis[0].upper() + basis[1:]
    return Answer("formats", "Does it stay in its format from end to end?", " ".join(parts), basis)


def memory(report: Report) -> Answer | None:
    """How far the decode steps are from what memory and arithmetic allow."""
    decode = report.decode_roofline
    bandwidth = report.roofline.ceilings.bandwidth if report.roofline else None
    if decode is None or decode.of_floor is None or bandwidth is None:
        return None
    if not decode.step_us or decode.floor_us is None or decode.known_share < ENOUGH_KNOWN:
        return None
    placed = decode.placed_us / decode.kernels_us
    text = (
        f"A decode step needs {decode.streamed_bytes / 1e9:.3f} GB from memory, "
        f"{written_time(decode.floor_us)} at the ceiling; it takes {written_time(decode.step_us)}: "
        f"{100 * decode.of_floor:.1f} % of it is the lower bound."
    )
    if decode.node_us and decode.of_bound and decode.nodes_of_distance is not None:
        text += (
            f" Its {decode.nodes:,.0f} nodes of CUDA graphs cost {written_time(decode.node_us)} at "
            f"least, {100 * decode.nodes_of_distance:.1f} % of what is beyond it: with them "
            f"{100 * decode.of_bound:.1f} %."
        )
    basis = (
        f"{bandwidth.value / 1e9:,.0f} GB/s: {bandwidth.source.rstrip('.')}. "
        f"Which kernel needs what is proven for {100 * placed:.0f} % of the kernel time."
    )
    return Answer("memory", "How far is it from the memory limit?", text, basis)


def shapes(report: Report) -> Answer | None:
    """Which part of the time runs on a GPU that its grids do not fill."""
    rows = report.shapes.rows if report.shapes else ()
    us_and_busy = [(row.us, row.busy) for row in rows if row.busy is not None]
    total = sum(us for us, _ in us_and_busy)
    if not total:
        return None
    covered = total / sum(row.us for row in rows)
    time = "decode kernel time" if report.steps.decode else "kernel time"
    if covered < ENOUGH_KNOWN:
        text = f"Not known: of {100 - 100 * covered:.0f} % of the {time} nothing tells it."
    else:
        idle = sum(us for us, busy in us_and_busy if busy < _FEW_BUSY) / total
        mean = sum(us * busy for us, busy in us_and_busy) / total
        text = (
            f"Of {100 * covered:.0f} % of the {time}, which can be judged, {100 * idle:.1f} % runs"
            if covered < _ALL
            else f"{100 * idle:.1f} % of the {time} runs"
        )
        which = "these" if covered < _ALL else "all"
        text += (
            f" on less than half of the GPU's multiprocessors; over {which} kernels "
            f"{100 * mean:.0f} % of them are busy."
        )
    basis = f"Grids, registers and shared memory of {100 * covered:.0f} % of the time."
    return Answer("shapes", "Do the kernels fill the GPU at this batch size?", text, basis)


def overhead(report: Report) -> Answer | None:
    """What the host and the gaps between kernels take."""
    step = report.decode_step
    if step is None or not step.step_us:
        return None
    cpu = report.run.units == "op"
    idle, unit = ("no operator runs for", "operators") if cpu else ("the GPU waits", "kernels")
    text = (
        f"Of a median decode step of {written_time(step.step_us)} {idle} "
        f"{written_time(step.us(LAUNCH_GAPS))} between {unit} and "
        f"{written_time(step.us(HOST))} before the first and after the last one."
    )
    basis = f"{step.steps} decode steps, each instant of them accounted for."
    return Answer("overhead", "What do launches and the host take?", text, basis)


def written_time(us: float) -> str:
    """A time as the tables of a report write it."""
    if us < 999.95:
        return f"{us:.2f} us" if us < 9.995 else f"{us:.1f} us"
    return f"{us / 1e3:.2f} ms"


def shares(parts: Iterable[tuple[str, float]]) -> str:
    """The parts of a whole by name, the largest first: 65.5 % bf16, 34.5 % fp4."""
    sums: dict[str, float] = defaultdict(float)
    for name, amount in parts:
        sums[name] += amount
    total = sum(sums.values())
    ordered = sorted(sums.items(), key=lambda item: -item[1])
    return ", ".join(
        f"{100 * amount / total:.1f} % {name}"
        for name, amount in ordered
        if total and amount >= _SMALLEST * total
    )


QUESTIONS: tuple[Callable[[Report], Answer | None], ...] = (
    tensor_cores, formats, memory, shapes, overhead,
)  # fmt: skip


def answers_of(report: Report) -> tuple[Answer, ...]:
    """The answers that the run can give, in the order of the questions."""
    return tuple(answer for ask in QUESTIONS if (answer := ask(report)))
