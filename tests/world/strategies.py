"""Worlds at random, for hypothesis."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from hypothesis import strategies as st

from tests.world.world import NAMES, Launch, Step, World

OF_LAYER = (
    ("norm", "norm"),
    ("qkv", "gemm"),
    ("attention", "flash"),
    ("o_proj", "gemm"),
    ("router", "gemm"),
    ("experts", "moe"),
)
CONVERSIONS = (("qkv", "quantize"), ("o_proj", "cast"), ("experts", "quantize"))
Draw = Callable[[st.SearchStrategy], int]  # type: ignore[type-arg]


@st.composite
def launches(
    draw: Draw, layers: int, *, overlaps: bool = True, copies: bool = True, ranks: int = 1
) -> tuple[Launch, ...]:
    """What a step launches, in the order of a decoder."""
    ticks = st.integers(20, 60)
    gaps = st.integers(-15, 12) if overlaps else st.integers(0, 12)
    streams = st.sampled_from([7, 7, 7, 9] if overlaps else [7])
    converts = draw(st.sets(st.sampled_from(CONVERSIONS)))

    def one(part: str, name: str, layer: int = -1) -> Launch:
        return Launch(part, NAMES[name], draw(ticks), layer, draw(gaps), draw(streams))

    found = [one("embed", "unknown")]
    for layer in range(layers):
        for part, name in OF_LAYER:
            found += [one(*also, layer) for also in sorted(converts) if also[0] == part]
            found.append(one(part, name, layer))
            if part == "o_proj" and ranks > 1:
                # The first of a stream: nothing that it waits for but the other ranks.
                found.append(Launch(part, NAMES["all_reduce"], draw(ticks), layer, 1))
    found.append(one("finish", "gemm"))
    found.append(one("sample", "unknown"))
    if copies:
        for part in draw(st.lists(st.sampled_from(["prepare", "finish"]), max_size=2)):
            name = draw(st.sampled_from(["copy", "memset"]))
            found.insert(0 if part == "prepare" else len(found), Launch(
                part, NAMES[name], draw(st.integers(1, 9)), -1, draw(st.integers(0, 3)), 7,
                draw(st.sampled_from([0, 64]))))  # fmt: skip
    return tuple(found)


@st.composite
def worlds(
    draw: Draw,
    *,
    phases: tuple[str, ...] = ("decode", "decode", "mixed", "prefill"),
    ranks: int = 1,
    overlaps: bool = True,
    least: int = 1,
) -> World:
    """A run of a few steps that launch the same, each kernel a little longer or shorter."""
    layers = draw(st.integers(1, 2))
    base = draw(launches(layers, overlaps=overlaps, ranks=ranks))
    steps = []
    for _ in range(draw(st.integers(least, 6))):
        phase = draw(st.sampled_from(phases))
        late = draw(st.integers(0, 9))
        own = tuple(
            each._replace(ticks=each.ticks + (5 * place + late) % 7)
            for place, each in enumerate(base)
        )
        steps.append(
            Step(
                own, phase,
                requests=0 if phase == "prefill" else draw(st.integers(1, 3)),
                prompts=int(phase != "decode"),
                prompt_tokens=8 if phase != "decode" else 0,
                tokens=draw(st.sampled_from([1, 1, 2])) if phase == "decode" else 1,
                host=draw(st.integers(0, 30)), tail=draw(st.integers(1, 30)),
                ahead=draw(st.sampled_from([0, 0, 40])),
            )
        )  # fmt: skip
    world = World(tuple(steps), layers, ranks, tick=draw(st.sampled_from([1, 7, 1000])),
                  loading=draw(st.integers(0, 2)))  # fmt: skip
    if any(one.phase == "decode" for one in steps) and ranks == 1:
        world = replace(world, graphs=draw(st.booleans()))
    if not any(one.ahead for one in steps):
        world = replace(world, pieces=draw(st.integers(1, 2)))
    return replace(world, skew=draw(st.integers(0, 20)) if ranks > 1 else 0)
