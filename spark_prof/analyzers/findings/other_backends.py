"""Which of vLLM's kernels a component can have on this GPU, beside those that ran."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from spark_prof.analyzers.ceilings.schemes import SIXTEEN_BIT, bits_of
from spark_prof.analyzers.model import Report
from spark_prof.analyzers.swapped_run import runs_already
from spark_prof.rules.backend_order import NEWEST, KernelBackend, backends_for
from spark_prof.rules.backends import LibraryBackends, choice_of, family_of_kernel
from spark_prof.rules.environment import version_of
from spark_prof.rules.tune_candidates import FOREIGN

OPTIONS: Mapping[str, str] = {
    "experts": "--moe-backend",
    "attention": "--attention-backend",
    **dict.fromkeys(("qkv", "o_proj", "mlp", "shared_experts", "ssm"), "--linear-backend"),
}
"""The option that chooses the kernels of a component."""
_WIDE_CACHE = ("", "auto", "bfloat16", "float16")
_SLOW = frozenset(value for names in FOREIGN for value in names.split())


class OtherBackends(NamedTuple):
    """What may be asked for in place of the kernel that ran."""

    option: str
    stored: str  # the format of the weights; empty where it is not known
    capability: str  # the GPU's; empty where it is not known
    # Of the option, those that are known to run and that vLLM, this one or the newest, would take
    # before what ran; its favourite first.
    values: tuple[str, ...]
    complete: bool  # whether these are all that are known; else nothing can be said
    later: tuple[str, ...] = ()  # those that vLLM tries after what ran, or never by itself
    packages: tuple[str, ...] = ()  # that the first of the values needs and vLLM does not bring


def other_backends(report: Report, component: str, kernel: str = "") -> OtherBackends | None:
    """The backends that are known to run a component's weights here, but for the one that ran.

    None where no option of vLLM chooses the component's kernels.

    Args:
        kernel: the name of its GPU kernel, where the run's own words tell no backend.
    """
    option = OPTIONS.get(component)
    if option is None or runs_already(report.run.swaps, component):
        return None
    capability = report.gpu.compute_capability or ""
    attention = component == "attention"
    stored = _attention(report) if attention else stored_format(report, component)
    try:
        number = float(capability)
    except ValueError:
        return OtherBackends(option, stored, "", (), False)
    rows = backends_for(option, stored, number, version_of(report.run.vllm)[:2])
    rows = tuple(row for row in rows if row.value not in _SLOW)
    running = None if attention else _running_values(report, component, kernel, rows)
    named = {m.kernel for m in report.modules if m.component == "attention" and m.kernel}
    if attention and len(named) == 1:
        running = frozenset(row.value for row in rows if row.implementation in named) or None
    if running is None:
        return OtherBackends(option, stored, capability, (), False)
    newest = backends_for(option, stored, number, NEWEST)
    first = _before(rows, running) | _before(newest, running)
    candidates = dict.fromkeys(row.value for row in rows if row.value not in running)
    values = tuple(value for value in candidates if value in first)
    packages = next((row.packages for row in rows if values and row.value == values[0]), ())
    later = tuple(value for value in candidates if value not in first)
    return OtherBackends(option, stored, capability, values, True, later, packages)


def _before(rows: tuple[KernelBackend, ...], running: frozenset[str]) -> set[str]:
    """The values that a vLLM tries by itself before all that may have run."""
    place = next((i for i, row in enumerate(rows) if row.value in running), len(rows))
    return {row.value for row in rows[:place] if row.by_itself}


def advice(backends: OtherBackends, first: str = "Try") -> str:
    """What to try, as a sentence; the option with its value stands in it as it is typed."""
    option, stored, capability, values, complete, later, packages = backends
    if not complete:
        return f"{first} another kernel; which other {option} runs here is not known."
    of = f"{stored} weights" if option != "--attention-backend" else "this attention"
    where = f"{of} on compute capability {capability}"
    if not values and later:
        return (
            f"vLLM tries no other kernel before the one that runs {where}; after it come "
            f"{', '.join(later)}, of which none is known to be faster; "
            f"spark-prof ab --b={option}={later[0]} would tell."
        )
    if not values:
        return (
            f"No other {option} is known to run {where}: what is left are kernels from outside of "
            "vLLM (spark-prof kernels list)."
        )
    rest = (*values[1:], *later)
    fallbacks = f"; after it {', '.join(rest)}" if rest else ""
    install = f" (it needs {', '.join(packages)}, which vLLM does not bring)" if packages else ""
    return f"{first} {option}={values[0]}, which vLLM has for {where}{install}{fallbacks}."


def stored_format(report: Report, component: str) -> str:
    """The one format of a component's weights; empty where there are several or none."""
    dtypes = {row.dtype for row in report.streamed if row.component == component}
    [stored] = dtypes if len(dtypes) == 1 else [""]
    return {"bfloat16": "bf16", "float16": "bf16"}.get(stored, stored)


def kernel_families(report: Report, component: str, kernel: str = "") -> tuple[set[str], set[str]]:
    """What computes a component's weights: families by the engine's words, and by the trace.

    Args:
        kernel: the name of its GPU kernel, where it is known from elsewhere.
    """
    layers = [row for row in (report.audit.rows if report.audit else ()) if row.layer == component]
    families = {w.family for row in layers for w in row.witnesses if w.who == "engine"} - {""}
    trace = {family_of_kernel(kernel)} - {""}
    trace |= {w.family for row in layers for w in row.witnesses if w.who == "trace"}
    return families, trace


def _attention(report: Report) -> str:
    cache = report.audit.engine.kv_cache if report.audit else ""
    if cache not in _WIDE_CACHE:
        return ""
    return "sinks" if report.run.architecture == "GptOssForCausalLM" else "plain"


def choice_of_row(row: KernelBackend) -> LibraryBackends | None:
    """The library backends of a row, looked up by format and name first."""
    return choice_of(f"{row.stored}.{row.name}") or choice_of(row.value)


def _running_values(
    report: Report, component: str, kernel: str, rows: tuple[KernelBackend, ...]
) -> frozenset[str] | None:
    """The values that may be what ran, or that would not keep the scheme; None if unknown."""
    if not rows:
        return None
    layers = [row for row in (report.audit.rows if report.audit else ()) if row.layer == component]
    families, trace = kernel_families(report, component, kernel)
    if not families and not trace:
        return None
    # Where the checkpoint quantizes no activations, kernels with narrow ones compute otherwise.
    narrow = all(tuple(map(bits_of, row.asked)) == (4, 4) for row in layers) and bool(layers)
    values = set()
    for row in rows:
        choice = choice_of_row(row)
        if choice is None:
            continue
        same = choice.family in families if families else bool(trace & {*choice.traced})
        a4 = row.stored == "nvfp4" and choice.activations != SIXTEEN_BIT
        if same or (a4 and not narrow):
            values.add(row.value)
    return frozenset(values)
