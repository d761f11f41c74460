"""Finds the steps of a foreign trace: by ranges, marks, CUDA graph launches, or none.

A kernel belongs to the step in which it was launched, on whichever thread. Which ranges are
iterations, and what their names say about the batch, is a rule table in order of preference: of the
rules whose ranges occur in a trace the first one decides for all of it. Each row carries examples
that are its test.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields

import numpy as np
import pandas as pd

from spark_prof.analyzers.classify.classifier import is_attention
from spark_prof.analyzers.lookup import NameColumn
from spark_prof.analyzers.recorded_run import NOTHING
from spark_prof.arrays import Flags, Int64s
from spark_prof.importers.repeats import keeps_cache
from spark_prof.traces.foreign import IMPOSSIBLE, Window
from spark_prof.traces.host_timeline import stretch_at


@dataclass(frozen=True)
class StepBatch:
    """What a step worked on, as far as its name says so."""

    phase: str = "unknown"
    prefill_requests: int = 0
    prefill_tokens: int = 0
    decode_requests: int = 0
    decode_tokens: int = 0
    context_tokens: int = 0


@dataclass(frozen=True)
class StepRule:
    """Ranges whose whole name matches are steps."""

    source: str
    # For the whole name. Its groups `prefill_requests`, `prefill_tokens`, `decode_requests`,
    # `decode_tokens`, `prefill_context` and `decode_context` are numbers, `mode` is a word of
    # `modes`.
    pattern: str
    # Names with the batch that they stand for; None for one that is no step.
    examples: tuple[tuple[str, StepBatch | None], ...]
    # Whether what is launched after the range belongs to it as well, up to the next step: vLLM's
    # and SGLang's ranges end before the tokens are sampled.
    runs_on: bool = False
    # Whether the range is the last thing that a step does: the step began where the one before it
    # ended. Such ranges tell steps only where there are several of the same name.
    ends: bool = False
    modes: Mapping[str, str] = field(default_factory=dict)  # the phase that a mode stands for


RULES: tuple[StepRule, ...] = (
    # Releases before 0.26 put the sum of the squared lengths behind the tokens.
    StepRule("vLLM",
        r"execute_context_(?P<prefill_requests>\d+)\((?P<prefill_tokens>\d+)(?:_\d+)?\)"
        r"_generation_(?P<decode_requests>\d+)\((?P<decode_tokens>\d+)(?:_\d+)?\)",
        (("execute_context_1(888_788544)_generation_0(0)", StepBatch("prefill", 1, 888)),
        ("execute_context_0(0)_generation_3(3)", StepBatch("decode", 0, 0, 3, 3)),
        ("execute_context_1(64)_generation_2(2)", StepBatch("mixed", 1, 64, 2, 2)),
        ("execute_context_0(0)_generation_0(0)", None)), runs_on=True),
    StepRule("vLLM", r"execute_\d+_context_(?P<prefill_requests>\d+)"
        r"\(sq(?P<prefill_tokens>\d+)sk(?P<prefill_context>\d+)sqsq\d+sqsk\d+\)"
        r"_generation_(?P<decode_requests>\d+)"
        r"\(sq(?P<decode_tokens>\d+)sk(?P<decode_context>\d+)sqsq\d+sqsk\d+\)",
        (("execute_1_context_0(sq0sk0sqsq0sqsk0)_generation_1(sq1sk129sqsq1sqsk129)",
        StepBatch("decode", 0, 0, 1, 1, 128)),
        ("execute_64_context_1(sq64sk64sqsq4096sqsk4096)_generation_0(sq0sk0sqsq0sqsk0)",
        StepBatch("prefill", 1, 64, 0, 0, 0))), runs_on=True),
    StepRule("SGLang",
        r"step\[(?P<mode>[A-Z_]+)(?: bs=(?P<decode_requests>\d+))?(?: toks=(?P<tokens>\d+))?.*\]",
        (("step[DECODE bs=64]", StepBatch("decode", 0, 0, 64, 64)),
        ("step[EXTEND bs=2 toks=512]", StepBatch("prefill", 2, 512)),
        ("step[MIXED bs=2]", StepBatch("mixed")), ("step[IDLE]", None)), runs_on=True,
        modes={"DECODE": "decode", "TARGET_VERIFY": "decode", "EXTEND": "prefill",
        "PREFILL": "prefill", "MIXED": "mixed", "DRAFT_EXTEND": "unknown",
        "SPLIT_PREFILL": "prefill", "IDLE": ""}),
    StepRule("TensorRT-LLM",
        r"\[Executor\] _forward_step(?: \d+)?: (?P<prefill_requests>\d+) ctx reqs, "
        r"(?:(?P<prefill_tokens>\d+) ctx tokens, )?(?P<decode_requests>\d+) gen reqs",
        (("[Executor] _forward_step 60000: 0 ctx reqs, 0 ctx tokens, 32 gen reqs",
        StepBatch("decode", 0, 0, 32, 32)),
        ("[Executor] _forward_step 7: 1 ctx reqs, 2 gen reqs", StepBatch("mixed", 1, 0, 2, 2)),
        ("[Executor] _forward_step: 1 ctx reqs, 0 gen reqs", StepBatch("prefill", 1))),
        runs_on=True),
    StepRule("PyTorch", r"ProfilerStep\s?[#*]\s?\d+",
        (("ProfilerStep#6", StepBatch()), ("ProfilerStep* 6", StepBatch()))),
    StepRule("NVTX", r"(?i:step|iteration|iter|forward step)[\s_:#=]*\d+",
        (("step 12", StepBatch()), ("iteration_3", StepBatch()), ("Iter: 7", StepBatch()))),
    # Without a number such a range may well hold all steps of its phase.
    StepRule("NVTX", r"(?i:(?P<mode>prefill|decode|generation))(?:[\s_:#-]*step)?[\s_:#]*\d+",
        (("prefill 0", StepBatch("prefill")), ("decode_step 4", StepBatch("decode")),
        ("Generation step 2", StepBatch("decode"))),
        modes={"prefill": "prefill", "decode": "decode", "generation": "decode"}),
    StepRule("PyTorch", r"Optimizer\.step#\w+\.step",
        (("Optimizer.step#AdamW.step", StepBatch()),), ends=True),
)  # fmt: skip

_COMPILED = tuple(re.compile(rule.pattern) for rule in RULES)
_LARGEST = (1 << 31) - 1
_NUMBER = re.compile(r"\d+")
_LONGEST = 512  # no step's name is longer


def rule_of(name: str) -> int:
    """The number of the first rule that knows the name, -1 for none."""
    if len(name) > _LONGEST:
        return -1
    return next((i for i, p in enumerate(_COMPILED) if p.fullmatch(name)), -1)


def batch_of(name: str, rule: int) -> StepBatch | None:
    """What a step of that name worked on; None where it worked on nothing."""
    match = _COMPILED[rule].fullmatch(name)
    if match is None:
        return None
    fields = match.groupdict()
    number = {key: min(int(v), _LARGEST) for key, v in fields.items() if v and key != "mode"}
    if "mode" in fields:
        return _of_mode(str(fields["mode"]), number, RULES[rule].modes)
    if "prefill_requests" not in fields:
        return StepBatch()
    prefill, decode = number["prefill_requests"], number["decode_requests"]
    if not prefill and not decode:
        return None
    tokens = number.get("prefill_tokens", 0), number.get("decode_tokens", decode)
    # The name counts a request's whole context, this step's tokens included.
    context = number.get("prefill_context", 0) + number.get("decode_context", 0)
    phase = "mixed" if prefill and decode else "prefill" if prefill else "decode"
    computed = max(context - sum(tokens), 0)
    return StepBatch(phase, prefill, tokens[0], decode, tokens[1], computed)


def _of_mode(mode: str, number: Mapping[str, int], modes: Mapping[str, str]) -> StepBatch | None:
    phase = modes.get(mode, modes.get(mode.lower(), "unknown"))
    requests = number.get("decode_requests", 0)
    if not phase:
        return None
    if phase == "prefill":
        return StepBatch(phase, requests, number.get("tokens", 0))
    if phase == "decode":
        return StepBatch(phase, 0, 0, requests, number.get("tokens", requests))
    return StepBatch(phase)


NOTHING_TELLS = "nothing tells the steps: figures are of the whole recording"
"""What a trace lacks in which no step is known."""
OVERLONG = "ranges of steps reach over several others of their name and are left out"

_FEWEST_STEPS = 3
_FEWEST_ENDS = 2  # ranges that end a step, of one name
_FEWEST_HELD = 2  # steps of the same name within one: it is no step, or its time cannot be
_MOST_OVERLONG = 0.1  # of all steps; where more hold others, they are of another level
_FEWEST_LAYERS = 2  # a graph with fewer attention kernels is a piece of a model, not a step of it


class ImportedSteps:
    """The steps of one process, found window by window."""

    def __init__(self, begin_ns: int = 0) -> None:
        """Begins without a step.

        Args:
            begin_ns: when the trace begins, and so its first step where only ends are told.
        """
        self._rule, self._begin, self._ends_with = -1, begin_ns, ""
        self._batches: list[StepBatch] = []
        self._by_graphs = False
        self._start = np.empty(0, np.int64)
        self._end = np.empty(0, np.int64)
        self._until = np.empty(0, np.int64)
        self.lost: list[str] = []
        self.has_source = True

    def __len__(self) -> int:
        return len(self._start)

    @property
    def told_by(self) -> str:
        """What tells the steps: ranges, optimizer steps, CUDA graphs, or nothing."""
        if not self.has_source:
            return NOTHING
        if self._by_graphs:
            return "CUDA graphs"
        return "optimizer steps" if self._rule >= 0 and RULES[self._rule].ends else "ranges"

    @property
    def generates(self) -> bool:
        """Whether ranges of the engine say which of them read prompts and which generate."""
        return self._rule >= 0 and any(batch.phase != "unknown" for batch in self._batches)

    def add_markers(self, markers: pd.DataFrame) -> None:
        """Takes in the ranges that began in a window; the first window with steps decides."""
        names = markers["name"].cat.categories
        rules = np.array([rule_of(str(name)) for name in names] + [-1], np.int64)
        codes = markers["name"].cat.codes.to_numpy()
        of_row = rules[codes]
        step_rules = of_row[of_row >= 0]
        if not len(step_rules):
            return
        if self._rule < 0:
            rule = int(step_rules.min())
            if RULES[rule].ends:
                # Of several optimizers the one that is done last ends the step.
                mine = markers[of_row == rule].sort_values("end_ns", kind="stable")
                self._ends_with = str(mine["name"].iloc[-1])
                if int((mine["name"] == self._ends_with).sum()) < _FEWEST_ENDS:
                    return
            self._rule = rule
        mine = markers[of_row == self._rule]
        if self._ends_with:
            end = np.sort(mine.loc[mine["name"] == self._ends_with, "end_ns"].to_numpy(np.int64))
            start = np.append(self._end[-1:] if len(self) else self._begin, end[:-1])
            self.add(start.astype(np.int64), end, [StepBatch()] * len(end))
            return
        batches = [batch_of(str(name), self._rule) for name in mine["name"]]
        has_batch = np.array([batch is not None for batch in batches], bool)
        has_batch &= ~self._overlong(mine)
        frame = mine[has_batch]
        start, end = (frame[name].to_numpy(np.int64) for name in ("start_ns", "end_ns"))
        if len(start) > 1 and (start == end).all():
            # Marks: each begins a step, which the next one ends; the last one as late as usual.
            order = np.argsort(start, kind="stable")
            usual = int(np.median(np.diff(start[order])))
            frame, start = frame.iloc[order], start[order]
            end = np.append(start[1:] - 1, start[-1] + usual)
        batches_of_frame = [batch_of(str(name), self._rule) for name in frame["name"]]
        self.add(start, end, [batch for batch in batches_of_frame if batch is not None])

    def _overlong(self, ranges: pd.DataFrame) -> Flags:
        """Ranges that reach over several others of their name but for numbers: they cannot be.

        Where many do, they are steps of steps.
        """
        start, end = (ranges[name].to_numpy(np.int64) for name in ("start_ns", "end_ns"))
        overlong = np.zeros(len(start), bool)
        stem = np.array([_NUMBER.sub("", str(name)) for name in ranges["name"]], object)
        for same in dict.fromkeys(stem):
            rows = np.flatnonzero(stem == same)
            rows = rows[np.argsort(start[rows], kind="stable")]
            ranges_inside = np.searchsorted(start[rows], end[rows]) - np.arange(len(rows)) - 1
            over = ranges_inside >= _FEWEST_HELD
            if over.sum() <= max(1, _MOST_OVERLONG * len(rows)):
                overlong[rows[over]] = True
        if overlong.any():
            self.lost.append(f"{IMPOSSIBLE} {overlong.sum()} {OVERLONG}")
        return overlong

    def add(self, start: Int64s, end: Int64s, batches: list[StepBatch]) -> None:
        """Takes in steps; of two that overlap the one that began first is kept."""
        start, end = np.concatenate([self._start, start]), np.concatenate([self._end, end])
        batches = self._batches + batches
        order = np.lexsort((-end, start))
        start, end = start[order], end[order]
        reached = np.append(np.iinfo(np.int64).min, np.maximum.accumulate(end)[:-1])
        whole = start >= reached
        self._start, self._end = start[whole], end[whole]
        self._batches = [batches[i] for i in order[whole].tolist()]
        self._until = self._runs_until()

    def of(self, times: Int64s) -> Int64s:
        """The step that was running at each time, -1 for none."""
        return stretch_at(times, self._start, self._until)

    def frame(self) -> pd.DataFrame:
        """Rows of the `steps` table."""
        columns = [column.name for column in fields(StepBatch)]
        frame = pd.DataFrame([asdict(b) for b in self._batches], columns=columns)
        return frame.assign(
            step=np.arange(len(self)),
            key=0,
            start_ns=self._start,
            end_ns=self._end,
            piece=0,
            watched=True,
            recomputed_tokens=0,
            preempted=0,
        )

    def _runs_until(self) -> Int64s:
        """Until when what is launched belongs to each step."""
        if self._ends_with:
            # What follows the last optimizer step at once is its own: a next one would take longer.
            until = self._end.copy()
            until[-1] += int(np.median(self._end - self._start)) // 2
            return until
        if self._rule < 0 or not RULES[self._rule].runs_on:
            return self._end
        between = np.append(self._start[1:] - 1, 0)
        # The last step is granted as much as one before it took, or once more its own length.
        usual = between[:-1] - self._end[:-1]
        extra = int(usual.max()) if len(usual) else int(self._end[-1] - self._start[-1])
        between[-1] = self._end[-1] + extra
        return between


def one_step(start_ns: int, end_ns: int) -> ImportedSteps:
    """The whole trace as one step of which nothing is known."""
    steps = ImportedSteps()
    steps.has_source = False
    steps.add(np.array([start_ns], np.int64), np.array([end_ns], np.int64), [StepBatch()])
    return steps


def steps_by_graphs(window: Window) -> ImportedSteps | None:
    """The steps of a window that is a whole trace; None where graphs do not tell.

    An engine that replays one graph of the whole model a step launches it once in each decode step.
    Between two launches the host pauses longest where it waits for the sampled tokens and chooses
    the next batch: there one step ends and the next begins. This is a guess, and says so.
    """
    gpu, launches = window.trace.gpu, window.trace.launches
    replayed = gpu[window.in_graphs()]
    if replayed.empty:
        return None
    attention = NameColumn(replayed["name"]).flags(is_attention)
    if not keeps_cache(replayed["name"], int(attention.sum())):
        return None
    layers = pd.Series(attention).groupby(replayed["correlation"].to_numpy()).sum()
    whole = layers.index[layers >= max(_FEWEST_LAYERS, int(layers.median()))]
    times = launches.drop_duplicates("correlation").set_index("correlation")["start_ns"]
    graphs = np.sort(times.reindex(whole).dropna().to_numpy(np.int64))
    if len(graphs) < _FEWEST_STEPS:
        return None
    calls = launches[["start_ns", "end_ns"]].sort_values("start_ns").to_numpy(np.int64)
    begins = [_longest_pause(calls, a, b) for a, b in itertools.pairwise(graphs)]
    # The first decode step begins after the longest pause within a period before it.
    first = _longest_pause(calls, int(graphs[0] - np.diff(graphs).max()), graphs[0])
    start = np.array([first, *begins], np.int64)
    last = max(int(launches["end_ns"].max()), int(gpu["end_ns"].max()))
    end = np.append(start[1:] - 1, last)
    steps = ImportedSteps()
    steps._by_graphs = True
    steps.add(start, end, [StepBatch("decode")] * len(start))
    before = calls[calls[:, 0] < first, 0]
    if len(before) and NameColumn(gpu["name"]).flags(is_attention)[window.launch_ns < first].any():
        steps.add(before[:1], np.array([first - 1], np.int64), [StepBatch("prefill")])
        steps.lost.append("what ran before the first decode step counts as one prefill step")
    steps.lost.append(
        "no range names the steps: each launch of a CUDA graph of the whole model counts as one "
        "decode step (a guess), its batch size is unknown"
    )
    return steps


def _longest_pause(calls: Int64s, after: int, before: int) -> int:
    """When the call begins that ends the longest pause between two moments."""
    low, high = np.searchsorted(calls[:, 0], [after, before + 1])
    between = calls[low:high]
    if len(between) < 2:
        return before
    return int(between[1:, 0][np.argmax(between[1:, 0] - between[:-1, 1])])
