"""What machine code says about kernels, as plain data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class OpcodeCount:
    """An opcode with its modifiers, and how often it stands in the code."""

    opcode: str
    count: int


@dataclass(frozen=True)
class CodeRow:
    """The machine code of one kernel.

    Attributes:
        name: of the kernel.
        function: its symbol.
        cubin: hash of the file that holds it.
        architecture: such as sm_120, empty where nothing tells.
        suffix: a where it was built for this architecture only, f for its family, plain for
            neither; empty where nothing tells.
        registers: per thread, 0 where unknown.
        instructions: how many there are.
        local_loads: instructions that load local memory: spilled registers, or local arrays.
        local_stores: those that store it.
        engine: tensor-core or cuda-core; None where the code does not tell.
        precision: of the tensor-core products, or int8 of dot products; None where it does not
            tell or there are several.
        precisions: all that were found.
        products: the tensor-core instructions, the most frequent first.
        reads: stored formats that the hardware turns into one to compute with.
        writes: formats that it writes.
        doubles: conversions to double precision.
        us: time of the kernel in the report, 0 outside of one.
        decode_us: what of it belongs to decode steps.
    """

    name: str
    function: str
    cubin: str
    architecture: str
    suffix: str
    registers: int
    instructions: int
    local_loads: int
    local_stores: int
    engine: str | None
    precision: str | None
    precisions: tuple[str, ...]
    products: tuple[OpcodeCount, ...]
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    doubles: int
    us: float = 0.0
    decode_us: float = 0.0

    @property
    def target(self) -> str:
        """Architecture and suffix as compilers spell them, such as sm_121a."""
        return self.architecture + (self.suffix if self.suffix in ("a", "f") else "")


@dataclass(frozen=True)
class Conflict:
    """A kernel whose name says something else than better evidence.

    Attributes:
        name: of the kernel.
        by_name: what its name says, such as tensor-core fp8.
        found: what was found.
        evidence: counter or sass.
        basis: the metric or the instructions that tell.
        us: time of the kernel in the report, 0 outside of one.
    """

    name: str
    by_name: str
    found: str
    evidence: str
    basis: str
    us: float = 0.0
