"""The thresholds of findings: from where on something is worth telling, and why from there.

Rules read a row by its name, `thresholds.GAP_SHARE.value`, so that a misspelled one is an error of
types. docs/findings.md has the table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

Number = TypeVar("Number", int, float)

_JUDGEMENT = "chosen by judgement"


@dataclass(frozen=True)
class Threshold(Generic[Number]):
    """One bound of one or several rules.

    Threshold("share-of-copies", ("copies-in-decode",), 0.03, "of a decode step").value == 0.03
    """

    name: str  # words joined by hyphens
    findings: tuple[str, ...]  # the rules that ask it; empty for what all of them share
    value: Number
    unit: str
    why: str = _JUDGEMENT
    source: str = ""  # where the reason stands or was measured; empty for a judgement


GAP_SHARE = Threshold(
    "gap-share", ("host-gaps", "scheduler-gaps"), 0.05, "of a decode step",
)  # fmt: skip
GAP_STEPS = Threshold(
    "gap-steps", ("host-gaps", "scheduler-gaps", "idle-gpu"), 8, "decode steps",
    "fewer are few to judge by",
)  # fmt: skip
BETWEEN_KERNELS = Threshold(
    "between-kernels", ("host-gaps", "small-kernels"), 1.0, "us",
    "what the GPU needs from one kernel of a CUDA graph to the next, and no host can help: 0.4 to "
    "0.5 us in the median, 0.7 to 1.1 us in the 99th percentile",
    "measured on an H100, h100-qwen3-30b-a3b-nvfp4-graphs and h100-gpt-oss-20b-mxfp4-graphs",
)  # fmt: skip
IDLE_SHARE = Threshold(
    "idle-share", ("idle-gpu",), 0.5, "of a decode step",
    "no kernel can win as much as the host's part then",
)  # fmt: skip
SLOW_STEPS = Threshold(
    "slow-steps-of", ("slow-steps",), 16, "decode steps",
)  # fmt: skip
UNEVEN_SHARE = Threshold(
    "uneven-share", ("slow-steps",), 0.05, "of the mean decode step",
)  # fmt: skip
SLOW_TIMES = Threshold(
    "slow-times", ("slow-steps",), 2.0, "times the median decode step",
)  # fmt: skip
MIXED_SHARE = Threshold(
    "mixed-share", ("mixed-steps",), 0.05, "of a token's time without prompts",
)  # fmt: skip
SMALL_KERNELS = Threshold(
    "small-kernels", ("small-kernels",), 50, "kernels of a decode step",
)  # fmt: skip
SMALL_SHARE = Threshold(
    "small-share", ("small-kernels",), 0.1, "of a decode step",
)  # fmt: skip
COPY_SHARE = Threshold(
    "copy-share", ("copies-in-decode",), 0.03, "of a decode step",
)  # fmt: skip
SAMPLER_SHARE = Threshold(
    "sampler-share", ("sampler-cost",), 0.03, "of a decode step",
)  # fmt: skip
FAR_TIMES = Threshold(
    "far-times", ("far-from-memory-floor",), 2.0, "times the lower bound",
)  # fmt: skip
KERNEL_SHARE = Threshold(
    "kernel-share", ("far-from-memory-floor", "bf16-weights-dominate", "read-more-than-needed"),
    0.02, "of a decode step", "below it no kernel is worth a finding",
)  # fmt: skip
WIDE_SHARE = Threshold(
    "wide-share", ("bf16-weights-dominate",), 0.25, "of the bytes that a decode step streams",
)  # fmt: skip
REREAD_TIMES = Threshold(
    "reread-times", ("read-more-than-needed",), 1.2, "times the weights and the KV cache",
)  # fmt: skip
STAKE_SHARE = Threshold(
    "stake-share", ("grid-smaller-than-gpu", "tail-wave", "tile-waste", "low-occupancy"), 0.02,
    "of a decode step",
)  # fmt: skip
PRODUCT_TIME = Threshold(
    "product-time", ("grid-smaller-than-gpu", "tail-wave", "tile-waste", "low-occupancy"), 5.0,
    "us a call", "a shorter one is little more than a start",
)  # fmt: skip
IDLE_BLOCKS = Threshold(
    "idle-blocks", ("grid-smaller-than-gpu", "low-occupancy"), 0.1, "of the multiprocessors",
)  # fmt: skip
TAIL_PLACES = Threshold(
    "tail-places", ("tail-wave",), 0.8, "of the places of all waves",
)  # fmt: skip
EMPTY_ROWS = Threshold(
    "empty-rows", ("tile-waste",), 0.5, "of the rows of a tile",
)  # fmt: skip
RIDGE_SHARE = Threshold(
    "ridge-share", ("tile-waste",), 0.5, "of the time of its memory traffic",
)  # fmt: skip
SLOW_READ = Threshold(
    "slow-read", ("low-occupancy",), 0.5, "of the measured read bandwidth",
)  # fmt: skip
FEW_WARPS = Threshold(
    "few-warps", ("low-occupancy",), 0.25, "of the warps of a multiprocessor",
)  # fmt: skip
DEEP_PIPELINE = Threshold(
    "deep-pipeline", ("low-occupancy",), 64 << 10, "bytes of shared memory a multiprocessor",
    "it can hold what was fetched ahead, and warps matter less then",
)  # fmt: skip
LATE_SHARE = Threshold(
    "late-share", ("straggler-rank",), 0.02, "of a decode step",
)  # fmt: skip
REDUCE_SHARE = Threshold(
    "reduce-share", ("nccl-all-reduce",), 0.05, "of a decode step",
)  # fmt: skip
SMALL_MESSAGE = Threshold(
    "small-message", ("nccl-all-reduce",), 100.0, "us a call",
    "vLLM's own all-reduce takes less for small messages only",
)  # fmt: skip
CLOCK_SHARE = Threshold(
    "clock-share", ("clocks-held-down",), 0.9, "of the highest clock",
)  # fmt: skip
VERIFICATIONS = Threshold(
    "verifications",
    ("drafts-do-not-pay", "drafts-too-many", "drafts-too-few", "drafts-outside-graphs"), 16,
    "verifications", "of fewer nothing is said",
)  # fmt: skip
DRAFT_SHARE = Threshold(
    "draft-share",
    ("drafts-do-not-pay", "drafts-too-many", "drafts-too-few", "drafter-lm-head"), 0.02,
    "of a token's time",
)  # fmt: skip
HARDLY_ACCEPTED = Threshold(
    "hardly-accepted", ("drafts-do-not-pay",), 0.2, "accepted drafts of a verification",
)  # fmt: skip
SELDOM_ACCEPTED = Threshold(
    "seldom-accepted", ("drafts-too-many",), 0.05, "of the drafts at a place",
)  # fmt: skip
NEARLY_ALWAYS_ACCEPTED = Threshold(
    "nearly-always-accepted", ("drafts-too-few",), 0.8, "of the drafts at the last place",
)  # fmt: skip
MOST_DRAFTS = Threshold(
    "most-drafts", ("drafts-too-few",), 7, "drafts that are advised",
)  # fmt: skip
OUTSIDE_GRAPHS = Threshold(
    "outside-graphs", ("drafts-outside-graphs",), 0.1, "of the steps with drafts",
)  # fmt: skip
QUEUE_REQUESTS = Threshold(
    "queue-requests", ("requests-queue", "kv-cache-bound"), 8, "requests",
    "fewer say little about a queue",
)  # fmt: skip
QUEUE_SHARE = Threshold(
    "queue-share", ("requests-queue", "kv-cache-bound"), 0.5,
    "of the median time to the first token",
)  # fmt: skip
BOUND_BATCHES = Threshold(
    "bound-batches", ("requests-queue", "kv-cache-bound"), 0.25, "of the batches",
)  # fmt: skip
KV_FULL = Threshold(
    "kv-full", ("requests-queue",), 0.9, "of the KV cache",
)  # fmt: skip
REPEATED_SHARE = Threshold(
    "repeated-share", ("quantized-once-per-consumer",), 0.005, "of a decode step",
)  # fmt: skip
QUANTIZED_SHARE = Threshold(
    "quantized-share", ("lm-head-not-quantized",), 0.5, "of the bytes of the layers",
)  # fmt: skip
HEAD_SHARE = Threshold(
    "head-share", ("lm-head-widened", "lm-head-not-quantized"), 0.01, "of a decode step",
)  # fmt: skip
HEAD_CAST_SHARE = Threshold(
    "head-cast-share", ("lm-head-widened",), 0.005, "of a decode step",
)  # fmt: skip
PADDED_TIMES = Threshold(
    "padded-times", ("graph-sizes-missing",), 1.5, "times the tokens of a step",
    "a step that is padded so far could use a graph of its own size",
)  # fmt: skip
PADDED_STEPS = Threshold(
    "padded-steps", ("graph-sizes-missing",), 0.01, "of the decode steps",
    "below it a size does not matter",
)  # fmt: skip
SAME_STATISTIC = Threshold(
    "same-statistic", (), 0.02, "of a claim",
    "two statistics of one time may differ by as much: such a cut goes without saying",
)  # fmt: skip
NOTHING_LEFT = Threshold(
    "nothing-left", (), 0.01, "of a claim", "where less is left, it is the time of other findings",
)  # fmt: skip
SAME_BYTES = Threshold(
    "same-bytes", (), 0.02, "of the bytes of two weights of one shape",
    "padding and factors are among them",
)  # fmt: skip
QK_NORM_WIDTH = Threshold(
    "qk-norm-width", ("small-kernels",), 256, "elements",
    "norms of q and k are as wide as a head, those of layers several times as wide",
)  # fmt: skip
HOST_SAMPLES = Threshold(
    "host-samples", ("host-code",), 30, "samples of stacks while the GPU waits",
    "with fewer the 95 % interval of a share is wider than 0.34",
)  # fmt: skip
HOST_SHARE = Threshold(
    "host-share", ("host-code",), 0.4, "of the time in which the GPU waits, by the lower end of "
    "the 95 % interval",
)  # fmt: skip
HOST_GAP = Threshold(
    "host-gap", ("host-code",), 0.05, "of a mean profiled step",
)  # fmt: skip
HOST_SURE = Threshold(
    "host-sure", ("host-code",), 0.2, "of the samples in gaps, whatever the error of their times",
    "with fewer the gaps are shorter than the times of the samples are exact",
)  # fmt: skip
SPINNING_SHARE = Threshold(
    "spinning-share", (), 0.9, "of a processor, by a thread without Python",
    "a thread that waits for work in a loop uses a whole one, less what others take from it",
)  # fmt: skip

THRESHOLDS: tuple[Threshold[int] | Threshold[float], ...] = tuple(
    row for row in tuple(globals().values()) if isinstance(row, Threshold)
)
"""Every row, in the order of docs/findings.md."""
