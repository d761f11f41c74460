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
            "tries": [
                [name, outcome.runs] for name, outcome in _judged(tree, form, capability, tried)
            ],
            "values": _values(tree, form, capability, tried),
            "variables": _variables(tree, form, capability, tried, run),
        }
    except (CannotTellError, RecursionError) as error:
        return {"cannot_tell": str(error)}


def _judged(
    tree: SourceTree, form: Format, capability: int, tried: Iterable[Tried]
) -> list[tuple[str, Verdict]]:
    """Backends in order, each with the best of its classes' verdicts."""
    outcomes: dict[str, Verdict] = {}
    for candidate in tried:
        key = (form.option, form.stored, candidate.kernel, repr(candidate))
        of = tree.verdicts.get((capability, *key)) or tree.verdicts.get(key)
        if of is None:
            of, everywhere = verdict(tree, form, capability, candidate)
            tree.verdicts[key if everywhere else (capability, *key)] = of
        best = outcomes.get(candidate.backend)
        if best is None or _RANK.index(of.runs) < _RANK.index(best.runs):
            outcomes[candidate.backend] = of
    return list(outcomes.items())


def _values(
    tree: SourceTree, form: Format, capability: int, tried: list[Tried]
) -> list[dict[str, Any]]:
    if form.option == "--attention-backend":
        judged = _judged(tree, form, capability, tried)
        classes = {candidate.backend: candidate.kernel for candidate in tried}
        return [
            _row(name, name, outcome, True)
            | {"implementation": _implementation(tree, classes[name])}
            for name, outcome in judged
            if outcome.runs != "no"
        ]
    usual = [candidate.kernel for candidate in tried]
    rows: list[tuple[int, dict[str, Any]]] = []
    for value in values(tree, form.option):
        candidates = _candidates(tree, form, capability, value, usual)
        judged = _judged(tree, form, capability, candidates)
        runs = [(name, outcome) for name, outcome in judged if outcome.runs != "no"]
        if not runs:
            continue
        name, outcome = min(runs, key=lambda pair: _RANK.index(pair[1].runs))
        kernels = [candidate.kernel for candidate in candidates if candidate.backend == name]
        place = next((i for i, of in enumerate(usual) if of in kernels), None)
        auto = place is not None and any(candidate.backend == name for candidate in tried)
        rows.append(
            (place if auto and place is not None else 999, _row(value, name, outcome, auto))
        )
    return [row for _, row in sorted(rows, key=lambda pair: pair[0])]


def _candidates(
    tree: SourceTree, form: Format, capability: int, value: str, usual: list[Class]
) -> list[Tried]:
    """What is tried where the option has a value; nothing where vLLM does not look at it."""
    key = (form.option, form.stored, value)
    candidates = tree.verdicts.get(key)
    if candidates is None:
        try:
            candidates, run = order(tree, form, capability, option_value=value)
        except CannotTellError:
            return []
        if not run.asked_device:
            tree.verdicts[key] = candidates
    return (
        []
        if [candidate.kernel for candidate in candidates] == usual and len(usual) > 1
        else candidates
    )


def _row(value: str, backend: str, outcome: Verdict, auto: bool) -> dict[str, Any]:
    packages = sorted({package_of(condition) for condition in outcome.needs} - {""})
    row: dict[str, Any] = {"value": value, "backend": backend, "runs": outcome.runs}
    if packages:
        row["packages"] = packages
    if outcome.runs == "unknown":
        row["conditions"] = [condition for condition in outcome.needs if not package_of(condition)]
    if not auto:
        row["by_itself"] = False
    return row


def _implementation(tree: SourceTree, of: Class) -> str:
    from scripts.vllm_oracles.candidates import usual
    from scripts.vllm_oracles.deployment import interpreter

    run = interpreter(tree, 90, usual)
    try:
        implementation = run.call(run.attribute(of, "get_impl_cls"), [], {})
    except CannotTellError:
        return ""
    return implementation.name if isinstance(implementation, Class) else ""


def _variables(
    tree: SourceTree, form: Format, capability: int, tried: list[Tried], run: Interpreter
) -> list[list[Any]]:
    """What takes backends off the list, and those backends.

    A variable and its value, or something about the model: one of `MODELS`, with no value.
    """
    usual = list(dict.fromkeys(candidate.backend for candidate in tried))
    effects: list[list[Any]] = []
    for name in sorted(run.variables):
        if name.startswith(_NOT_CUDA) or name == "VLLM_DISABLED_KERNELS":
            continue
        for value in ("0", "1"):
            try:
                left, _ = order(tree, form, capability, {name: value})
            except (CannotTellError, TypeError, ValueError):
                continue
            rest = {candidate.backend for candidate in left}
            if left_out := [backend for backend in usual if backend not in rest]:
                effects.append([name, value, left_out])
    for model in MODELS if form.option == "--moe-backend" else ():
        left, _ = order(tree, form, capability, model=model)
        rest = {candidate.backend for candidate in left}
        if left_out := [backend for backend in usual if backend not in rest]:
            effects.append([model, "", left_out])
    return effects


def names(tree: SourceTree) -> dict[str, list[str]]:
    """Names that `choice_of` must know, of any platform.

    Members of the enumerations of backends, and the kernel classes of the linear layers' lists.
    """
    from scripts.vllm_oracles.candidates import _LINEAR, usual
    from scripts.vllm_oracles.deployment import MOE, interpreter

    run = interpreter(tree, 90, usual)
    names_of: dict[str, list[str]] = {"moe": [], "linear": [], "attention": []}
    for module in _ORACLES:
        for name in tree.bindings(f"{MOE}.oracle.{module}"):
            if name.endswith(("MoeBackend", "MoEBackend")):
                of = run.name(f"{MOE}.oracle.{module}", name)
                if isinstance(of, Class) and run.is_enum(of):
                    names_of["moe"] += [f"{of.name}.{item.name}" for item in run.members(of)]
    kernels = run.name(_LINEAR, "_LINEAR_BACKEND_KERNEL_MAP")
    if not isinstance(kernels, Unknown):
        names_of["linear"] = sorted({item.name for group in kernels.values() for item in group})
    for name in tree.bindings(_LINEAR):
        if name.startswith("_POSSIBLE"):
            lists = run.name(_LINEAR, name)
            names_of["linear"] += [of.name for group in lists.values() for of in group]
    names_of["attention"] = attention_members(tree)
    return {kind: sorted(set(every)) for kind, every in names_of.items()}


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
        return dict(zip((folder.name for folder in every), pool.map(of_one, every), strict=True))


def table(folders: Iterable[Path]) -> dict[str, Any]:
    """The whole table: neighbouring versions and capabilities that agree are one row."""
    rows: list[dict[str, Any]] = []
    versions = of_many(folders)
    for form in FORMATS:
        for capability in CAPABILITIES:
            key = (form.option, form.stored, capability)
            for text, group in itertools.groupby(
                versions,
                key=lambda version, key=key: json.dumps(versions[version][0][key]),  # type: ignore[misc]
            ):
                span = list(group)
                _add(rows, form, capability, (span[0], span[-1]), json.loads(text))
    every: dict[str, set[str]] = {}
    for _, names_of in versions.values():
        for kind, kind_names in names_of.items():
            every.setdefault(kind, set()).update(kind_names)
    return {
        "versions": list(versions),
        "names": {kind: sorted(kind_names) for kind, kind_names in every.items()},
        "rows": rows,
    }


def _add(
    rows: list[dict[str, Any]], form: Format, capability: int, span: tuple[str, str], content: Any
) -> None:
    key = {"option": form.option, "stored": form.stored, "since": span[0], "until": span[1]}
    for row in rows:
        if all(row.get(name) == value for name, value in (key | content).items()):
            row["capabilities"].append(capability)
            return
    rows.append({**key, "capabilities": [capability], "source": _source(form), **content})


def _source(form: Format) -> str:
    path = form.module.removeprefix("vllm.").replace(".", "/")
    return f"{path}/__init__.py" if path.endswith("linear") else f"{path}.py"


def file_text(record: dict[str, Any]) -> str:
    """The table as the file has it: a row a line."""
    rows = ",\n".join(json.dumps(row) for row in record["rows"])
    names_ = ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in record["names"].items())
    versions = json.dumps(record["versions"])
    return f'{{"versions": {versions},\n"names": {{\n{names_}\n}},\n"rows": [\n{rows}\n]}}\n'
