"""The table of backends that spark-prof's rules read, derived from the sources of many vLLMs."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from scripts.vllm_oracles.candidates import (
    FORMATS,
    MODELS,
    Format,
    Tried,
    Verdict,
    attention_members,
    order,
    values,
    verdict,
)
from scripts.vllm_oracles.deployment import package_of
from scripts.vllm_oracles.interpreter import Interpreter
from scripts.vllm_oracles.source_tree import SourceTree
from scripts.vllm_oracles.values import CannotTellError, Class, Unknown

CAPABILITIES = (75, 80, 86, 87, 89, 90, 100, 103, 110, 120, 121)
_RANK = ("yes", "needs", "unknown", "no")
_ORACLES = (
    "nvfp4", "mxfp4", "fp8", "int_wna16", "unquantized", "int8", "w4a8", "w4a8_int8",
)  # fmt: skip
_NOT_CUDA = ("VLLM_ROCM", "VLLM_CPU", "VLLM_XPU")


def cell(tree: SourceTree, form: Format, capability: int) -> dict[str, Any]:
    """What one vLLM tries for one format on one GPU, and which values ask for what.

    `tries` are the candidates in the order of the sources, whether they run or not: what the log
    lists. `values` are those of the option that run, in that order, those that are never taken by
    themselves last. `variables` says what a variable, or the model, takes off the list.
    """
    try:
        tried, run = order(tree, form, capability)
        return {
            "tries": [[name, found.runs] for name, found in _judged(tree, form, capability, tried)],
            "values": _values(tree, form, capability, tried),
            "variables": _variables(tree, form, capability, tried, run),
        }
    except (CannotTellError, RecursionError) as error:
        return {"cannot_tell": str(error)}


def _judged(
    tree: SourceTree, form: Format, capability: int, tried: Iterable[Tried]
) -> list[tuple[str, Verdict]]:
    """Backends in order, each with the best of its classes' verdicts."""
    found: dict[str, Verdict] = {}
    for each in tried:
        key = (form.option, form.stored, each.kernel, repr(each))
        of = tree.verdicts.get((capability, *key)) or tree.verdicts.get(key)
        if of is None:
            of, everywhere = verdict(tree, form, capability, each)
            tree.verdicts[key if everywhere else (capability, *key)] = of
        known = found.get(each.backend)
        if known is None or _RANK.index(of.runs) < _RANK.index(known.runs):
            found[each.backend] = of
    return list(found.items())


def _values(
    tree: SourceTree, form: Format, capability: int, tried: list[Tried]
) -> list[dict[str, Any]]:
    if form.option == "--attention-backend":
        judged = _judged(tree, form, capability, tried)
        classes = {each.backend: each.kernel for each in tried}
        return [
            _row(name, name, found, True) | {"implementation": _implementation(tree, classes[name])}
            for name, found in judged
            if found.runs != "no"
        ]
    usual = [each.kernel for each in tried]
    rows: list[tuple[int, dict[str, Any]]] = []
    for value in values(tree, form.option):
        asked = _asked(tree, form, capability, value, usual)
        judged = _judged(tree, form, capability, asked)
        runs = [(name, found) for name, found in judged if found.runs != "no"]
        if not runs:
            continue
        name, found = min(runs, key=lambda each: _RANK.index(each[1].runs))
        kernels = [each.kernel for each in asked if each.backend == name]
        place = next((i for i, of in enumerate(usual) if of in kernels), None)
        auto = place is not None and any(each.backend == name for each in tried)
        rows.append((place if auto and place is not None else 999, _row(value, name, found, auto)))
    return [row for _, row in sorted(rows, key=lambda each: each[0])]


def _asked(
    tree: SourceTree, form: Format, capability: int, value: str, usual: list[Class]
) -> list[Tried]:
    """What is tried where the option has a value; nothing where vLLM does not look at it."""
    key = (form.option, form.stored, value)
    asked = tree.verdicts.get(key)
    if asked is None:
        try:
            asked, run = order(tree, form, capability, asked=value)
        except CannotTellError:
            return []
        if not run.asked_device:
            tree.verdicts[key] = asked
    return [] if [each.kernel for each in asked] == usual and len(usual) > 1 else asked


def _row(value: str, backend: str, found: Verdict, auto: bool) -> dict[str, Any]:
    packages = sorted({package_of(each) for each in found.needs} - {""})
    row: dict[str, Any] = {"value": value, "backend": backend, "runs": found.runs}
    if packages:
        row["packages"] = packages
    if found.runs == "unknown":
        row["conditions"] = [each for each in found.needs if not package_of(each)]
    if not auto:
        row["by_itself"] = False
    return row


def _implementation(tree: SourceTree, of: Class) -> str:
    from scripts.vllm_oracles.candidates import usual
    from scripts.vllm_oracles.deployment import interpreter

    run = interpreter(tree, 90, usual)
    try:
        found = run.call(run.attribute(of, "get_impl_cls"), [], {})
    except CannotTellError:
        return ""
    return found.name if isinstance(found, Class) else ""


def _variables(
    tree: SourceTree, form: Format, capability: int, tried: list[Tried], run: Interpreter
) -> list[list[Any]]:
    """What takes backends off the list, and those backends.

    A variable and its value, or something about the model: one of `MODELS`, with no value.
    """
    usual = list(dict.fromkeys(each.backend for each in tried))
    found: list[list[Any]] = []
    for name in sorted(run.variables):
        if name.startswith(_NOT_CUDA) or name == "VLLM_DISABLED_KERNELS":
            continue
        for value in ("0", "1"):
            try:
                left, _ = order(tree, form, capability, {name: value})
            except (CannotTellError, TypeError, ValueError):
                continue
            rest = {each.backend for each in left}
            if gone := [each for each in usual if each not in rest]:
                found.append([name, value, gone])
    for model in MODELS if form.option == "--moe-backend" else ():
        left, _ = order(tree, form, capability, model=model)
        rest = {each.backend for each in left}
        if gone := [each for each in usual if each not in rest]:
            found.append([model, "", gone])
    return found


def names(tree: SourceTree) -> dict[str, list[str]]:
    """Names that `choice_of` must know, of any platform.

    Members of the enumerations of backends, and the kernel classes of the linear layers' lists.
    """
    from scripts.vllm_oracles.candidates import _LINEAR, usual
    from scripts.vllm_oracles.deployment import MOE, interpreter

    run = interpreter(tree, 90, usual)
    found: dict[str, list[str]] = {"moe": [], "linear": [], "attention": []}
    for module in _ORACLES:
        for name in tree.bindings(f"{MOE}.oracle.{module}"):
            if name.endswith(("MoeBackend", "MoEBackend")):
                of = run.name(f"{MOE}.oracle.{module}", name)
                if isinstance(of, Class) and run.is_enum(of):
                    found["moe"] += [f"{of.name}.{each.name}" for each in run.members(of)]
    kernels = run.name(_LINEAR, "_LINEAR_BACKEND_KERNEL_MAP")
    if not isinstance(kernels, Unknown):
        found["linear"] = sorted({each.name for group in kernels.values() for each in group})
    for name in tree.bindings(_LINEAR):
        if name.startswith("_POSSIBLE"):
            lists = run.name(_LINEAR, name)
            found["linear"] += [of.name for group in lists.values() for of in group]
    found["attention"] = attention_members(tree)
    return {kind: sorted(set(every)) for kind, every in found.items()}


Key = tuple[str, str, int]  # option, format, capability


def of_one(folder: Path) -> tuple[dict[Key, Any], dict[str, list[str]]]:
    """All cells of one version, and its names."""
    tree = SourceTree(folder)
    cells = {
        (form.option, form.stored, capability): json.loads(json.dumps(cell(tree, form, capability)))
        for capability in CAPABILITIES
        for form in FORMATS
    }
    return cells, names(tree)


def of_many(folders: Iterable[Path]) -> dict[str, tuple[dict[Key, Any], dict[str, list[str]]]]:
    """`of_one` of each version, two at a time."""
    every = list(folders)
    with ProcessPoolExecutor(2) as pool:
        return dict(zip((each.name for each in every), pool.map(of_one, every), strict=True))


def table(folders: Iterable[Path]) -> dict[str, Any]:
    """The whole table: neighbouring versions and capabilities that agree are one row."""
    rows: list[dict[str, Any]] = []
    found = of_many(folders)
    for form in FORMATS:
        for capability in CAPABILITIES:
            key = (form.option, form.stored, capability)
            for text, group in itertools.groupby(
                found,
                key=lambda each, key=key: json.dumps(found[each][0][key]),  # type: ignore[misc]
            ):
                span = list(group)
                _add(rows, form, capability, (span[0], span[-1]), json.loads(text))
    every: dict[str, set[str]] = {}
    for _, known in found.values():
        for kind, each in known.items():
            every.setdefault(kind, set()).update(each)
    return {
        "versions": list(found),
        "names": {kind: sorted(each) for kind, each in every.items()},
        "rows": rows,
    }


def _add(
    rows: list[dict[str, Any]], form: Format, capability: int, span: tuple[str, str], found: Any
) -> None:
    key = {"option": form.option, "stored": form.stored, "since": span[0], "until": span[1]}
    for row in rows:
        if all(row.get(name) == value for name, value in (key | found).items()):
            row["capabilities"].append(capability)
            return
    rows.append({**key, "capabilities": [capability], "source": _source(form), **found})


def _source(form: Format) -> str:
    path = form.module.removeprefix("vllm.").replace(".", "/")
    return f"{path}/__init__.py" if path.endswith("linear") else f"{path}.py"


def written(found: dict[str, Any]) -> str:
    """The table as the file has it: a row a line."""
    rows = ",\n".join(json.dumps(row) for row in found["rows"])
    names_ = ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in found["names"].items())
    versions = json.dumps(found["versions"])
    return f'{{"versions": {versions},\n"names": {{\n{names_}\n}},\n"rows": [\n{rows}\n]}}\n'
