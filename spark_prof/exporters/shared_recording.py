"""Writes a recording as one small file for somebody else: what is not known to be harmless goes.

What stays: kernels, steps, modules, layers, versions, GPU, options by name, the model's shape.
What gets another name, the same wherever it stands: paths, hosts, users, models that are not on
the hub, addresses, values and words that vLLM, CUDA and this package do not have.
What is left out: prompts (a recording has none), other variables of the environment, log lines that
no rule reads, NVTX ranges of the program, load tests and machine code.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from spark_prof.analyzers.classify.classifier import find_rule
from spark_prof.ending import temporary_folder
from spark_prof.exporters.pseudonyms import Pseudonyms
from spark_prof.exporters.shared_facts import (
    shared_command,
    shared_facts,
    shared_text,
    shared_value,
)
from spark_prof.exporters.shared_tables import LEFT_OUT, shared_table
from spark_prof.traces.bundle import META_FILE, Bundle, Meta
from spark_prof.traces.swapped import fact_of, swapped_places
from spark_prof.traces.tables import TABLES

_RUN = re.compile(r"[0-9a-f]{8,32}")
_TIME = re.compile(r"[\dT:.+Z -]{0,40}")
_STATES = frozenset({"complete", "interrupted", "salvaged"})
_NAMED = 12  # names that no rule knows are listed, so many of them


@dataclass(frozen=True)
class Sent:
    """What a shared recording holds, and what of the recording it does not."""

    command: tuple[str, ...]
    models: tuple[str, ...]
    versions: tuple[str, ...]  # GPUs and versions, such as "vllm 0.26.0"
    texts: Mapping[str, int]  # distinct texts of each table
    unknown_kernels: tuple[str, ...]  # names of kernels that no rule knows, as they are sent
    unknown_kernel_count: int
    replaced: Mapping[str, int]  # private texts that got another name, by kind
    left_out: Mapping[str, int]  # rows of tables, variables and lines that are not in it


class SharedRecording:
    """A recording as somebody else may see it: first what would be sent, then the file."""

    def __init__(self, bundle: Bundle) -> None:
        self._bundle = bundle
        self._names = Pseudonyms()
        self._texts: dict[str, int] = {}
        self._kernels: set[str] = set()
        self._left_out: dict[str, int] = {}
        # A private name may be known only after other texts were read that have it as well.
        for again in (False, True):
            self._names = self._names.settled()
            self._meta = _shared_meta(bundle, self._names)
            for _, table, rank in self._tables():
                columns = _text_columns(table)
                if columns:
                    rows = bundle.arrow(table, rank, columns)
                    shared = shared_table(table, rows, self._names)
                    if again:
                        self._count(table, rows, shared)
        self._meta = _shared_meta(bundle, self._names)

    @property
    def sent(self) -> Sent:
        """What the file would hold."""
        facts = self._meta.facts.values()
        unknown = sorted(name for name in self._kernels if name and find_rule(name) is None)
        versions: dict[str, None] = {}
        for fact in facts:
            gpu = fact.get("gpu")
            if isinstance(gpu, Mapping):
                named = [gpu.get("name"), gpu.get("driver") and f"driver {gpu['driver']}"]
                versions.update(dict.fromkeys(str(text) for text in named if text))
            for key in ("vllm", "torch", "cuda", "flashinfer"):
                if fact.get(key):
                    versions[f"{key} {fact[key]}"] = None
        models: dict[str, None] = {}
        for fact in facts:
            config = fact.get("model_config")
            kinds = config.get("architectures") if isinstance(config, Mapping) else None
            for text in (fact.get("model"), *(kinds if isinstance(kinds, list) else ())):
                if text:
                    models[str(text)] = None
        before = self._bundle.meta.facts.values()
        variables = sum(
            len(set(_variables(old)) - set(_variables(new)))
            for old, new in zip(before, facts, strict=True)
        )
        left = {
            table: rows
            for name, rows in self._bundle.meta.tables.items()
            if (table := name.partition("-rank")[0]) in LEFT_OUT and rows
        }
        return Sent(
            command=self._meta.command,
            models=tuple(models),
            versions=tuple(versions),
            texts=dict(self._texts),
            unknown_kernels=tuple(unknown[:_NAMED]),
            unknown_kernel_count=len(unknown),
            replaced=self._names.counts,
            left_out={**left, **self._left_out, **({"variables": variables} if variables else {})},
        )

    def write(self, out: Path) -> None:
        """Writes the zip that `report` and `explore` open, whole or not at all.

        Raises:
            CommandError: a table is damaged.
            OSError: the file cannot be written.
        """
        with temporary_folder(parent=out.absolute().parent) as folder:
            packed = folder / "share.zip"
            with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
                rows = {}
                for name, table, rank in self._tables():
                    shared = shared_table(table, self._bundle.arrow(table, rank), self._names)
                    rows[name] = shared.num_rows
                    pq.write_table(shared, folder / name, compression="zstd")
                    archive.write(folder / name, name)
                    (folder / name).unlink()
                replace(self._meta, tables=rows).write(folder)
                archive.write(folder / META_FILE, META_FILE)
            packed.replace(out)

    def _tables(self) -> Iterator[tuple[str, str, int]]:
        for name in sorted(self._bundle.meta.tables, key=lambda name: not name.startswith("log-")):
            table, _, rank = name.removesuffix(".parquet").rpartition("-rank")
            if table not in LEFT_OUT:
                yield name, table, int(rank)

    def _count(self, table: str, rows: pa.Table, shared: pa.Table) -> None:
        if table == "log" and rows.num_rows > shared.num_rows:
            left = rows.num_rows - shared.num_rows
            self._left_out["log lines"] = self._left_out.get("log lines", 0) + left
        column = {"kernels": "name", "modules": "path", "layers": "path", "log": "message"}.get(
            table
        )
        if column:
            texts = {str(text) for text in shared[column].unique().to_pylist()}
            self._texts[table] = self._texts.get(table, 0) + len(texts)
            if table == "kernels":
                self._kernels |= texts


def share(bundle: Bundle, out: Path) -> Sent:
    """Writes a bundle for somebody else, and says what it holds.

    >>> share(Bundle(Path("my-run")), Path("my-run.zip")).replaced  # doctest: +SKIP
    {'path': 3, 'host': 1}
    """
    shared = SharedRecording(bundle)
    shared.write(out)
    return shared.sent


def _text_columns(table: str) -> list[str]:
    def of_text(kind: pa.DataType) -> bool:
        return bool(pa.types.is_string(kind.value_type if pa.types.is_dictionary(kind) else kind))

    return [column.name for column in TABLES[table].columns if of_text(column.type)]


def _variables(facts: Mapping[str, Any]) -> Mapping[str, Any]:
    environment = facts.get("environment")
    return environment if isinstance(environment, Mapping) else {}


def _shared_meta(bundle: Bundle, names: Pseudonyms) -> Meta:
    meta = bundle.meta
    models = {str(fact["model"]) for fact in meta.facts.values() if fact.get("model")}
    for model in sorted(models):
        names.model(model)
    # What a result beside the recording says of its swaps is not beside the file that is sent.
    swap_facts = {f"rank{rank}": fact_of(swapped_places(bundle, rank)) for rank in bundle.ranks}
    facts = {
        _process(name, names): shared_facts({**fact, **swap_facts.get(name, {})}, names)
        for name, fact in meta.facts.items()
    }
    settings = shared_value(meta.settings, names)
    run = meta.settings.get("run")
    if isinstance(run, str) and _RUN.fullmatch(run):
        settings["run"] = run
    return replace(
        meta,
        spark_prof=shared_text(meta.spark_prof, names),
        state=meta.state if meta.state in _STATES else "complete",
        created=meta.created if _TIME.fullmatch(meta.created) else "",
        backend=shared_text(meta.backend, names),
        command=tuple(shared_command(meta.command, names)),
        settings=settings,
        facts=facts,
        lost=tuple(shared_text(line, names) for line in meta.lost),
    )


def _process(name: str, names: Pseudonyms) -> str:
    return name if re.fullmatch(r"[a-z]{1,16}\d{0,6}", name) else names.name("name", name)
