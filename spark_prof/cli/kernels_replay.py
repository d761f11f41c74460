"""`spark-prof kernels replay`: a program that runs one kernel by itself, to be profiled."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spark_prof.cli.kernels import DeviceOption, group, place_of
from spark_prof.cli.kernels_bench import FromOption, ModelOption, bench_request
from spark_prof.cli.options import check_folder, say, write_whole
from spark_prof.cli.written import AnswerOption, WriteReceipt, print_json_answer
from spark_prof.errors import CommandError

if TYPE_CHECKING:
    from spark_prof.analyzers.recorded_work import RecordedRun
    from spark_prof.kernels.bench.request import BenchRequest
    from spark_prof.kernels.bench.shapes import Piece
    from spark_prof.kernels.registry import ReplacementKernel

_PROCESSORS = 132
"""Of a GPU that is not here."""


@group.command(short_help="Write a program that runs one kernel by itself.")
def replay(
    name: Annotated[str, typer.Argument(help="A kernel of the list.")],
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Write to this file, which is not there yet.")
    ],
    source: FromOption = None,
    models: ModelOption = None,
    shape: Annotated[
        str | None,
        typer.Option(help="4096x2880; of experts 32x4x2880x2880: how many, top-k, sizes."),
    ] = None,
    weights: Annotated[
        str | None, typer.Option(help="Format of the weights, where the kernel has several.")
    ] = None,
    tokens: Annotated[
        int | None, typer.Option(min=1, max=16, help="Rows of activations; default 1.")
    ] = None,
    kind: AnswerOption = WriteReceipt.TEXT,
) -> None:
    """Write a program that times one kernel and checks it, with the ncu line that profiles it."""
    from spark_prof.kernels.registry import find

    (kernel,) = find(name)
    check_folder(out.absolute().parent)
    if os.path.lexists(out):
        raise CommandError(f"{out} exists, and you may have changed it; give another name")
    if weights is not None and weights not in kernel.formats:
        raise CommandError(f"{name} is for {' and '.join(kernel.formats)}, not {weights}")
    if kernel.layer not in ("matrix", "experts", "choice"):
        raise CommandError(f"{name}: only a matrix, experts and a choice of experts are replayed")
    if kernel.layer == "experts" and not {"nvfp4", "mxfp4"}.intersection(kernel.formats):
        raise CommandError(f"{name}: only experts in nvfp4 and mxfp4 are replayed")
    place_of(DeviceOption.CPU)  # PyTorch is there: configurations are its modules'
    from spark_prof.kernels.bench.replay import replay_file, shape_of_text

    request, recorded = None, None
    if shape is not None and not (source or models):
        piece = shape_of_text(kernel, shape, weights or kernel.formats[0])
        count = tokens or 1
    else:
        listed = [kernel] if kernel.layer != "choice" else list(find("moe-w4a16"))
        token_counts = [tokens] if tokens else []
        request, recorded = bench_request(listed, models or (), token_counts, source, name)
        piece = _one_of(request, kernel, shape, weights)
        count = tokens or (recorded.tokens[0] if recorded else 1)
    note = ""
    recorded_kernels = (
        request.recorded.get((piece, count)) if request and kernel.layer != "choice" else None
    )
    if recorded_kernels is not None:
        from spark_prof.dashboards.kernel_races import recorded_names

        names = recorded_names(recorded_kernels)
        note = f"The recording took {recorded_kernels.us:.2f} us a call for it: {names}."
    text = replay_file(kernel, piece, count, out.name, *_where(recorded), note)
    write_whole(out, text)
    run = f"python {shlex.quote(str(out))}"
    if not print_json_answer(kind, "kernels replay", out, "program", [note] if note else (), run):
        say(f"wrote {out}")


def _one_of(
    request: BenchRequest, kernel: ReplacementKernel, shape: str | None, weights: str | None
) -> Piece:
    """The only piece of work that fits.

    Raises:
        CommandError: none does, or several do.
    """
    from spark_prof.kernels.bench.replay import text_of_shape
    from spark_prof.kernels.bench.shapes import DenseShape

    fitting: dict[str, Piece] = {}
    for piece in request.pieces():
        piece_shape, form = piece
        shape_text = text_of_shape(kernel, piece_shape)
        slots = piece_shape.slots if isinstance(piece_shape, DenseShape) else {"moe", "router"}
        if kernel.slot not in slots or shape not in (None, shape_text):
            continue
        if kernel.layer == "choice":
            fitting.setdefault(f"--shape {shape_text}", piece)
        elif weights in (None, form):
            fitting.setdefault(f"--shape {shape_text} --weights {form}", piece)
    if len(fitting) == 1:
        return next(iter(fitting.values()))
    if not fitting:
        raise CommandError(f"no layer is one for {kernel.name}{f' of {shape}' if shape else ''}")
    raise CommandError(f"several layers fit; choose {' or '.join(fitting)}")


def _where(recorded: RecordedRun | None) -> tuple[str, str, int]:
    """The architecture, name and multiprocessors of a recording's GPU, else of the one here."""
    import torch

    from spark_prof.kernels.runtime.compiler import architecture_of

    if recorded is not None:
        major, _, minor = recorded.compute_capability.partition(".")
        has_capability = major.isdecimal() and minor.isdecimal()
        architecture = architecture_of((int(major), int(minor))) if has_capability else ""
        return architecture, recorded.gpu, recorded.multiprocessors or _PROCESSORS
    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        architecture = architecture_of(torch.cuda.get_device_capability())
        return architecture, properties.name, int(properties.multi_processor_count)
    return "", "", _PROCESSORS
