"""Tables of what the recorder saw of the recorded processes from outside, made of its pieces."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas as pd

from spark_prof.errors import CommandError
from spark_prof.traces.chunk_files import json_object, load_array
from spark_prof.traces.chunks import ACCOUNT_FILE, HOST, STACK_DTYPE, array_name, stacks_name

FRONTEND = "frontend"
"""The process that started the engine's, and no recorded one itself."""

_BOOTSTRAP = "_bootstrap"  # the root's function of every thread but the first


class _StackTexts(msgspec.Struct):
    stacks: list[str]
    error_ns: int


class _ThreadUse(msgspec.Struct):
    pid: int
    thread: int
    name: str
    python: bool
    cpu_ns: int
    wall_ns: int


class _HostFigure(msgspec.Struct):
    pid: int
    name: str
    value: float


class _HostAccountFile(msgspec.Struct):
    threads: list[_ThreadUse] = []
    figures: list[_HostFigure] = []
    frontends: list[int] = []


@dataclass(frozen=True)
class HostTables:
    """Rows by table, what could not be read, and why."""

    tables: tuple[tuple[str, pd.DataFrame], ...]
    lost: tuple[str, ...]
    unreadable: tuple[Path, ...]


def host_tables(pieces: Path, facts: Mapping[str, Mapping[str, Any]]) -> HostTables:
    """The tables `stacks`, `threads` and `host_figures`; none where nothing was sampled.

    Args:
        facts: of each process by its name, of which `pid` is read.
    """
    names = {fact["pid"]: name for name, fact in facts.items() if isinstance(fact.get("pid"), int)}
    # One process may be a scheduler and a worker at once: it is called by its rank.
    names |= {pid: name for name, fact in facts.items()
              if name.startswith("rank") and (pid := fact.get("pid")) in names}  # fmt: skip
    lost: list[str] = []
    unreadable: list[Path] = []
    account = _HostAccountFile()
    if content := json_object(pieces / ACCOUNT_FILE):
        try:
            account = msgspec.convert(content, _HostAccountFile)
        except msgspec.ValidationError:
            lost.append(f"{ACCOUNT_FILE} is damaged")
            unreadable.append(pieces / ACCOUNT_FILE)
    names = dict.fromkeys(account.frontends, FRONTEND) | names
    tables = []
    for path in sorted(pieces.glob(f"{HOST}.*.stacks.npy")):
        try:
            number = int(path.name.split(".")[1])
            tables.append(("stacks", _stacks(pieces, number, names)))
        except (CommandError, ValueError) as error:
            lost.append(f"stacks of {path.name} are missing ({error})")
            unreadable.append(path)
    if tables or account.threads:
        tables += list(_of_account(account, names))
    return HostTables(tuple(tables), tuple(lost), tuple(unreadable))


def _stacks(pieces: Path, number: int, names: Mapping[int, str]) -> pd.DataFrame:
    rows = load_array(pieces / array_name(HOST, "stacks", number), STACK_DTYPE)
    try:
        texts = msgspec.convert(json_object(pieces / stacks_name(number)), _StackTexts)
    except msgspec.ValidationError as error:
        raise CommandError("their texts are damaged") from error
    if len(rows) and not 0 <= rows["stack"].min() <= rows["stack"].max() < len(texts.stacks):
        raise CommandError("their texts are of others")
    rows = rows[np.isin(rows["pid"], list(names))]
    began = np.array([_began_program(text) for text in texts.stacks] or [False])
    return pd.DataFrame(
        {
            "time_ns": rows["time_ns"],
            "error_ns": np.full(len(rows), texts.error_ns, np.int64),
            "process": [names[pid] for pid in rows["pid"].tolist()],
            "thread": rows["thread"],
            "main": began[rows["stack"]],
            "stack": pd.Categorical.from_codes(rows["stack"].tolist(), pd.Index(texts.stacks)),
        }
    )


def _began_program(stack: str) -> bool:
    return not stack.partition("\n")[0].endswith(_BOOTSTRAP)


def _of_account(
    account: _HostAccountFile, names: Mapping[int, str]
) -> Iterator[tuple[str, pd.DataFrame]]:
    for table, rows in (("threads", account.threads), ("host_figures", account.figures)):
        named = [msgspec.structs.asdict(row) for row in rows if row.pid in names]
        frame = pd.DataFrame([row | {"process": names[row["pid"]]} for row in named])
        if len(frame):
            yield table, frame.drop(columns="pid")
