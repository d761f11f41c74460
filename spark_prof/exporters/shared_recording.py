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
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark_prof.analyzers.classify.classifier import find_rule
from spark_prof.ending import temporary_folder
from spark_prof.exporters.pseudonyms import Pseudonyms, is_machine
from spark_prof.exporters.shared_facts import (
    shared_command,
    shared_facts,
    shared_text,
    shared_value,
)
from spark_prof.rules.host_stages import RULES
from spark_prof.rules.known_words import unknown_parts
from spark_prof.traces.bundle import META_FILE, Bundle, Meta
from spark_prof.traces.readers.engine_log import statements_of
from spark_prof.traces.swapped import fact_of, swapped_places
from spark_prof.traces.tables import TABLES
from spark_prof.vocabulary import FINISHES, HOST_FIGURES, LIMITS

LEFT_OUT = ("markers", "clients", "requests")
"""Tables with names that the recorded program or its clients chose."""
_HASHES = re.compile(r"[0-9a-f]{16}(?:[ ,\n]+[0-9a-f]{16})*|")
_OF_HASHES = {("kernels", "cubin"), ("cubins", "hash"), ("functions", "hash")}
_OF_KERNELS = {
    ("kernels", "name"), ("functions", "name"), ("functions", "function"), ("cubins", "functions"),
    ("metrics", "name"),
}  # fmt: skip
_WORDS = {
    ("engine", "limit"): LIMITS, ("engine_requests", "finish"): FINISHES,
    ("host_figures", "name"): HOST_FIGURES,
}  # fmt: skip
_FRAMES = frozenset(frame for rule in RULES for frame in rule.examples)
_PART = r"[A-Za-z_<][\w<>-]*"
_FRAME = re.compile(rf"(?!.*\d{{4}}){_PART}(?:/{_PART})*(?:\.py)?:{_PART}(?:\.{_PART})*")
_OPCODES = re.compile(r"(?:[A-Z][A-Z0-9_]{0,15}(?:\.[A-Za-z0-9_]{1,16}){0,12} \d{1,9}\n?)*")
_LENGTH = re.compile(r"(?<![\dL])(?<!L[a-z])([1-9]\d{0,2})(?=[A-Za-z_])")
_NUMBERS = re.compile(r"(?:\d{1,13}(?:[,x -]{1,2}\d{1,13}){0,32})?")


def shared_table(table: str, rows: pa.Table, names: Pseudonyms) -> pa.Table:
    """A table without private texts; of a log the lines that a rule reads."""
    if table == "log":
        read = [bool(statements_of([message])) for message in rows["message"].to_pylist()]
        rows = rows.filter(pa.array(read, pa.bool_()))
        return _changed(rows, lambda _: lambda text: _log_line(text, names))

    def of_column(column: str) -> Callable[[str], str]:
        if (table, column) in _OF_HASHES:
            return lambda text: text if _HASHES.fullmatch(text) else names.name("id", text)
        if words := _WORDS.get((table, column)):
            return lambda text: text if text in words else names.name("text", text)
        if (table, column) == ("functions", "opcodes"):
            return lambda text: text if _OPCODES.fullmatch(text) else shared_code(text, names)
        if (table, column) in _OF_KERNELS:
            return lambda text: "\n".join(shared_kernel(part, names) for part in text.split("\n"))
        if (table, column) == ("stacks", "stack"):
            return lambda text: "\n".join(shared_frame(f, names) for f in text.split("\n"))
        return lambda text: shared_code(text, names)

    return _changed(rows, of_column)


def shared_kernel(name: str, names: Pseudonyms) -> str:
    """The name of a kernel: whole where a rule knows it, else without unknown words."""
    if _is_plain(name):
        return name
    cleaned = names.without_places(name) if _may_hide(name) else names.without_known(name)
    if cleaned == name and find_rule(name) is not None:
        return name
    if cleaned.startswith("_Z"):
        return _mangled(cleaned, names)
    return names.without_unknown(names.without_machines(cleaned))


def _mangled(symbol: str, names: Pseudonyms) -> str:
    """A symbol whose unknown identifiers have other names, of other lengths."""
    pieces, at = [], 0
    while length := _LENGTH.search(symbol, at):
        end = length.end() + int(length[1])
        word = symbol[length.end() : end]
        pieces.append(symbol[at : length.start()])
        if end > len(symbol) or not word.isidentifier():
            pieces.append(length[0])
            at = length.end()
            continue
        if unknown_parts(word):
            word = names.name("name", word).replace("-", "_")
        pieces.append(f"{len(word)}{word}")
        at = end
    return "".join(pieces) + symbol[at:]


def shared_code(text: str, names: Pseudonyms) -> str:
    """A module's path, a class, a type, a call of CUDA: without unknown words."""
    if _is_plain(text) or _NUMBERS.fullmatch(text):
        return text
    cleaned = names.without_places(text) if _may_hide(text) else names.without_known(text)
    return names.without_unknown(names.without_machines(cleaned))


def shared_frame(frame: str, names: Pseudonyms) -> str:
    """A frame of a stack: folders, file and function without unknown words.

    What is no frame of Python's names may be an address that its colons and dots would split.
    """
    if frame in _FRAMES:
        return frame
    if not _FRAME.fullmatch(frame) or is_machine(frame):
        return names.name("name", frame)
    file, _, function = frame.partition(":")
    folders = "/".join(shared_code(part.removesuffix(".py"), names) for part in file.split("/"))
    ending = ".py" if file.endswith(".py") else ""
    return f"{folders}{ending}:{'.'.join(shared_code(p, names) for p in function.split('.'))}"


def _log_line(text: str, names: Pseudonyms) -> str:
    statements = statements_of([text])
    shared = shared_text(text, names, read=True)
    again = statements_of([shared])
    # A line stays as far as its statement: what it tells must be what the report tells.
    return shared if [one.rule.id for one in statements] == [one.rule.id for one in again] else ""


def _is_plain(text: str) -> bool:
    if any(map(str.isdigit, text)) and is_machine(text):
        return False
    return text.replace("_", "").isalnum() and not unknown_parts(text) and len(text) < 200


def _may_hide(text: str) -> bool:
    """Whether a name of code may hold a place, an address or a secret."""
    return any(mark in text for mark in "/\\@.-") or ":" in text.replace("::", "") or " " in text


def _changed(rows: pa.Table, of_column: Callable[[str], Callable[[str], str]]) -> pa.Table:
    """The table with its texts changed, each of them once."""
    for index, field in enumerate(rows.schema):
        kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            change = of_column(field.name)
            texts = pc.dictionary_encode(rows.column(index).cast(pa.string())).combine_chunks()
            changed = [change(text) for text in texts.dictionary.to_pylist()]
            column = pa.array(changed, pa.string()).take(texts.indices)
            rows = rows.set_column(index, field, column.cast(field.type))
    return rows


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
