"""Where acceptance comes from: a file of requests, a recording, or the server that runs."""

from __future__ import annotations

import json
import re
import urllib.request
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from spark_prof.ab.messages import RequestDrafts
from spark_prof.analyzers.speculation.acceptance import MOST
from spark_prof.errors import CommandError
from spark_prof.speculate.acceptance import (
    Acceptance,
    Prompts,
    counted_acceptance,
    server_acceptance,
)
from spark_prof.traces.bundle import Bundle

MOST_REQUESTS = 256
_LARGEST = 64 << 20
_LONGEST = 4 << 20
_EXAMPLE = """a line each, such as {"prompt": "Why is the sky blue?"}, or plain text"""
_COUNTER = re.compile(
    r"^vllm:spec_decode_(?P<name>num_drafts|num_draft_tokens|num_accepted_tokens_per_pos)"
    r"(?:_total)?(?:\{(?P<labels>[^}]*)\})? (?P<value>[0-9.eE+]+)$",
    re.M,
)
_POSITION = re.compile(r'position="(\d{1,3})"')
_SECONDS = 10


def read_requests(path: Path) -> Prompts:
    """The prompts of a file, a line each; the first 256 of them.

    A line is text, or JSON: a string, a list of token ids, or an object with one of the two as its
    `prompt`. CommandError names the line that is none.
    """
    try:
        if path.stat().st_size > _LARGEST:
            raise CommandError(f"{path} has more than {_LARGEST >> 20} MB; give fewer requests")
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"cannot read {path} as text: {error}") from error
    prompts = tuple(_prompts(path, lines))
    if not prompts:
        raise CommandError(f"{path} has no request; write {_EXAMPLE}")
    return prompts[:MOST_REQUESTS]


def _prompts(path: Path, lines: list[str]) -> Iterator[str | tuple[int, ...]]:
    for number, line in enumerate(lines, start=1):
        text = line.strip()
        if not text:
            continue
        prompt: Any = line
        if text[0] in '{["':
            try:
                prompt = json.loads(text)
            except (ValueError, RecursionError):
                if text[0] == "{":
                    raise CommandError(
                        f"{path}, line {number}: no JSON; write {_EXAMPLE}"
                    ) from None
            if isinstance(prompt, dict):
                prompt = prompt.get("prompt")
        if isinstance(prompt, list) and prompt and all(_is_token(token) for token in prompt):
            prompt = tuple(prompt)
        if not (isinstance(prompt, str | tuple) and 0 < len(prompt) <= _LONGEST):
            raise CommandError(
                f"{path}, line {number}: no prompt; write {_EXAMPLE} (of a chat the text that its "
                "template makes)"
            )
        yield prompt


def _is_token(token: object) -> bool:
    return type(token) is int and 0 <= token < 1 << 31


def recorded_acceptance(bundle: Bundle) -> Acceptance:
    """The acceptance in a recording; steps in which a request had no drafts do not count."""
    names = (name.removesuffix(".parquet").rpartition("-rank") for name in bundle.meta.tables)
    replicas = [int(rank) for table, _, rank in names if table == "drafts"]
    counts: dict[tuple[int, int], list[list[int]]] = defaultdict(list)
    for replica in replicas:
        rows = bundle.frame("drafts", replica, ["request", "proposed", "accepted"])
        rows = rows[rows["proposed"].between(1, MOST) & (rows["accepted"] >= 0)]
        for request, proposed, accepted in rows.itertuples(index=False):
            counts[replica, int(request)].append([int(proposed), int(accepted)])
    requests = []
    for steps in counts.values():
        most = max(proposed for proposed, _ in steps)
        requests.append(
            RequestDrafts(
                len(steps),
                tuple(sum(proposed > at for proposed, _ in steps) for at in range(most)),
                tuple(sum(accepted > at for _, accepted in steps) for at in range(most)),
            )
        )
    if not requests:
        raise CommandError(
            f"{bundle.named or 'the recording'} has no drafts; record an engine that speculates"
        )
    return counted_acceptance(requests, "recording")


def served_acceptance(url: str) -> Acceptance:
    """What the server at a URL has counted since it started, by its metrics."""
    address = url.rstrip("/").removesuffix("/metrics").removesuffix("/v1") + "/metrics"
    if not address.startswith(("http://", "https://")):
        raise CommandError(f"--server {url}: give its URL, such as http://127.0.0.1:8000")
    try:
        with urllib.request.urlopen(address, timeout=_SECONDS) as answer:
            text = answer.read(_LARGEST).decode("utf-8", "replace")
    except (OSError, ValueError) as error:
        why = getattr(error, "reason", error)
        raise CommandError(f"cannot read {address}: {why}; does the server run?") from error
    return acceptance_of_metrics(text)


def acceptance_of_metrics(text: str) -> Acceptance:
    """The acceptance by vLLM's metrics, in the text that Prometheus reads, over all engines."""
    sums: dict[str, float] = defaultdict(float)
    positions: dict[int, float] = defaultdict(float)
    for match in _COUNTER.finditer(text):
        value = float(match["value"])
        if match["name"] != "num_accepted_tokens_per_pos":
            sums[match["name"]] += value
        elif position := _POSITION.search(match["labels"] or ""):
            positions[int(position[1])] += value
    accepted = [round(positions[at]) for at in range(max(positions, default=-1) + 1)][:MOST]
    return server_acceptance(round(sums["num_drafts"]), round(sums["num_draft_tokens"]), accepted)
