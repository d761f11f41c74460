"""The machine code of a kernel on its page: the marked instructions and what stands around them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from html import escape
from pathlib import Path

import streamlit as st

from spark_prof.dashboards.charts import COLORS
from spark_prof.dashboards.units import clean, count, counted
from spark_prof.errors import CommandError
from spark_prof.explorer import state, widgets
from spark_prof.rules.opcodes import MARKS, mark_of
from spark_prof.traces.cuda_tools import find_tool
from spark_prof.traces.machine_code import Instruction, keeps_cubin, list_function

_AROUND = 4  # unmarked lines that are shown before and after a marked one
_AT_ONCE = 400  # lines that a page of the listing has

_COLORS = tuple(COLORS[name] for name in ("attention", "router", "sampler", "experts"))
"""Of each mark."""

_MARKS = "".join(
    f"<style>.sass .m{place} {{ background: {color}2e; box-shadow: inset 3px 0 {color}; }}</style>"
    for place, color in enumerate(_COLORS)
)


def can_list(bundle: str, cubin: str) -> bool:
    """Whether the bundle keeps that file, and something here reads it."""
    return keeps_cubin(Path(bundle), cubin) and bool(find_tool("nvdisasm"))


@st.cache_resource(show_spinner="Disassembling", max_entries=16)
def _listed(bundle: str, cubin: str, function: str) -> tuple[Instruction, ...]:
    return list_function(Path(bundle), cubin, function)


def draw(bundle: str, cubin: str, function: str) -> str:
    """Draws the machine code of a function; says why there is none, empty where it was drawn."""
    try:
        lines = _listed(bundle, cubin, function)
    except CommandError as error:
        return str(error)
    marks = [mark_of(line.opcode) for line in lines]
    mark_counts = Counter(mark.name for mark in marks if mark)
    choices = ("marked", "all")
    left, right = st.columns([3, 2], vertical_alignment="bottom")
    with left:
        labels = ["marked lines and those around them", "every line"]
        which = choices[widgets.choice("Lines", labels, "lines", values=choices, forget=["line"])]
    places = [place for place, mark in enumerate(marks) if mark]
    every = which == "all" or not places
    line_numbers = list(range(len(lines))) if every else around(places, len(lines))
    first = state.chosen_number("line", 0, 0, max(len(line_numbers) - 1, 0)) // _AT_ONCE * _AT_ONCE
    with right:
        _turn(first, len(line_numbers))
    legend = "".join(
        f'<span class="m{place}" title="{escape(mark.meaning)}">'
        f"{count(mark_counts[mark.name])} "
        f"{mark.name if mark_counts[mark.name] == 1 else mark.plural}</span>"
        for place, mark in enumerate(MARKS)
    )
    code = _code(lines, line_numbers[first : first + _AT_ONCE])
    st.html(
        f'{_MARKS}<div class="sass"><p>{counted(len(lines), "instruction")}:{legend}</p>'
        f'<pre tabindex="0" role="region" aria-label="Machine code"><code>{code}</code></pre></div>'
    )
    with st.container(horizontal=True, horizontal_alignment="right"):
        st.download_button(
            "SASS", lambda: _text(lines), f"{cubin}.sass", "text/plain", key="sass",
            on_click="ignore", type="tertiary",
        )  # fmt: skip
    return ""


def around(places: Sequence[int], length: int) -> list[int]:
    """The places and those near them, each once and in order.

    >>> around([0, 9], 20)
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13]
    """
    numbers: list[int] = []
    for place in places:
        low = max(place - _AROUND, numbers[-1] + 1 if numbers else 0)
        numbers += range(low, min(place + _AROUND + 1, length))
    return numbers


def _turn(first: int, length: int) -> None:
    """Draws the ways to the other pages of the listing."""
    if length <= _AT_ONCE:
        return
    last = min(first + _AT_ONCE, length)
    with st.container(horizontal=True, vertical_alignment="center"):
        for label, to, exists in (
            ("Previous", first - _AT_ONCE, first > 0),
            ("Next", last, last < length),
        ):
            st.button(label, key=f"lines-{label}", disabled=not exists, on_click=_to, args=(to,))
        st.text(f"{count(first + 1)} to {count(last)} of {count(length)}")


def _to(line: int) -> None:
    state.keep(line=line or None)


def _code(lines: Sequence[Instruction], line_numbers: Sequence[int]) -> str:
    """The lines as HTML; a line says how many were left out where some were."""
    parts: list[str] = []
    before = -1
    for place in line_numbers:
        if parts and place > before + 1:
            parts.append(f"<span><i>... {counted(place - before - 1, 'line')} ...</i></span>")
        before, line = place, lines[place]
        mark = mark_of(line.opcode)
        of = f' class="m{MARKS.index(mark)}" title="{escape(mark.name)}"' if mark else ""
        text = escape(clean(line.text))
        parts.append(f"<span{of}><i>{line.address:05x}</i>  {text}</span>")
    return "".join(parts)


def _text(lines: Sequence[Instruction]) -> bytes:
    """The whole listing as a plain file."""
    return "".join(f"/*{line.address:05x}*/  {line.text} ;\n" for line in lines).encode()
