"""Sections about this machine: what is installed, and for which GPUs its libraries were built."""

from __future__ import annotations

from spark_prof.analyzers.fallbacks.machine_checks import Machine
from spark_prof.dashboards.formats import MISSING, clean, shorten
from spark_prof.dashboards.section import Column, Section

_LONGEST = 300


def installed(machine: Machine) -> Section:
    """Lists GPU, driver, packages and tools; what is missing has a dash."""
    gpu = f"{machine.gpu} (compute capability {machine.capability})" if machine.gpu else ""
    fields = [
        ("GPU", gpu),
        ("Driver", machine.driver),
        *((package.name, package.version) for package in machine.packages),
        ("nvcc", " ".join(filter(None, (machine.nvcc, machine.cuda)))),
        ("libcupti", machine.cupti),
    ]
    rows = tuple(
        (clean(name), shorten(clean(value), _LONGEST) or MISSING) for name, value in fields
    )
    columns = (Column(""), Column("", "prose"))
    return Section("installed", "What is installed here", columns, rows)


def libraries(machine: Machine) -> Section:
    """Lists libraries with GPU code and their architectures."""
    rows = tuple(
        (
            clean(library.path),
            clean(", ".join(library.architectures)) or MISSING,
            clean(", ".join(library.ptx)) or MISSING,
        )
        for library in machine.libraries
    )
    columns = (Column("Library", "name"), Column("Machine code", "prose"), Column("PTX"))
    intro = (
        "An f or a marks code with the features of a family or of one architecture, such as FP4 "
        "products; of architectures of another generation than this GPU's an f does not show.",
    )
    return Section("libraries", "What the libraries were built for", columns, rows, intro)


def notes(machine: Machine) -> Section:
    """What could not be looked at."""
    rows = tuple((shorten(clean(line), _LONGEST),) for line in machine.lost)
    return Section("machine-notes", "What could not be looked at", (Column("", "prose"),), rows)
