"""In which order vLLM tries its kernels, on which GPU, by version: read from a generated table.

`python -m scripts.vllm_oracles FOLDER --write` derives `vllm_backends.json` from vLLM's sources;
what stands here beside it is judgement, and every row of that says where it comes from.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import msgspec

from spark_prof.rules.environment import Version, version_of

OLDEST, NEWEST = (0, 24), (0, 33)
"""The first and the last vLLM whose sources the table was read from."""

WITH_VLLM = ("flashinfer", "humming", "deep_gemm", "triton_kernels")
"""Packages that vLLM's CUDA wheels carry or require (their metadata, 0.24 to 0.33)."""

MET = frozenset({"has_nvidia_artifactory()"})
"""Conditions that hold of an ordinary installation: FlashInfer's binaries are in flashinfer-cubin,
which vLLM requires."""

_B200 = ((100, 109),)

JUDGED: tuple[tuple[str, str, str, tuple[tuple[int, int], ...], str], ...] = (
    ("--linear-backend", "flashinfer_trtllm", "nvfp4", _B200,
     "vLLM's test does not look at the GPU; FlashInfer has its TensorRT-LLM kernels for 10.x"),
    ("--linear-backend", "flashinfer_cudnn", "nvfp4", _B200,
     "vLLM's test does not look at the GPU, and no other one was told to run"),
    ("--linear-backend", "fbgemm", "nvfp4", _B200,
     "vLLM's test does not look at the GPU; FBGEMM's FP4 kernels are for 10.x"),
    ("--linear-backend", "flashinfer_cutlass", "mxfp4_w4a4", _B200,
     "on 12.x vLLM says yes, and FlashInfer 0.6.12, which vLLM 0.24 pins, has no kernel"),
    ("--moe-backend", "triton_unfused", "mxfp4", (),
     "vLLM leaves it out of its own choice for a bug with MTP (oracle/mxfp4.py)"),
    ("--moe-backend", "batched_triton", "bf16", (),
     "it is for batches of experts that GPUs send each other"),
)  # fmt: skip
"""Option, value, format, the only capabilities on which a value counts as one that runs, and why.
Where the sources' own test says no, it does not run anyway."""


@dataclass(frozen=True)
class KernelBackend:
    """A value of one of vLLM's options that chooses kernels, for one format of weights.

    Of attention the format is `plain`, `sinks` where the model has attention sinks, or `mla`.
    """

    option: str  # --linear-backend, --moe-backend or --attention-backend
    value: str
    stored: str
    name: str = ""  # as the log has it: member of the enumeration, of linear layers the class
    packages: tuple[str, ...] = ()  # that it needs beside those that come with vLLM
    by_itself: bool = True  # whether vLLM takes it without being asked
    implementation: str = ""  # of attention, the class that vLLM's layers name


@dataclass(frozen=True)
class Order:
    """What one vLLM tries for one format on one GPU."""

    option: str
    stored: str
    since: Version
    until: Version
    capabilities: tuple[int, ...]  # 121 is 12.1
    source: str  # file under vllm/
    tries: tuple[tuple[str, str], ...]  # name, and yes, needs (packages), unknown or no; in order
    backends: tuple[KernelBackend, ...]  # those that run, in that order; asked-for ones last
    takes_off: tuple[tuple[str, str, tuple[str, ...]], ...]
    """What takes names off that list: a variable and its value, or something about the model and
    nothing, and the names."""


@cache
def orders() -> tuple[Order, ...]:
    """The whole table."""
    return tuple(_orders())


@cache
def known_names() -> dict[str, tuple[str, ...]]:
    """Every name of those vLLMs, on any platform, by kind.

    Of experts `Enumeration.MEMBER`, of linear layers classes of kernels, of attention members.
    """
    return {kind: tuple(names) for kind, names in _read()["names"].items()}


def order_of(option: str, stored: str, capability: float | None, vllm: Version) -> Order | None:
    """What a vLLM tries; None where its sources, or such a GPU, were not read.

    order_of("--moe-backend", "nvfp4", 9.0, (0, 33)).backends[0].value == "humming"
    """
    number = 0 if capability is None else round(10 * capability)
    for row in _by_option().get((option, stored), ()):
        if number in row.capabilities and row.since <= vllm <= row.until:
            return row
    return None


def backends_for(
    option: str, stored: str, capability: float | None, vllm: Version
) -> tuple[KernelBackend, ...]:
    """The values of an option that run weights of a format on a GPU, in the order of that vLLM.

    None where nothing is known. Which FP8 kernel runs depends on how the scales are stored: `fp8`
    has only those that run with scales for tensors, channels and blocks alike.

        backends_for("--moe-backend", "nvfp4", 9.0, (0, 26))[0].value == "marlin"
    """
    kinds = ("fp8", "fp8_channel", "fp8_block") if stored == "fp8" else (stored,)
    orders_of_kind = [order_of(option, kind, capability, vllm) for kind in kinds]
    first = orders_of_kind[0]
    if first is None or None in orders_of_kind:
        return ()
    in_all = set.intersection(*({b.value for b in row.backends} for row in orders_of_kind if row))
    return tuple(row for row in first.backends if row.value in in_all)


def values_of(option: str) -> tuple[str, ...]:
    """Every value of an option that some vLLM of the table runs on some NVIDIA GPU."""
    rows = (b for row in orders() if row.option == option for b in row.backends)
    return tuple(dict.fromkeys(row.value for row in rows))


@cache
def _by_option() -> dict[tuple[str, str], list[Order]]:
    orders_of: dict[tuple[str, str], list[Order]] = {}
    for row in orders():
        orders_of.setdefault((row.option, row.stored), []).append(row)
    return orders_of


@cache
def _read() -> dict[str, Any]:
    text = resources.files("spark_prof.rules").joinpath("vllm_backends.json").read_bytes()
    table: dict[str, Any] = msgspec.json.decode(text)
    return table


def _orders() -> Iterator[Order]:
    table = _read()
    last = {version_of(version): version for version in table["versions"]}  # of each the last patch
    for row in table["rows"]:
        inside = table["versions"]
        inside = inside[inside.index(row["since"]) : inside.index(row["until"]) + 1]
        covered = [minor for minor, version in last.items() if version in inside]
        if not covered or "tries" not in row:
            continue
        yield Order(
            row["option"], row["stored"], covered[0], covered[-1], tuple(row["capabilities"]),
            row["source"],
            tuple((name, runs) for name, runs in row["tries"]),
            tuple(sorted(
                (_backend(row, value) for value in row["values"] if _counts(row, value)),
                key=lambda backend: not backend.by_itself,
            )),
            tuple((name, value, tuple(releases)) for name, value, releases in row["variables"]),
        )  # fmt: skip


def _backend(row: dict[str, Any], value: dict[str, Any]) -> KernelBackend:
    packages = tuple(package for package in value.get("packages", ()) if package not in WITH_VLLM)
    # Its place in the list is of no use to it where it runs only for being asked for.
    by_itself = value.get("by_itself", True) and dict(row["tries"]).get(value["backend"]) != "no"
    return KernelBackend(
        row["option"], value["value"], row["stored"], value["backend"], packages, by_itself,
        value.get("implementation", ""),
    )  # fmt: skip


def _counts(row: dict[str, Any], value: dict[str, Any]) -> bool:
    """Whether a value is known to run on all of the row's GPUs."""
    met = set(value.get("conditions", ())) <= MET
    if value["runs"] not in ("yes", "needs") and not (value["runs"] == "unknown" and met):
        return False
    for option, name, stored, spans, _ in JUDGED:
        if (option, name, stored) == (row["option"], value["value"], row["stored"]):
            return all(any(a <= n <= b for a, b in spans) for n in row["capabilities"])
    return True
