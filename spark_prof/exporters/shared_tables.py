"""What a shared recording keeps of the texts in its tables: names of code, columns of few words.

Names of kernels that a rule knows stay as they are but for paths, hosts and secrets; in all other
names of code a word that vLLM, CUDA and this package do not have gets another name.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

from spark_prof.analyzers.classify.classifier import find_rule
from spark_prof.exporters.pseudonyms import Pseudonyms, is_machine
from spark_prof.exporters.shared_facts import shared_text
from spark_prof.rules.host_stages import RULES
from spark_prof.rules.known_words import unknown_parts
from spark_prof.traces.readers.engine_log import statements_of
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
    """A frame of a stack: folders, file and function without unknown words."""
    if frame in _FRAMES:
        return frame
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
