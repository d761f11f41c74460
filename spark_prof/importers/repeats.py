"""Guesses layers from what repeats, where no range and no other trace tells them.

A decoder runs attention once a layer, so that the n-th attention of a step is that of layer n: but
only where what lies between two of them repeats. It is read as letters: `I` the indexer of a sparse
attention, `E` experts, `N` norm, `K` KV write, `G` product. Stretches with the same kinds of parts
must read alike; where they read as a plain decoder does, the order in a layer places what lies
there. Such places are marked `guess`; what deviates has none.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pandas as pd

from spark_prof.analyzers.attribution.order import CODES, Codes, Launched, place_by_order
from spark_prof.analyzers.classify.classifier import (
    classify,
    finishes_gemm,
    is_attention,
    is_gemm,
)
from spark_prof.analyzers.lookup import NameColumn
from spark_prof.arrays import Flags, Int64s

_LAYERS = range(2, 1025)
_LEAST_REPEATING = 0.9  # where fewer of the stretches of a kind read alike, nothing repeats

_TRAINING = r"(?i)backward|_bwd|attnbwd|_bprop|[dw]grad|adam|\bsgd|lamb_|addcdiv"
"""Gradients and optimizers; copies by multi_tensor_apply are also made by SGLang's decode."""
_CACHED = r"(?i)decode|paged|mla(?!p)|kernel_mha|masked_multihead"
"""Attentions that read a KV cache, whoever writes it."""

_ATTENTION = re.compile(r"A(?:[^GE]*A)*")
_PLAIN = re.compile(r"GN+(?:(?P<router>G?)E|(?P<mlp>G+))N+(?P<qkv>G|GGG)[NK]*")
"""From one attention of a plain decoder to the next: o_proj, norm, router and experts or mlp, norm,
qkv, norms of q and k, KV write."""
_LAST = re.compile(r"GN+(?:G?E|G+)N+GN*")
"""Behind the last attention, up to the product of the logits."""
_OUTSIDE = tuple(CODES[name] for name in ("embedding", "lm_head", "sampler", "memcpy"))


@dataclass(frozen=True)
class Repeats:
    """The components and layers that repeated patterns let guess."""

    component: Int64s  # a number of COMPONENTS for each kernel, -1 for none
    layer: Int64s  # its layer, -1 for none
    notes: tuple[str, ...] = ()


_NOT_PLAIN = (
    "what lies between two attentions is not in the order of a plain decoder: it has no layer"
)


def _fused_norm(name: str) -> bool:
    """Whether a compiler has fused a norm with what is before it: it names the parts."""
    return bool(re.search(r"fused\w*(norm|rsqrt)", name))


def guess_layers(
    kernels: pd.DataFrame, prior: Int64s, in_graph: Flags, generates: bool = False
) -> Repeats:
    """Guesses component and layer of each kernel.

    Args:
        kernels: `name` as categories, `step` and its `phase`, in launch order.
        prior: the component's number where something better than the name tells it, else -1.
        in_graph: which ran in a CUDA graph. In a step with attention in a graph, the graph is the
            model, and what ran outside it prepares the batch or samples.
        generates: whether the trace says itself that its engine generates text.
    """
    names, step = NameColumn(kernels["name"]), kernels["step"].to_numpy(np.int64)
    named = names.codes(lambda name: CODES.get(classify(name).component or "", -1))
    component = np.where(prior >= 0, prior, named)
    gemm, rest = names.flags(is_gemm), names.flags(finishes_gemm)
    attention = names.flags(is_attention)
    attention |= (prior == CODES["attention"]) & (named < 0) & ~gemm
    model = (in_graph | ~np.isin(step, np.unique(step[attention & in_graph]))) & (step >= 0)
    attention &= model
    layer = np.full(len(step), -1, np.int64)
    attentions = int(attention.sum())
    if reason := _no_decoder(kernels["name"][model], component, attentions, generates):
        return Repeats(component, layer, (f"no layers: {reason}",))
    experts = component == CODES["experts"]
    indexes = names.flags(lambda name: "mqa_logits" in name and "metadata" not in name)
    norm = (component == CODES["norm"]) | (names.flags(_fused_norm) & ~gemm & (component < 0))
    parts = [attention, indexes, experts, norm, names.flags(_writes_cache), gemm & ~rest]
    letters = np.select(parts, [ord(letter) for letter in "AIENKG"], ord(" ")).astype(np.uint8)
    mine = np.where(model | _behind(model, step), step, -1)
    stretches, notes = _stretches(letters, mine, kernels["phase"].to_numpy())
    if stretches.empty:
        return Repeats(component, layer, notes)
    products = _plain_products(stretches)
    loose, head = np.zeros(len(step), bool), np.zeros(len(step), bool)
    columns = ("rows", "number", "last", "alike", "text")
    for rows, number, is_last, is_usual, text in zip(*map(stretches.get, columns), strict=True):
        layer[rows[attention[rows] | (experts[rows] & is_usual)]] = number
        # What runs before a step's first norm or product is not the model's.
        inside = np.cumsum(norm[rows] | gemm[rows]) > 0 if number < 0 else True
        loose[rows] = is_usual & inside & model[rows]
        if is_last and _LAST.fullmatch(text):
            head[rows[np.flatnonzero(gemm[rows] & ~rest[rows])[-1] :]] = True
    anchor = layer >= 0
    launched = Launched(
        step=step,
        layer=layer,
        component=np.where(anchor, component, -1).astype(np.int8),
        loose=loose & ~anchor & ~head,
        gemm=gemm | rest,
        begins=~rest,
        opens=np.isin(component, (CODES["embedding"], CODES["collective"])),
    )
    ordered, placed = place_by_order(launched, products or None)
    notes += () if products else (_NOT_PLAIN,)
    components = np.where(component >= 0, component, ordered)
    components[head] = np.where(gemm[head], CODES["lm_head"], component[head])
    outside = np.isin(components, _OUTSIDE) | head | ~model
    placed = np.where(outside, -1, placed).astype(np.int64)
    return Repeats(components.astype(np.int64), _served(components, step, placed), notes)


def _behind(model: Flags, step: Int64s) -> Flags:
    """What follows the model in its step: the logits' product may follow its graph."""
    place = pd.Series(np.arange(len(step)))
    last = place[model].groupby(step[model]).max().reindex(step, fill_value=0).to_numpy()
    behind: Flags = place.to_numpy() > last
    return behind


def _plain_products(stretches: pd.DataFrame) -> dict[str, int]:
    """How many products a layer of a plain decoder has of each kind; empty where none is plain."""
    products: dict[str, int] = {}
    for match in filter(None, map(_PLAIN.fullmatch, stretches["usual"].unique())):
        counts = {name: len(text) for name, text in match.groupdict().items() if text}
        products |= {"o_proj": 1} | counts
    return products


def keeps_cache(names: pd.Series, attentions: int) -> bool:
    """Whether about every attention has a write of a KV cache, or an attention reads one."""
    column = NameColumn(names)
    reads = column.flags(lambda name: is_attention(name) and bool(re.search(_CACHED, name)))
    # A mixed step may run two attentions a layer, for what it reads and what it goes on with.
    return 2 * int(column.flags(_writes_cache).sum()) >= attentions or bool(reads.any())


def _served(component: Codes, step: Int64s, layer: Int64s) -> Int64s:
    """The layers, a collective's as of what was launched before it, which is what it serves."""
    exchanges = component == CODES["collective"]
    rows = np.arange(len(step))
    before = np.maximum.accumulate(np.where(exchanges, -1, rows))
    same = exchanges & (before >= 0) & (step[before] == step)
    return np.where(same, layer[before], layer)


def _writes_cache(name: str) -> bool:
    return classify(name).component == "kv_write" and "slot_mapping" not in name


def _no_decoder(names: pd.Series, component: Int64s, attentions: int, generates: bool) -> str:
    """Why this is no decoder whose layers can be counted, empty where it may be one."""
    if not attentions:
        return "no range tells them, and no kernel is an attention by its name"
    if NameColumn(names).flags(lambda name: bool(re.search(_TRAINING, name))).any():
        return "this is training, which runs through them twice"
    if (component == CODES["ssm"]).any():
        return "Mamba or linear attention takes the place of some attentions"
    if not generates and not keeps_cache(names, attentions):
        return "no KV cache is written, so this is an encoder or a diffusion model"
    return ""


def _stretches(
    letters: npt.NDArray[np.uint8], step: Int64s, phase: npt.NDArray[np.object_]
) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """Each attention with what follows it up to the next one, and notes on what was left out.

    Returns:
        `rows`; the `number` of the attention, -1 for what is before the first; whether it is the
        `last`; the `text` behind the attention; the `usual` text of its kind, empty for the first
        and last; and whether it is `alike`. Nothing where they do not repeat.
    """
    rows_of_table = []
    order = np.argsort(step, kind="stable")
    order = order[step[order] >= 0]
    for rows in np.split(order, np.flatnonzero(np.diff(step[order])) + 1):
        text = letters[rows].tobytes().decode()
        spans = [match.span() for match in _ATTENTION.finditer(text)]
        edges = pairwise([(0, 0), *spans, (len(text), len(text))])
        for number, ((begin, after), (end, _)) in enumerate(edges if spans else (), -1):
            part = re.sub(r"E(?:[^GNIK]*E)*", "E", text[after:end].replace(" ", ""))
            kind = "".join(sorted({"E", "I"} & set(part)))
            here = step[rows[0]], phase[rows[0]], len(spans)
            rows_of_table.append(
                (*here, rows[begin:end], number, number == len(spans) - 1, part, kind)
            )
    columns = ["step", "phase", "layers", "rows", "number", "last", "text", "kind"]
    table = pd.DataFrame(rows_of_table, columns=columns)
    # Steps with as many attentions as all others of their phase; cut steps end a trace.
    steps = table.drop_duplicates("step")
    most = int(steps["layers"].mode().iloc[0])
    same = steps["layers"] == most
    inner = ~steps["step"].isin((steps["step"].min(), steps["step"].max()))
    same &= ~steps["phase"].isin(steps["phase"][~same & inner])
    if most not in _LAYERS or not same.any():
        lost = "no layers: the steps do not have the same number of attentions"
        return table.iloc[:0], (lost,)
    notes: tuple[str, ...] = ()
    if left := int((~same).sum()):
        notes = (f"{left} steps have no layers: the number of their attentions is not {most}, or "
                 "not that of others of their phase",)  # fmt: skip
    table = table[table["step"].isin(steps["step"][same])]
    between = (table["number"] >= 0) & ~table["last"]
    usual = table[between].groupby(["phase", "kind"])["text"].transform(lambda t: t.mode().iloc[0])
    table = table.assign(usual=usual.reindex(table.index, fill_value=""))
    table["alike"] = ~between | (table["text"] == table["usual"])
    odd = table[~table["alike"]]
    # Fewer products than a layer's lie inside one, twice as many hide an attention.
    ratio = odd["text"].str.count("G") / odd["usual"].str.count("G")
    if len(odd) > (1 - _LEAST_REPEATING) * between.sum() or not ratio.between(1, 2, "left").all():
        lost = "no layers: what lies between two attentions does not repeat"
        return table.iloc[:0], (*notes, lost)
    if len(odd):
        notes += (f"{odd['number'].nunique()} of {most} layers deviate from the others: what "
                  "follows their attention has no layer",)  # fmt: skip
    return table, notes
