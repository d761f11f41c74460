"""The names in tests/data/kernel-names.csv get the labels that were written down for them by hand.

The names are real: of recorded traces, of the machine code in vLLM's wheel, and of profiles that
people published. Where `why` says sass, the engine was read from the wheel's machine code. An empty
cell means that the name does not tell.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

from spark_prof.analyzers.classify.classifier import classify, find_rule
from spark_prof.vocabulary import COMPONENTS, CONVERSIONS, ENGINES, PRECISIONS, WEIGHTS
from tests.rows import each_row

FILE = Path(__file__).resolve().parents[1] / "data/kernel-names.csv"


@dataclass(frozen=True)
class Known:
    """A name and what is known about it; empty where the name does not tell."""

    name: str
    source: str
    component: str
    engine: str
    precision: str
    weights: str
    conversion: str
    fused: str
    load_time: str
    why: str

    @property
    def labels(self) -> tuple[str, ...]:
        return (
            *(self.component, self.engine, self.precision, self.weights),
            *(self.conversion, self.fused, self.load_time),
        )


def names() -> list[Known]:
    with FILE.open(newline="") as stream:
        return [Known(**row) for row in csv.DictReader(stream)]


@each_row("known", names())
def test_label_is_the_one_that_was_written_down(known: Known) -> None:
    label, rule = classify(known.name), find_rule(known.name)
    found = (
        *(label.component, label.engine, label.precision, label.weights, label.conversion),
        rule.fused_conversion if rule else None,
        "yes" if rule and rule.load_time else None,
    )
    assert tuple(word or "" for word in found) == known.labels


def test_names_are_many_and_distinct() -> None:
    known = names()
    assert len({row.name for row in known}) == len(known) >= 300


@each_row(
    ("column", "words"),
    [
        ("component", COMPONENTS),
        ("engine", ENGINES),
        ("precision", PRECISIONS),
        ("weights", WEIGHTS),
        ("conversion", CONVERSIONS),
        ("fused", CONVERSIONS),
        ("load_time", ("yes",)),
    ],
)
def test_words_are_those_of_the_vocabulary(column: str, words: tuple[str, ...]) -> None:
    assert {getattr(row, column) for row in names()} <= {"", *words}


def test_every_name_says_where_it_was_found_and_why_it_is_so() -> None:
    assert all(row.source and row.why and row.engine for row in names())


def test_what_a_sass_row_says_is_what_the_instructions_say() -> None:
    """Rows that quote the wheel's machine code: opcodes of tensor cores or their absence."""
    formats = {"QMMA": "fp8", "QGMMA": "fp8", "OMMA": "fp4", "IMMA": "int8", "IGMMA": "int8"}
    for row in names():
        _, quoted, opcodes = row.why.partition("sass ")
        if not quoted:
            continue
        opcode = opcodes.split()[0].partition(".")[0].rstrip(",;").removeprefix("UTC")
        assert row.engine == ("tensor-core" if opcode.endswith("MMA") else "cuda-core"), row
        if row.precision and opcode in formats:
            assert row.precision == formats[opcode], row
