"""What tools show of the JSON that the commands write: the figures of one question, few bytes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from spark_prof.analyzers.classify.classifier import short_names

Json = dict[str, Any]

_FEW, _FEW_LONG = 6, 3
_OF_BATCH = ("batch", "steps", "token_us", "tokens_per_s_sequence", "tokens_per_s")
_BOUND = (
    "floor_us", "step_us", "of_floor", "nodes", "node_us", "of_bound", "placed_us", "kernels_us",
)  # fmt: skip
_DRAFTS = (
    "method",
    "most",
    "verified",
    "proposed_each",
    "accepted_each",
    "positions",
    "batches",
    "cost",
)
_SPECULATED = (
    "answer_line", "model", "gpu", "vllm", "drafter", "config", "configs", "missing", "failure",
    "finished",
)  # fmt: skip
_PROOF = ("requests", "drafts", "plain_us", "token_us", "speed", "same_texts", "texts")
_CONTEXT = ("batch", "shortest", "longest", "bandwidth", "kinds", "speed")
_PREFILL = ("steps", "mixed", "tokens", "step_us", "floor_us", "attention", "chunks")
_REQUESTS = (
    "requests", "whole", "ttft", "parts", "tpot", "itl", "cached_tokens", "prompt_tokens",
    "preemptions", "running", "waiting", "kv_used", "kv_most_used", "max_num_seqs", "limits",
)  # fmt: skip
_CODE = ("architecture", "precisions", "products", "registers", "local_loads", "local_stores")
_ROOF = (
    "needed_bytes", "bandwidth", "of_reached", "floor_us", "limiter", "left_ms_per_token", "what",
    "basis",
)  # fmt: skip
_SHAPE = ("grid", "block", "waves", "busy", "occupancy", "tile", "tile_waste")


def is_report(record: Any) -> bool:
    """Whether the JSON is the report of one recording."""
    return isinstance(record, dict) and {"run", "steps", "kernels", "layers"} <= record.keys()


def is_drafts(record: Any) -> bool:
    """Whether the JSON is a result of `spark-prof speculate`."""
    return isinstance(record, dict) and record.get("kind") == "spark-prof speculate"


def drafts(record: Json) -> tuple[Json, list[Json]]:
    """How many tokens to draft, what proves it and what is accepted; a row a batch and context."""
    data = _chosen(record, _SPECULATED)
    data["acceptance"] = (record["acceptance"] or {}).get("accepted")
    data["gate"] = [
        {"batch": gate["requests"], "passed": gate["verdict"]["passed"]} for gate in record["gates"]
    ]
    data["proofs"] = [_chosen(row, _PROOF) for row in record["proofs"]]
    rows = []
    for best in record["bests"]:
        row = _chosen(best, ("requests", "context", "drafts", "rivals"))
        chosen = (count for count in best["rows"] if count["drafts"] == best["drafts"])
        row |= _chosen(next(chosen, {}), ("token_us", "speed", "break_even"))
        rows.append(row | {"fit": best["fit"]})
    return data, rows


def summary(report: Json) -> Json:
    """How fast, where the time of a token goes, how far from the bound, and what is not known."""
    token = _decode(report["tokens"], report["steps"].get("screen_batch"))
    roofline = report["roofline"] or {"phases": (), "notes": ()}
    record: Json = {key: report[key] for key in ("verdict", "run", "gpu", "steps", "coverage")}
    record["steps"] = {k: v for k, v in report["steps"].items() if k not in ("token", "batches")}
    if len(batches := report["steps"]["batches"]) > 1:
        record["steps"]["batches"] = [_chosen(row, _OF_BATCH) for row in batches]
    if token:
        calls = (kernel["decode_calls_per_step"] or 0.0 for kernel in report["kernels"])
        parts = sorted(token["rows"], key=lambda row: -row["charged_us"])
        record["decode_token"] = {
            "ms_per_token": token["ms_per_token"],
            "kernels_per_step": round(sum(calls)),
            "parts": [_chosen(row, ("name", "charged_us", "share")) for row in parts],
        }
    else:
        record["parts"] = [_chosen(row, ("name", "us", "share")) for row in report["components"]]
    if requests := report.get("requests"):
        record["requests"] = _chosen(requests, _REQUESTS)
    if roof := _decode(roofline["phases"]):
        record["memory_bound"] = _chosen(roof, _BOUND)
    if drafts := report.get("speculation"):
        record["speculation"] = _chosen(drafts, _DRAFTS)
    if (context := report.get("context")) and not context["why_not"]:
        record["context"] = _chosen(context, _CONTEXT)
    if prefill := report.get("prefill"):
        record["prefill"] = _chosen(prefill, _PREFILL)
    record["answers"] = [_chosen(row, ("id", "text", "evidence")) for row in report["answers"]]
    record["findings"] = [row["id"] for row in report["findings"]]
    record |= issues(report)
    failed = [row["text"] for row in report["invariants"] if row["ok"] is False]
    return record | {"not_known": [*report["notes"], *roofline["notes"], *failed]}


def issues(report: Json) -> Json:
    """What is known of this version on this GPU, if anything is."""
    rows = [
        f"You are in the window of {row['issue']}: {row['what']}. Expect, as reported there: "
        f"{row['effect']}. Try: {'; '.join(filter(None, (row['side'], row['remedy'])))}."
        + (f" Prove it here: {row['command']}" if row["command"] else "")
        for row in report["known_issues"]
    ]
    return {"known_issues": _few(rows, "known_issues", _FEW_LONG)} if rows else {}


def kernel_rows(report: Json, arguments: Mapping[str, Any]) -> list[Json]:
    """The kernels that are asked for by component, part of a name or conversion."""
    shorts = short_names(row["name"] for row in report["kernels"])
    rows = []
    for row in report["kernels"]:
        short, part = shorts[row["name"]], arguments.get("name", "").lower()
        if arguments.get("component", row["component"]) != row["component"]:
            continue
        names = (row["name"].lower(), short.lower(), row.get("kernel_id", ""))
        if not any(part in name for name in names):
            continue
        if arguments.get("conversions") and not row["conversion"]:
            continue
        record = {"kernel": short} | {k: v for k, v in row.items() if v is not None and k != "name"}
        if arguments.get("details"):
            record |= _details(report, row["name"])
        rows.append(record)
    return rows


def _details(report: Json, name: str) -> Json:
    """What its machine code, its bytes and its launches say of a kernel, each the largest row."""
    shapes = (report["shapes"] or {}).get("rows", ())
    roof = _decode((report["roofline"] or {}).get("phases", ())) or {"rows": ()}
    parts = (
        ("machine_code", report["machine_code"], _CODE), ("roofline", roof["rows"], _ROOF),
        ("launch", shapes, _SHAPE), ("conflict", report["conflicts"], ()),
    )  # fmt: skip
    details: Json = {}
    for part, rows, keys in parts:
        if matches := [row for row in rows if row.get("name") == name]:
            details[part] = (_chosen(matches[0], keys) if keys else matches[0]) | {
                "of_rows": len(matches)
            }
    return details


def layer_rows(report: Json, component: str | None) -> tuple[Json, list[Json]]:
    """Each layer's time in a decode step, beside the median; or that of one of its components."""
    decode = any(row["decode_us_per_step"] for row in report["layers"])
    key = "decode_us_per_step" if decode else "us"
    layers: dict[int, Json] = {}
    outside: dict[str, float] = {}
    for row in report["layers"]:
        if row["layer"] is None:
            outside[row["component"]] = row[key] or 0.0
        elif component in (None, row["component"]):
            layer = layers.setdefault(row["layer"], {"layer": row["layer"], "us": 0.0, "parts": {}})
            layer["us"] += row[key] or 0.0
            layer["parts"][row["component"]] = round(row[key] or 0.0, 2)
    middle = median(layer["us"] for layer in layers.values()) if layers else None
    rows = [layer | {"us": round(layer["us"], 2)} for layer in layers.values()]
    slowest = sorted(rows, key=lambda layer: -layer["us"])[:3]
    data: Json = {"unit": "us a decode step" if decode else "us in all", "median_us": middle}
    data["slowest_layers"] = [layer["layer"] for layer in slowest]
    return data | {"outside_of_layers": outside}, rows


def one_layer(layer: Json) -> tuple[Json, list[Json]]:
    """A layer beside layers like it, and its kernels, the most different first."""
    data = _chosen(layer, ("layer", "phase", "steps", "us", "others_us"))
    data["layers_like_it"] = len(layer["others"])
    if layer["us"] and layer["others_us"]:
        data["against_others"] = layer["us"] / layer["others_us"] - 1
    shorts = short_names(row["name"] for row in layer["kernels"])
    rows = [row | {"name": shorts[row["name"]]} for row in layer["kernels"]]
    return data, sorted(rows, key=lambda row: -abs(row["us"] - (row["others_us"] or row["us"])))


def comparison(record: Json) -> tuple[Json, list[Json]]:
    """Which side is faster and how sure that is; the parts of a step, the most changed first."""
    if "comparisons" not in record:  # results of load generators
        return record, []
    [comparison] = record["comparisons"]
    phases = comparison["phases"]
    phase = _decode(phases) or next(iter(phases), None)
    data: Json = {"answer": comparison["answer"]}
    data |= {"a": _side(record["reference"]), "b": _side(comparison["other"])}
    rows: list[Json] = []
    if phase:
        changes = [phase["like"] or phase["whole"], phase["whole"], phase["typical"]]
        change = next(filter(None, changes), None)

        def figures_of(change: Json | None) -> Json:
            """A change; only the figures of both sides where the steps are not comparable."""
            figures = _change(change)
            return _chosen(figures, ("a", "b")) if phase["obstacle"] else figures

        data |= {"phase": phase["phase"], "unit": phase["unit"], "step": figures_of(change)}
        sizes = [
            {"size": size_row["size"], **figures_of(size_row["median"])}
            for size_row in phase["sizes"]
        ]
        data["sizes"] = _few(sizes, f"comparisons.0.phases.{phases.index(phase)}.sizes")
        parts = sorted(phase["parts"], key=lambda part: -abs(part["change"]["us"] or 0.0))
        rows = [{"part": part["name"], **figures_of(part["change"])} for part in parts]
    set_up = [_chosen(row, ("name", "a", "b")) for row in comparison["setup"]]
    data["set_up"] = _few(set_up, "comparisons.0.setup")
    data["notes"] = comparison["notes"]
    if record["gate"]:
        data["gate"] = record["gate"]
    return data, rows


def _few(rows: Sequence[Any], path: str, most: int = _FEW) -> list[Any]:
    left = len(rows) - most
    return [*rows[:most], *([f"and {left} more: part {path}"] if left > 0 else [])]


def _side(side: Json) -> Json:
    run = _chosen(side["run"], ("source", "model", "vllm", "execution"))
    return run | {"gpu": side["gpu"]["name"], "steps": side["steps"]}


def _change(change: Json | None) -> Json:
    """A change with its 95 % interval, and which side is faster for certain."""
    if change is None:
        return {}
    faster = "not certain" if not change["sure"] else "b" if (change["us"] or 0.0) < 0 else "a"
    keys = ("a", "b", "us", "share", "share_low", "share_high")
    return {"faster": faster, **_chosen(change, keys)}


def why(record: Json) -> tuple[Json, list[Json]]:
    """The answer of `why` with its sides, and the parts of each side."""
    data = _chosen(record, ("gpu", "bandwidth", "source", "answer", "gaps", "next"))
    data["sides"] = [_chosen(side, ("name", "measured", "us", "eager")) for side in record["sides"]]
    rows = [{"side": side["name"], **part} for side in record["sides"] for part in side["parts"]]
    return data, rows


def _decode(phases: Iterable[Json], size: int | None = None) -> Json | None:
    """The decode phase, of that batch size where it is there, else of all of them together."""
    by_size = {phase.get("batch_size"): phase for phase in phases if phase["phase"] == "decode"}
    return by_size.get(size) or by_size.get(None)


def _chosen(row: Mapping[str, Any], keys: Sequence[str]) -> Json:
    return {key: row[key] for key in keys if key in row}
