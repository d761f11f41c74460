"""Writes a recording as one small file for somebody else, without what is private in it.

What stays: kernels, steps, ranges, modules, layers, versions, GPU and the model's configuration.
What goes: prompts (a recording has none), the command's words but for options and plain values,
paths but for their last part, names of hosts and users, addresses, environment variables that are
not the engine's, log lines that no rule reads, the NVTX ranges of the program, load tests and
machine code.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark_prof.ending import temporary_folder
from spark_prof.redact import redacted, redacted_text
from spark_prof.traces.bundle import META_FILE, Bundle
from spark_prof.traces.readers.engine_log import statements_of

_LEFT_OUT = ("markers", "clients", "requests")
"""Tables with names that the recorded program or its clients chose."""
_HIDDEN = "***"
_PART = r"[^\s/\\'\"=,:;()\[\]{}<>]"
_PATH = re.compile(rf"(?<![\w.:/-])(?:~|[A-Za-z]:)?[/\\](?:{_PART}+[/\\])*({_PART}*)")
_ADDRESS = re.compile(
    r"\b(?:\d{1,3}\.){3}\d{1,3}\b|\b[\w.+-]+@[\w-]+\.[\w.-]+\b"
    r"|(?<![\w:])(?:[0-9a-f]{0,4}:){2,}[0-9a-f]+"
)
_URL = re.compile(r"\b[a-z][a-z0-9+.-]*://[^\s'\"]+")
_PLAIN_VALUE = re.compile(r"[\w.,:+-]{1,64}(?:/[\w.+-]{1,64})?")
"""A number, a word or the name of a model: what an option takes that is not private."""
_ENGINE_VARIABLES = ("VLLM_", "CUDA_", "NCCL_", "TORCH_", "TRITON_", "FLASHINFER_", "NVIDIA_")
_PRIVATE_FACTS = ("pid", "run")
_HOSTS = ("host", "boot")  # what tells hosts apart: they get numbers


def share(bundle: Bundle, out: Path) -> None:
    """Writes a bundle as a zip that `report` and `explore` open, without what is private in it.

    The file is replaced whole or not at all.

    Raises:
        CommandError: a table is damaged.
        OSError: the file cannot be written.
    """
    hosts = _hosts(bundle)
    names = re.compile(
        "|".join(rf"(?<![\w-]){re.escape(name)}(?![\w-])" for name in hosts) or "(?!)"
    )

    def unnamed(text: str) -> str:
        """The text without paths and names of hosts; a file's name stays, and that of a model."""
        whole = _PATH.fullmatch(text)
        short = _PATH.sub(lambda found: found[1] if whole or "." in found[1] else _HIDDEN, text)
        return names.sub(lambda found: hosts[found[0]], short)

    def hide(text: str) -> str:
        """The same without secrets and addresses; names of kernels may look like one."""
        return unnamed(_ADDRESS.sub(_HIDDEN, _URL.sub(_HIDDEN, redacted_text(text))))

    with temporary_folder(parent=out.absolute().parent) as folder:
        packed = folder / "share.zip"
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
            rows = {}
            for name in bundle.meta.tables:
                table, _, rank = name.removesuffix(".parquet").rpartition("-rank")
                if table in _LEFT_OUT:
                    continue
                found = bundle.arrow(table, int(rank))
                found = _read_lines(found, hide) if table == "log" else _hidden(found, unnamed)
                rows[name] = found.num_rows
                pq.write_table(found, folder / name, compression="zstd")
                archive.write(folder / name, name)
                (folder / name).unlink()
            meta = replace(
                bundle.meta,
                command=tuple(_shown_words(bundle.meta.command)),
                settings=_values(bundle.meta.settings, hide),
                facts={name: _facts(found, hide) for name, found in bundle.meta.facts.items()},
                lost=tuple(map(hide, bundle.meta.lost)),
                tables=rows,
            )
            meta.write(folder)
            archive.write(folder / META_FILE, META_FILE)
        packed.replace(out)


def _hosts(bundle: Bundle) -> dict[str, str]:
    """A number for each name and boot of a host, the longest first."""
    facts = bundle.meta.facts.values()
    found = {str(fact[key]) for fact in facts for key in _HOSTS if fact.get(key)}
    ordered = sorted(found, key=lambda name: (-len(name), name))
    return {name: f"host-{number}" for number, name in enumerate(ordered, 1)}


def _shown_words(command: Iterable[str]) -> Iterable[str]:
    """The words of a command that are options, names of models, or plain values."""
    for word in redacted(list(command)):
        option, equals, value = word.partition("=") if word.startswith("-") else ("", "", word)
        last = value.rstrip("/").rpartition("/")[2] if value.startswith(("/", "~", ".")) else value
        plain = last if _PLAIN_VALUE.fullmatch(last) and not _ADDRESS.search(last) else _HIDDEN
        yield word if option and not equals else f"{option}{equals}{plain}"


def _facts(facts: Mapping[str, Any], hide: Callable[[str], str]) -> dict[str, Any]:
    found: dict[str, Any] = _values(
        {name: value for name, value in facts.items() if name not in _PRIVATE_FACTS}, hide
    )
    if isinstance(variables := found.get("environment"), dict):
        found["environment"] = {
            name: value for name, value in variables.items() if name.startswith(_ENGINE_VARIABLES)
        }
    return found


def _values(value: Any, hide: Callable[[str], str]) -> Any:
    """JSON's values with every text in them hidden; the keys are this package's or the model's."""
    if isinstance(value, str):
        return hide(value)
    if isinstance(value, Mapping):
        return {hide(str(key)): _values(entry, hide) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_values(entry, hide) for entry in value]
    return value


def _read_lines(log: pa.Table, hide: Callable[[str], str]) -> pa.Table:
    """The lines that a rule reads: others may be anything, a prompt for instance."""
    read = [bool(statements_of([message])) for message in log["message"].to_pylist()]
    return _hidden(log.filter(pa.array(read, pa.bool_())), hide)


def _hidden(rows: pa.Table, hide: Callable[[str], str]) -> pa.Table:
    """The table with its texts hidden, each of them once."""
    for index, field in enumerate(rows.schema):
        kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            texts = pc.dictionary_encode(rows.column(index).cast(pa.string())).combine_chunks()
            names = [hide(text) for text in texts.dictionary.to_pylist()]
            taken = pa.array(names, pa.string()).take(texts.indices)
            rows = rows.set_column(index, field, taken.cast(field.type))
    return rows
