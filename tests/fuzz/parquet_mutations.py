"""Mutations of a table of a bundle: values at the ends, columns that were swapped or lost."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq

from tests.fuzz.hostile import NUMBERS, TEXTS

_SAFE_TEXTS = [text.encode("utf-8", "replace").decode() for text in TEXTS]


def mutate_table(path: Path, chance: Random) -> str:
    """Changes the file, and most times meta.json beside it so that it agrees on the rows."""
    table = pq.read_table(path, partitioning=None)
    done = []
    for _ in range(chance.choice((1, 1, 3))):
        mutation = chance.choice(_MUTATIONS)
        if table.num_columns:
            number = chance.randrange(table.num_columns)
            done.append(f"{mutation.__name__[1:]} {table.column_names[number]}")
            table = mutation(table, number, chance)
    pq.write_table(table, path)
    meta = path.with_name("meta.json")
    if meta.is_file() and chance.random() < 0.9:
        value = json.loads(meta.read_text())
        value["tables"][path.name] = table.num_rows
        meta.write_text(json.dumps(value))
    return ", ".join(done)


def _values(table: pa.Table, number: int, chance: Random) -> pa.Table:
    """Some values, or all, become extreme ones of the column's type."""
    field = table.schema.field(number)
    share = chance.choice((0.02, 0.3, 1.0))
    values = table.column(number).to_pylist()
    same = chance.random() < 0.5
    value = _extreme(field.type, chance)
    for i in range(len(values)):
        if chance.random() < share:
            values[i] = value if same else _extreme(field.type, chance)
    return table.set_column(number, field, _array(values, field.type))


def _array(values: list[object], kind: pa.DataType) -> pa.Array:
    if pa.types.is_dictionary(kind):
        return pa.array(values, pa.string()).dictionary_encode().cast(kind)
    return pa.array(values, kind)


def _extreme(kind: pa.DataType, chance: Random) -> object:
    if pa.types.is_boolean(kind):
        return chance.random() < 0.5
    if pa.types.is_floating(kind):
        # Python compares 10**400 with a float exactly, but cannot turn it into one.
        fitting = [n for n in NUMBERS if isinstance(n, float) or abs(n) < 2**1023]
        return float(chance.choice(fitting))
    if pa.types.is_integer(kind):
        most = 2 ** (kind.bit_width - 1)
        fitting = [n for n in NUMBERS if isinstance(n, int) and -most <= n < most]
        return chance.choice([*fitting, -most, most - 1])
    if pa.types.is_list(kind):
        return [_extreme(kind.value_type, chance) for _ in range(chance.choice((0, 1, 40)))]
    text = chance.choice(_SAFE_TEXTS)
    return text * 5000 if chance.random() < 0.02 else text


def _negate(table: pa.Table, number: int, chance: Random) -> pa.Table:
    field = table.schema.field(number)
    if not pa.types.is_integer(field.type):
        return table
    values = [-v if v is not None and v > -(2**31) else v for v in table.column(number).to_pylist()]
    most = 2 ** (field.type.bit_width - 1)
    values = [v if v is None or -most <= v < most else 0 for v in values]
    return table.set_column(number, field, pa.array(values, field.type))


def _swap(table: pa.Table, number: int, chance: Random) -> pa.Table:
    """The values of two columns of one type change places."""
    field = table.schema.field(number)
    others = [i for i, f in enumerate(table.schema) if f.type == field.type]
    other = chance.choice(others)
    mine, yours = table.column(number), table.column(other)
    swapped = table.set_column(number, field, yours)
    return swapped.set_column(other, table.schema.field(other), mine)


def _nulls(table: pa.Table, number: int, chance: Random) -> pa.Table:
    field = table.schema.field(number)
    return table.set_column(number, field, _array([None] * table.num_rows, field.type))


def _retype(table: pa.Table, number: int, chance: Random) -> pa.Table:
    kind = chance.choice((pa.string(), pa.float64(), pa.int8(), pa.list_(pa.int64())))
    return table.set_column(number, table.column_names[number], pa.nulls(table.num_rows, kind))


def _drop(table: pa.Table, number: int, chance: Random) -> pa.Table:
    return table.remove_column(number)


def _repeat(table: pa.Table, number: int, chance: Random) -> pa.Table:
    return pa.concat_tables([table, table])


def _shuffle(table: pa.Table, number: int, chance: Random) -> pa.Table:
    order = list(range(table.num_rows))
    chance.shuffle(order)
    return table.take(pa.array(order[: chance.choice((1, len(order), len(order)))], pa.int64()))


def _empty(table: pa.Table, number: int, chance: Random) -> pa.Table:
    return table.slice(0, 0)


def _columns(table: pa.Table, number: int, chance: Random) -> pa.Table:
    """The same columns in another order."""
    names = table.column_names
    chance.shuffle(names)
    return table.select(names)


_MUTATIONS: tuple[Callable[[pa.Table, int, Random], pa.Table], ...] = (
    _values, _values, _values, _values, _values, _negate, _swap, _swap, _nulls, _retype, _drop,
    _repeat, _shuffle, _empty, _columns,
)  # fmt: skip
