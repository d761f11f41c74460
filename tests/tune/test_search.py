"""The search of a tune on simulated engines: what it finds, refuses, drops and keeps within."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.ab_power import NOISES
from spark_prof.tune.bench import Budget
from spark_prof.tune.known_gains import TrialEvidence
from spark_prof.tune.search import Search
from spark_prof.tune.stages import family
from spark_prof.tune.tune_trial import BASE, EngineEndedError, TuneTrial, fits, rivals, sets_of
from tests.tune.simulated import Simulated, candidate, search

MOE, ROUTER, QKV, OUT, HEAD = (f"{s}=spark_prof" for s in ("moe", "router", "qkv", "o", "lm_head"))
GAINS = {MOE: 1.3, ROUTER: 1.03, QKV: 1.0, OUT: 0.9, HEAD: 1.05, "moe=fp8": 1.1}
X, Y = "--max-num-seqs 4", "VLLM_USE_X=1"


def test_the_best_combination_is_found_and_confirmed_in_eight_minutes() -> None:
    measure = Simulated(GAINS)
    found = search(measure, *GAINS)
    assert set(found.answer) == {MOE, ROUTER, HEAD}
    for timed in found.times:
        assert timed.gain is not None
        assert timed.gain.low <= 1.3 * 1.03 * 1.05 <= timed.gain.high
    assert found.verdicts["moe=fp8"] == ("faster", f"{MOE} is faster in its place")
    assert found.verdicts[OUT][0] == "slower"
    assert found.verdicts[QKV][0] == "no effect"
    assert [t.stage for t in found.trials].count("confirmation") == 2
    assert measure.starts <= 3  # search, confirmation, and one more for an unforeseen combination


def test_what_two_bring_together_is_measured() -> None:
    worse = Simulated({MOE: 1.2, HEAD: 1.1}, joined={frozenset({MOE, HEAD}): 1.15})
    found = search(worse, MOE, HEAD)
    assert found.answer == (MOE,)
    assert found.verdicts[HEAD] == ("faster", f"brings nothing beside {MOE}")


def test_several_swaps_in_one_candidate_are_held_against_the_best_of_them() -> None:
    bundle = ",".join((MOE, OUT, HEAD))
    assert set(search(Simulated(GAINS), bundle, *GAINS).answer) == {MOE, ROUTER, HEAD}
    only_together = Simulated({MOE: 1.1, OUT: 1.0}, joined={frozenset({MOE, OUT}): 1.3})
    assert search(only_together, f"{MOE},{OUT}", MOE, OUT).answer == (f"{MOE},{OUT}",)


def test_planted_candidates_are_told_and_not_chosen() -> None:
    """10 % slower, a crash, a hang, other answers and noise, beside a right one."""
    words = [MOE, OUT, QKV, ROUTER, HEAD, "norm=spark_prof"]
    for tells_who in (True, False):
        measure = Simulated(
            {MOE: 1.2, OUT: 0.9, QKV: 1.0},
            ends={ROUTER: "changes answers"},
            crashes=frozenset({HEAD}),
            hangs=frozenset({"norm=spark_prof"}),
            tells_who=tells_who,
            seconds=1200,
        )
        found = search(measure, *words)
        assert found.answer == (MOE,)
        verdicts = {w: verdict for w, (verdict, _) in found.verdicts.items()}
        assert verdicts == {
            MOE: "chosen", OUT: "slower", QKV: "no effect", ROUTER: "changes answers",
            HEAD: "failed", "norm=spark_prof": "failed",
        }  # fmt: skip
        for bad in (ROUTER, HEAD, "norm=spark_prof"):
            assert found.verdicts[bad][1], bad


def test_planted_options_are_told_and_not_chosen() -> None:
    measure = Simulated(
        {X: 1.2, Y: 1.0, "--a 1": 0.9},
        ends={"--b 1": "changes answers"},
        crashes=frozenset({"--c 1"}),
        hangs=frozenset({"--d 1"}),
        seconds=3600,
    )
    found = search(measure, X, Y, *(f"--{letter} 1" for letter in "abcd"))
    assert found.answer == (X,)
    verdicts = {w: verdict for w, (verdict, _) in found.verdicts.items()}
    assert verdicts.pop("--b 1") == "changes answers"
    assert (verdicts["--c 1"], verdicts["--d 1"]) == ("failed", "failed")
    assert {verdicts[Y], verdicts["--a 1"]} <= {"no effect", "slower", "not told"}


def test_options_are_tried_on_top_of_the_swaps_that_won() -> None:
    found = search(Simulated({MOE: 1.3, X: 1.15}, seconds=1800), MOE, X)
    assert set(found.answer) == {MOE, X}
    for timed in found.times:
        assert timed.gain is not None
        assert timed.gain.low <= 1.3 * 1.15 <= timed.gain.high
    useless = Simulated({MOE: 1.3, X: 1.15}, joined={frozenset({MOE, X}): 1.29}, seconds=1800)
    assert search(useless, MOE, X).answer == (MOE,)


def test_what_needs_an_engine_of_its_own_is_tried_with_the_swaps_that_fit() -> None:
    layer = "layer=spark_prof"
    found = search(Simulated({layer: 1.4, MOE: 1.2, HEAD: 1.1}, seconds=1800), layer, MOE, HEAD)
    assert set(found.answer) == {layer, HEAD}
    assert found.verdicts[MOE] == ("faster", f"{layer} is faster in its place")


BESIDE = frozenset({"qkv", "mlp"})
"""Slots of DeepSeek-V2 that have layers to swap beside slot `layer`."""
MLP = "mlp=spark_prof"


@pytest.mark.parametrize("bundled", [False, True])
def test_beside_layer_runs_what_it_leaves_without_a_further_start(bundled: bool) -> None:
    layer = "layer=spark_prof!"
    gains = {layer: 1.45, MOE: 1.2, ROUTER: 1.03, QKV: 1.05, OUT: 1.04, MLP: 1.03}
    words = [
        *([",".join((MOE, ROUTER, QKV, OUT, MLP))] if bundled else ()),
        *list(gains)[1:],
        layer,
    ]
    measured = [Simulated(gains, seconds=3600) for _ in range(2)]
    found = search(measured[0], *words, beside_layer=BESIDE)
    assert set(found.answer) == {layer, QKV, OUT, MLP}
    assert found.verdicts[MOE] == ("faster", f"{layer} is faster in its place")
    without = search(measured[1], *words)
    assert set(without.answer) <= {layer, OUT}
    assert measured[0].starts <= measured[1].starts


def test_what_layer_takes_whole_is_never_on_beside_it() -> None:
    gains = {LAYER: 1.3, MOE: 1.2, ROUTER: 1.03, QKV: 1.05, OUT: 1.04, MLP: 1.03}
    for beside in (frozenset[str](), frozenset({"qkv"}), BESIDE):
        taken = {"moe", "router", "qkv", "mlp"} - beside
        for seed in range(3):
            measure = Simulated(gains, seed=seed, seconds=3600)
            found = search(measure, *gains, X, beside_layer=beside)
            with_layer = [c for _, c, _ in measure.asked if LAYER in c]
            assert with_layer
            slots = {w.partition("=")[0] for c in (*with_layer, found.answer) for w in c}
            assert LAYER not in found.answer or slots.isdisjoint(taken)


def test_what_brings_nothing_beside_layer_is_left_out() -> None:
    joined = {frozenset({LAYER, QKV}): 1.3, frozenset({LAYER, QKV, OUT}): 1.38}
    gains = {LAYER: 1.4, QKV: 1.05, OUT: 1.04}
    joined[frozenset({LAYER, OUT})] = 1.46
    measure = Simulated(gains, joined, seconds=3600)
    found = search(measure, LAYER, QKV, OUT, beside_layer=BESIDE)
    assert set(found.answer) == {LAYER, OUT}
    assert "beside" in found.verdicts[QKV][1]


def test_an_option_fits_into_eight_minutes_beside_a_first_start_of_the_base() -> None:
    measure = Simulated({MOE: 1.2, X: 1.3}, seconds=470)
    [first] = measure.start("search", 0, [BASE], 470)
    found = search(measure, MOE, X, first=[first])
    assert set(found.answer) == {MOE, X}
    assert measure.left > 0


H200 = {"seconds": 470.0, "boots_s": 45.0, "first_s": 60.0, "builds_s": 40.0, "captures_s": 2.5}
"""What starts of gpt-oss-20b took on an H200, vLLM 0.26, with vLLM imported ahead."""
QWEN = {"seconds": 470.0, "boots_s": 50.0, "first_s": 80.0, "builds_s": 50.0, "captures_s": 2.5}
"""Of Qwen3-30B-A3B NVFP4."""
LAYER = "layer=spark_prof"
IN_ALL = (f"{LAYER},{OUT}", LAYER, f"{LAYER},{OUT},{HEAD}")


def test_what_promises_most_comes_first_where_time_is_short() -> None:
    gains = {LAYER: 1.6, OUT: 1.08, HEAD: 1.04, MOE: 1.3, ROUTER: 1.03, QKV: 1.02}
    words = (IN_ALL[0], f"{MOE},{ROUTER},{OUT}", *IN_ALL[1:], MOE, ROUTER, QKV, OUT, HEAD, X)
    for seed in range(5):
        measure = Simulated(gains, seed=seed, **H200)  # type: ignore[arg-type]
        [first] = measure.start("search", 0, [BASE], measure.left)
        found = search(measure, *words, first=[first])
        assert found.answer == (IN_ALL[2],)
        assert measure.starts == 4  # the base and all with layer, each once more
    measure = Simulated(gains, **QWEN)  # type: ignore[arg-type]
    [first] = measure.start("search", 0, [BASE], measure.left)
    found = search(measure, *words, first=[first])
    assert LAYER in found.answer[0]  # though no time is left for two starts after it
    assert "promises more" in found.verdicts[MOE][1]
    measure = Simulated(gains, **{**H200, "seconds": 400.0})  # type: ignore[arg-type]
    found = search(measure, *words)  # of a recording that was there before: no base was started
    assert LAYER in found.answer[0]
    assert "promises more" in found.verdicts[MOE][1]
    measure = Simulated(gains, **{**H200, "seconds": 1800.0})  # type: ignore[arg-type]
    found = search(measure, *words)
    assert {w for words in found.answer for w in words.split(",")} >= {LAYER, OUT, HEAD}
    assert found.verdicts[MOE][0] == "faster"


def test_one_of_those_that_share_an_engine_ends_it() -> None:
    for tells_who in (True, False):
        measure = Simulated(
            {LAYER: 1.5}, crashes=frozenset({IN_ALL[2]}), tells_who=tells_who, seconds=3600
        )
        found = search(measure, *IN_ALL)
        assert found.answer in {(IN_ALL[0],), (IN_ALL[1],)}
        ended = [t for t in found.trials if t.outcome == "failed"]
        assert len(ended) == 1  # and it is not started again
        assert found.verdicts[IN_ALL[2]][0] == "failed"


def test_what_no_time_was_left_to_confirm_is_said() -> None:
    measure = Simulated({MOE: 1.3}, seconds=200, boots_s=60, captures_s=20)
    found = search(measure, MOE)
    assert (found.answer, found.unconfirmed) == (BASE, (MOE,))
    assert "confirm" in found.line


@pytest.mark.slow
def test_nothing_helps_where_nothing_does() -> None:
    """Of 100 runs without an effect at most 5 claim one: of swaps, of options, of what leads."""
    recorded = [name for name in NOISES if name.startswith("H100")]
    swaps = options = led = 0
    for seed in range(100):
        measure = Simulated({}, noise=recorded[seed % len(recorded)], seed=seed, batches=1)
        found = search(measure, MOE, ROUTER, QKV, OUT, HEAD)
        swaps += bool(found.answer)
    for seed in range(100):
        found = search(Simulated({}, seed=seed, seconds=1500), X, Y, "--a 1", "--b 1")
        options += bool(found.answer)
    for seed in range(100):
        limits = QWEN if seed % 2 else {**H200, "seconds": 1200.0}
        measure = Simulated({}, seed=seed, spread=0.05 if seed % 3 else 0.003, **limits)  # type: ignore[arg-type]
        [first] = measure.start("search", 0, [BASE], measure.left)
        led += bool(search(measure, *IN_ALL, MOE, OUT, HEAD, X, first=[first]).answer)
    assert max(swaps, options, led) <= 5


def test_luck_in_the_search_is_not_confirmed() -> None:
    """What the search saw by chance, fresh engines do not see again."""
    found = search(Simulated({MOE: 1.0}, lucky=1.02), MOE)
    assert found.answer == BASE
    assert found.line.startswith(f"{MOE} was faster in the search, and not in fresh engines")
    assert found.verdicts[MOE][0] == "faster"


def disturbed(measure: Simulated, rounds: int) -> Simulated:
    """So many rounds of the confirmation have an interval that tells nothing."""
    paired = measure.paired

    def wide(stage, number, pair, seconds):  # type: ignore[no-untyped-def]
        trial = paired(stage, number, pair, seconds)
        if stage == "search" or number >= rounds:
            return trial
        times = tuple(replace(t, gain=t.gain and replace(t.gain, low=0.9)) for t in trial.times)
        return replace(trial, times=times)

    measure.paired = wide  # type: ignore[method-assign]
    return measure


def test_what_fresh_engines_do_not_tell_at_first_is_measured_longer() -> None:
    measure = disturbed(Simulated({MOE: 1.3}), 1)
    assert search(measure, MOE).answer == (MOE,)
    assert measure.asked.count(("confirmation", (MOE,), BASE)) == 2
    never = search(disturbed(Simulated({MOE: 1.3}), 9), MOE)
    assert (never.answer, never.unconfirmed) == (BASE, (MOE,))
    assert never.line.startswith("fresh engines do not tell whether it is (1.")
    assert never.verdicts[MOE] == ("faster", never.line)


def test_starts_that_are_far_apart_are_followed_by_more() -> None:
    told = 0
    for seed in range(20):
        measure = Simulated({X: 1.1}, spread=0.05, seed=seed, seconds=3600)
        told += search(measure, X).answer == (X,)
        assert measure.asked.count(("confirmation", (X,), None)) <= 3
    assert told >= 13  # two starts of each tell it in 10 of 20


def test_the_time_is_kept_and_what_was_found_stays() -> None:
    for seconds in (30, 90, 150, 200, 300):
        measure = Simulated({**GAINS, X: 1.4}, seconds=seconds)
        found = search(measure, *GAINS, X)
        assert set(found.verdicts) == {*GAINS, X}
        if not found.answer:
            assert found.line or all(
                v in ("not tried", "not told") for v, _ in found.verdicts.values()
            )
    assert search(Simulated(GAINS, seconds=30), *GAINS).verdicts[MOE][0] == "not tried"


def test_little_time_is_used_or_what_is_needed_is_said() -> None:
    """As on a slow machine: starts of 150 s, of which a guess by the minutes knows nothing."""
    none = search(Simulated({MOE: 1.3, X: 1.2}, seconds=100, boots_s=150), MOE, X)
    assert {verdict for verdict, _ in none.verdicts.values()} == {"not tried"}
    assert none.needed_minutes
    looked = Simulated({MOE: 1.3}, seconds=270, boots_s=150)
    found = search(looked, MOE)
    assert (found.answer, found.unconfirmed) == (BASE, (MOE,))
    assert looked.left < 150  # what is left starts no engine
    assert found.needed_minutes
    assert found.engine_s
    enough = Simulated({MOE: 1.3}, seconds=60 * found.needed_minutes, boots_s=150)
    told = search(enough, MOE)
    assert told.answer == (MOE,)
    assert told.needed_minutes is None
    # As long as a start and a half: no guess ends the first engine before that.
    tight = Simulated({MOE: 1.3}, seconds=400, boots_s=150)
    assert search(tight, MOE).answer == (MOE,)


def test_the_minutes_that_are_said_to_be_needed_are_enough() -> None:
    for words in ((MOE,), (MOE, X), (X, Y), (MOE, ROUTER, X, Y, "--a 1")):
        for boots_s in (40.0, 150.0):
            short = search(
                Simulated({MOE: 1.3, X: 1.2}, seconds=boots_s * 2, boots_s=boots_s), *words
            )
            assert short.needed_minutes
            seconds = 60.0 * short.needed_minutes
            found = search(Simulated({MOE: 1.3, X: 1.2}, seconds=seconds, boots_s=boots_s), *words)
            assert found.answer
            assert not [w for w, (verdict, _) in found.verdicts.items() if verdict == "not tried"]


def test_what_confirms_goes_on_while_a_batch_size_is_open() -> None:
    """The mean of two batch sizes is told at once; one of them by itself is not."""
    measure = Simulated({MOE: 1.3})
    paired = measure.paired

    def one_open(stage, number, pair, seconds):  # type: ignore[no-untyped-def]
        trial = paired(stage, number, pair, seconds)
        if stage == "search" or number or not pair.combination:
            return trial
        first, second = trial.times
        assert first.gain
        return replace(trial, times=(replace(first, gain=replace(first.gain, low=0.99)), second))

    measure.paired = one_open  # type: ignore[method-assign]
    assert search(measure, MOE).answer == (MOE,)
    assert measure.asked.count(("confirmation", (MOE,), BASE)) == 2


def test_a_base_that_does_not_start_is_why_nothing_was_tried() -> None:
    broken = Simulated({})

    def begin(combinations, within):  # type: ignore[no-untyped-def]
        raise EngineEndedError("the engine ended with exit code 9")

    broken.begin = begin  # type: ignore[method-assign]
    found = search(broken, X)
    assert found.verdicts[X][0] == "not tried"
    assert "exit code 9" in found.verdicts[X][1]
    assert "exit code 9" in found.line
    assert found.needed_minutes is None


def test_options_that_are_as_good_as_the_base_are_not_worth_an_engine() -> None:
    """One start each tells no interval: what is less than a per cent faster is not believed."""
    for gain, worth in ((1.005, False), (1.05, True)):
        measure = Simulated({X: gain}, spread=1e-6, seconds=3600)
        evidence = TrialEvidence([], 0.0)
        for combination in (BASE, (X,)):
            for trial in measure.start("search", 0, [combination], 600):
                evidence.add(trial)
        assert evidence.worth((X,)) is worth


def test_the_time_that_is_put_aside_is_for_starts_that_take_longer() -> None:
    measure = Simulated({}, boots_s=100)
    budget = Budget(measure)
    assert budget.reserve(2) > 2 * 1.1 * measure.start_s
    measure.left = 1.6 * measure.start_s + 1.1 * measure.start_s
    assert not budget.allows(1.6)
    budget.reserving = False
    assert budget.allows(1.6)


def test_an_engine_that_does_not_start_is_a_result() -> None:
    found = search(Simulated({}, crashes=frozenset({MOE}), tells_who=False), MOE)
    assert found.verdicts[MOE] == ("failed", "the engine ended with exit code 9")


def test_a_resumed_search_measures_only_what_is_missing() -> None:
    words = (*GAINS, X)
    first = Simulated({**GAINS, X: 1.2}, seconds=300)
    known: dict[object, TuneTrial] = {}

    def keep(trial: TuneTrial) -> None:
        known[trial.key] = trial

    Search([candidate(w) for w in words], first, lambda _: None, keep=keep).run()
    again = Simulated({**GAINS, X: 1.2}, seconds=1800, known=known, seed=2)
    found = search(again, *words)
    assert set(found.answer) == {MOE, ROUTER, HEAD, X}
    before = {(trial.stage, trial.combination, trial.than) for trial in known.values()}
    assert not [asked for asked in again.asked if asked in before and asked[0] == "search"]


def test_rivals_share_a_slot_an_option_or_a_variable() -> None:
    assert rivals(MOE, "moe=fp8")
    assert rivals(MOE, "moe=marlin")  # a backend of vLLM's for the same experts
    for words in (QKV, MLP, MOE, ROUTER, "moe=marlin", "norm=spark_prof"):
        assert rivals("layer=spark_prof", words)
        left = words in (QKV, MLP)
        assert rivals("layer=spark_prof", words, BESIDE) is not left
        assert fits(("layer=spark_prof", OUT), words, BESIDE) is left
    assert rivals("layer=spark_prof,qkv=spark_prof", "qkv=fp8", BESIDE)
    assert rivals("--async-scheduling", "--no-async-scheduling")
    assert rivals("VLLM_A=1", "VLLM_A=0")
    assert not rivals(MOE, ROUTER)
    assert not rivals("--compilation-config.mode=0", "--compilation-config.custom_ops+=all")
    assert fits((MOE,), QKV)
    assert "--max-num-seqs" in sets_of(X)


def test_the_family_begins_with_what_keeps_all() -> None:
    found = family(BASE, [MOE, ROUTER, QKV], 10)
    assert found[:2] == [(MOE, ROUTER), (MOE, ROUTER, QKV)]
    assert set(found) == {(MOE, ROUTER), (MOE, ROUTER, QKV), (ROUTER, QKV), (MOE, QKV)}
    assert family(BASE, [MOE, "moe=fp8"], 10) == []
    assert len(family(BASE, [MOE, ROUTER, QKV, OUT, HEAD], 6)) == 6


def test_a_machine_that_is_not_steady_raises_what_counts() -> None:
    """Where the base over itself is no 1, a gain within that reach is no answer."""
    measure = Simulated({MOE: 1.02})
    paired = measure.paired

    def unsteady(stage, number, pair, seconds):  # type: ignore[no-untyped-def]
        trial = paired(stage, number, pair, seconds)
        if pair.combination:
            return trial
        times = tuple(
            replace(t, gain=t.gain and replace(t.gain, value=1.04, low=1.03, high=1.05))
            for t in trial.times
        )
        return replace(trial, times=times)

    measure.paired = unsteady  # type: ignore[method-assign]
    assert search(measure, MOE).answer == BASE
