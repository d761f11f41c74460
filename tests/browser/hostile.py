"""A recording whose every text is an attack on the page that shows it."""

from __future__ import annotations

import json
from itertools import cycle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

ATTACKS = (
    '<img src=x onerror="window.fuzzed=1"><fuzzed class=fuzzed>',
    "<script>window.fuzzed=1</script>",
    "</text></svg><fuzzed>",
    '<a href="javascript:window.fuzzed=1"><b>fuzzed</b></a>',
    "**fuzzed** _fuzzed_ ~~fuzzed~~ `fuzzed`",
    "[fuzzed](http://fuzzed.example/) ![fuzzed](http://fuzzed.example/p.png)",
    "http://fuzzed.example/ www.fuzzed.example fuzzed@fuzzed.example",
    "$\\frac{fuzzed}{2}$ $$fuzzed^2$$ \\(fuzzed\\)",
    ":smile: :material/home: :red[fuzzed] :blue-background[fuzzed] :streamlit:",
    "\n# fuzzed\n\n- [ ] fuzzed\n\n> fuzzed\n\n|a|b|\n|-|-|\n|fuzzed|b|",
    "%{x} %{customdata[0]} <extra></extra><br>fuzzed",
    "&lt;fuzzed&gt; &#60;fuzzed&#62; fuzzed -> fuzzed <-",
    "'\"; window.fuzzed=1; //",
    "\u202efuzzed\u202c\u0000\u001b[31mfuzzed",
)
"""What stands behind every text of the recording, one after the other."""

ACTED = """() => {
    const found = [];
    if (window.fuzzed !== undefined) found.push('a script ran');
    const inside = 'fuzzed, .fuzzed, .katex, .js-plotly-plot a, [href*="fuzzed.example"], '
        + '[src*="fuzzed.example"], [href^="javascript"], [onerror], [data-testid=stImage]';
    for (const e of document.querySelectorAll(inside)) found.push(e.outerHTML.slice(0, 300));
    const marked = 'b, i, em, strong, del, s, code, a, h1, h2, h3, li, blockquote, td, th, '
        + '[style*="color:"], [class*=stMarkdownColor]';
    const own = (e) => [...e.childNodes].map((n) => n.nodeType === 3 ? n.data : '').join('');
    for (const e of document.querySelectorAll(marked))
        if (own(e).trim() === 'fuzzed') found.push(e.outerHTML.slice(0, 300));
    return found;
}"""
"""A script that lists what in the page acts on an attack instead of showing it."""

_TEXTS = {
    "kernels": ["name"], "host": ["name"], "layers": ["path", "type", "kernel", "parameters"],
    "modules": ["type"], "log": ["process", "message"], "functions": ["name"],
}  # fmt: skip
_FACTS = ("model", "vllm", "torch", "cuda", "driver", "host", "execution", "python", "quantization")


def write_hostile(source: Path, target: Path) -> Path:
    """Writes a copy of a bundle in which an attack stands behind every text."""
    target.mkdir()
    meta = json.loads((source / "meta.json").read_text())
    for name in meta["tables"]:
        table = pq.read_table(source / name, partitioning=None)
        for column in _TEXTS.get(name.split("-")[0], ()):
            if column in table.column_names:
                place = table.column_names.index(column)
                table = table.set_column(place, column, _attacked(table[column]))
        pq.write_table(table, target / name)
    meta["command"] = [
        word + attack for word, attack in zip(meta["command"], cycle(ATTACKS), strict=False)
    ]
    meta["lost"] = list(ATTACKS)
    for facts in meta["facts"].values():
        for number, name in enumerate(_FACTS):
            if isinstance(facts.get(name), str):
                facts[name] += ATTACKS[number % len(ATTACKS)]
        if isinstance(facts.get("gpu"), dict) and "name" in facts["gpu"]:
            facts["gpu"]["name"] += ATTACKS[0]
    (target / "meta.json").write_text(json.dumps(meta))
    return target


def _attacked(texts: pa.ChunkedArray) -> pa.Array:
    """Each different text with an attack of its own behind it."""
    values = texts.to_pylist()
    attacks: dict[Any, str] = dict(zip(dict.fromkeys(values), cycle(ATTACKS), strict=False))
    return pa.array([v and v + attacks[v] for v in values], pa.string()).cast(texts.type)
