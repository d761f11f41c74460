"""What a vLLM has that no table and no row knows, and what it has no more."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from scripts.vllm_sources.facts import Facts, names_looked_for
from scripts.vllm_sources.tables import Key, Table
from spark_prof.rules.backends import choice_of
from spark_prof.rules.engine_log_lines import LINE_RULES
from spark_prof.rules.environment import SUCCESSORS, VARIABLES
from spark_prof.rules.tune_candidates import FOREIGN
from spark_prof.rules.vllm_reached import may_be_missing, missing

_BACKEND_OPTIONS = ("--moe-backend", "--linear-backend")
_KERNELS = re.compile(
    r"KERNEL|BACKEND|GEMM|MOE|ATTN|ATTENTION|MLA|GDN|FP8|FP4|QUANT|GRAPH|COMPILE|CACHE|TRITON|"
    r"FLASHINFER|MARLIN|CUTLASS|CUTEDSL|B12X|ALLREDUCE|NCCL|RUNNER|SAMPLER|SPEC|DRAFT"
)
_FILLS = ("FLASHINFER", "12", "fp8", "a_kernel", "1.5", "x: y", "(1, 2)", "0.34.0", "['A', 'B']")
_FIELD = re.compile(r"%[-+ #0-9.,]*[sdrfgxi]|%\.?\*?[sdf]|\{[^{}]{0,40}\}")


@dataclass(frozen=True)
class News:
    """One thing about a version that the repository does not know."""

    kind: str  # the heading that it is listed under
    name: str
    breaks: bool = False  # whether spark-prof reaches into what is gone


def differences(facts: Facts, tables: Mapping[str, Table]) -> list[News]:
    """What only the tables say of a version that was read before, and what only its sources."""
    entries = []
    looked_for = {(name,) for name in names_looked_for()}
    for name, keys in facts.keys.items():
        stored = tables[name].by_version[facts.version]
        if name == "names":  # others may be in the table since code reached into them
            stored &= looked_for
        entries += [News(f"only in the table {name}", _text(key)) for key in sorted(stored - keys)]
        entries += [News(f"not in the table {name}", _text(key)) for key in sorted(keys - stored)]
    return entries


def news(facts: Facts, tables: Mapping[str, Table]) -> list[News]:
    """What is new in a version that was not read yet, or is gone, against the last one before."""
    presence = {name: (name,) in facts.keys["names"] for name in names_looked_for()}
    entries = [
        News("gone, and spark-prof reaches into it", name, breaks=True)
        for name in missing(presence)
    ]
    before = {name: _latest(table) for name, table in tables.items()}
    names_gone = sorted(before["names"] - facts.keys["names"])
    entries += [
        News("gone, and done without", name)
        for (name,) in names_gone
        if name in presence and may_be_missing(name)
    ]
    entries += _options(facts.keys["options"], before["options"])
    entries += _variables(facts.keys["variables"], before["variables"])
    for (name,) in sorted(facts.keys["architectures"] - before["architectures"]):
        entries.append(News("new architecture with breakable CUDA graphs", name))
    for (name,) in sorted(before["architectures"] - facts.keys["architectures"]):
        entries.append(News("architecture without breakable CUDA graphs", name))
    entries += _lines(facts.keys["log_formats"] - _ever(tables["log_formats"]))
    return entries


def _options(keys: frozenset[Key], before: frozenset[Key]) -> Iterator[News]:
    other_values = {value for values in FOREIGN for value in values.split()} | {"auto"}
    for option, value in sorted(keys - before):
        if option in _BACKEND_OPTIONS and value not in other_values and choice_of(value) is None:
            yield News(
                "new backend without a row in rules/backends.py CHOICES", f"{option} {value}"
            )
        elif value:
            yield News("new value of an option", f"{option} {value}")
        else:
            yield News("new option", option)
    for option, value in sorted(before - keys):
        yield News("gone: " + ("value of an option" if value else "option"), f"{option} {value}")


def _variables(keys: frozenset[Key], before: frozenset[Key]) -> Iterator[News]:
    rows = {*(row.name for row in VARIABLES), *(row.name for row in SUCCESSORS)}
    old, new = ({name for name, _ in table} for table in (before, keys))
    for name in sorted(new - old):
        about = " that speaks of kernels" if _KERNELS.search(name) else ""
        yield News(f"new environment variable{about}", name)
    for name in sorted(old - new):
        row = (
            "" if name in rows else " without a row in rules/environment.py that says what instead"
        )
        yield News(f"gone: environment variable{row}", name)


def _lines(keys: Iterable[Key]) -> Iterator[News]:
    for level, form, module in sorted(keys, key=lambda key: (key[0] == "INFO", key)):
        if not matched(form):
            yield News(f"new {level} line without a rule", f"{module}: {form}")


def matched(form: str) -> bool:
    """Whether a rule of rules/engine_log_lines.py takes a format whose fields are filled."""
    return any(
        rule.word in line.encode() and rule.pattern.search(line)
        for line in filled(form)
        for rule in LINE_RULES
    )


def filled(form: str) -> Iterator[str]:
    """A format with its fields filled: each time all of them with the same text."""
    yield from dict.fromkeys(
        _FIELD.sub(fill.replace("\\", r"\\"), form).replace("%%", "%") for fill in _FILLS
    )


def _latest(table: Table) -> frozenset[Key]:
    return list(table.by_version.values())[-1]


def _ever(table: Table) -> frozenset[Key]:
    return frozenset().union(*table.by_version.values())


def _text(key: Key) -> str:
    return " ".join(part for part in key if part)
