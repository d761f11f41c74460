"""`spark-prof classify`: where kernels run, in which precision, and how that is known."""

from __future__ import annotations

import re
from os.path import exists
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spark_prof.cli.options import FormatOption, Limit, OutOption, Section, laid_out, put, say
from spark_prof.errors import CommandError

if TYPE_CHECKING:
    from spark_prof.analyzers.classify.listing import Classified

_IN_NAMES = re.compile(r"::|[<>()]")
"""What a kernel's name has, and a path hardly."""


def classify(
    source: Annotated[
        str | None,
        typer.Argument(help="A bundle, a trace, a cubin, a folder of cubins, or a library."),
    ] = None,
    name: Annotated[
        list[str] | None, typer.Option(help="A kernel's name instead of a source; repeatable.")
    ] = None,
    format: FormatOption = None,  # noqa: A002 - the option's name is the contract's
    out: OutOption = None,
    limit: Limit = None,
    section: Section = None,
    arch: Annotated[
        str | None,
        typer.Option(
            help="Of a library: the GPU it is for, such as sm_121; by default its newest."
        ),
    ] = None,
) -> None:
    """Say of each kernel: tensor cores or CUDA cores, which precision, on what evidence."""
    if (source is None) == (not name):
        raise CommandError("give either a source or --name KERNEL_NAME; see spark-prof classify -h")
    if source and _IN_NAMES.search(source) and not exists(source):
        raise CommandError(f"{source:.200} is no file; for a kernel's name: --name '{source:.200}'")
    drawn_as = laid_out(format, out, limit, section)
    from spark_prof.dashboards.classification import render_classification

    rows, lost = of_names(name) if name else of_source(source or "", arch)
    for line in lost:
        say(line)
    title = source or "kernels by name"
    drawn = render_classification(title, rows, drawn_as)
    put(drawn.removesuffix("\n") if out is None else drawn, out)


def of_names(names: list[str]) -> tuple[tuple[Classified, ...], tuple[str, ...]]:
    """Kernels by what their names tell, and what was lost."""
    from spark_prof.analyzers.classify.listing import list_names

    return list_names(names), ()


def of_source(source: str, arch: str | None) -> tuple[tuple[Classified, ...], tuple[str, ...]]:
    """Kernels of a recording, a trace or machine code, and what was lost."""
    from spark_prof.analyzers.classify.listing import list_bundle
    from spark_prof.datasets.opened import opened
    from spark_prof.traces.resolve import MachineCodeSource, fetched

    with fetched(source) as fetched_source:
        if isinstance(fetched_source, MachineCodeSource):
            return _of_code(fetched_source.path, arch)
        if arch:
            raise CommandError(f"{source} is no library; --arch chooses among the code of one")
        with opened(fetched_source) as bundle:
            return list_bundle(bundle)


def _of_code(path: Path, arch: str | None) -> tuple[tuple[Classified, ...], tuple[str, ...]]:
    from spark_prof.analyzers.classify.listing import list_code
    from spark_prof.traces.code_files import code_files
    from spark_prof.traces.machine_code import read_machine_code

    with code_files(path, arch) as files:
        code = read_machine_code(files.cubins)
        rows = list_code(code.rows, files.compiled_by_driver)
        if not rows:
            raise CommandError(next(iter(code.lost), f"{path} holds no kernel"))
        return rows, (*files.remarks, *code.lost)
