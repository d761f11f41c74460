"""Holds the drafts that `spark-prof speculate` chooses against every number of drafts, served.

Weights are random, and what is accepted is fixed where vLLM can (on a GPU). `speculate` measures
first; then an engine for each number of drafts serves requests, all of them alive and in turns, and
its tokens a second are counted at several acceptances. What `speculate` would choose for each of
those is computed of the costs that it measured.

A FOLDER with an earlier result of speculate is gone on with.

usage: python benchmarks/speculate_exhaustive.py FOLDER [--model NAME] [--drafter eagle3|ngram]
           [--drafts N,N] [--batch-sizes N,N] [--context N] [--seconds S] [--kv-gib G]
           [--engine="--flag ..."]
exit code: 1 if a choice is more than 2 % from the best, or speculate took more than 10 minutes
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from demo.models import MODELS, write_model  # noqa: E402
from spark_prof.ab.command import EngineCommand, engine_command  # noqa: E402
from spark_prof.ab.messages import Draft, Drafted, PromptBatch  # noqa: E402
from spark_prof.dashboards.section import Layout  # noqa: E402
from spark_prof.dashboards.speculate_report import render_speculate  # noqa: E402
from spark_prof.speculate.acceptance import Acceptance, given_acceptance  # noqa: E402
from spark_prof.speculate.best_k import best_of  # noqa: E402
from spark_prof.speculate.engines import DraftEngines  # noqa: E402
from spark_prof.speculate.measuring import LiveDrafts, token_times  # noqa: E402
from spark_prof.speculate.plan import SpeculateOptions, fixed_variants, with_drafter  # noqa: E402
from spark_prof.speculate.run import run_speculate  # noqa: E402
from spark_prof.speculate.speculate_result import SpeculateResult, read_speculate  # noqa: E402

RATES = {"high": 0.85, "middle": 0.6, "low": 0.3}
"""Chance of each draft to be accepted if those before it are."""
TOKENS = 128  # of each request
WITHIN = 0.02


def say(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)


def drafter_folder(model: str, folder: Path) -> Path:
    """An EAGLE-3 drafter of one layer, as wide as its target, with the target's vocabulary."""
    target = MODELS[model]
    heads = int(target["num_attention_heads"])
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "attention_bias": False,
        "bos_token_id": 1,
        "draft_vocab_size": target["vocab_size"],
        "dtype": "bfloat16",
        "eos_token_id": target.get("eos_token_id", 2),
        "head_dim": target.get("head_dim", int(target["hidden_size"]) // heads),
        "hidden_act": "silu",
        "hidden_size": target["hidden_size"],
        "intermediate_size": 6 * int(target["hidden_size"]),
        "max_position_embeddings": target["max_position_embeddings"],
        "num_attention_heads": heads,
        "num_hidden_layers": 1,
        "num_key_value_heads": target["num_key_value_heads"],
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "vocab_size": target["vocab_size"],
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    return folder


def command_of(options: argparse.Namespace, drafts: Sequence[int]) -> EngineCommand:
    """The engine with its drafter."""
    folder = write_model(options.model, options.folder / "model")
    config: dict[str, object] = {"method": options.drafter, "num_speculative_tokens": max(drafts)}
    if options.drafter == "ngram":
        config |= {"prompt_lookup_min": 1, "prompt_lookup_max": 3}
    else:
        config["model"] = str(drafter_folder(options.model, options.folder / "drafter"))
    longest = str(options.context + len(drafts) * 160 + 400)
    words = [
        str(folder), "--load-format", "dummy", "--max-model-len", longest,
        "--max-num-seqs", str(max(options.batch_sizes)),
        "--speculative-config", json.dumps(config), *shlex.split(options.engine),
    ]  # fmt: skip
    if options.kv_gib:
        words += ["--kv-cache-memory-bytes", str(int(options.kv_gib * 2**30))]
    return engine_command(words)


def served_times(
    lives: Sequence[LiveDrafts], options: argparse.Namespace, rates: dict[str, Acceptance]
) -> dict[tuple[str, int], dict[int, float]]:
    """The time of a token in us by acceptance and batch size, then by drafts: a median of turns."""
    medians: dict[tuple[str, int], dict[int, float]] = {}
    for requests in options.batch_sizes:
        for name, acceptance in rates.items():
            say(f"serving batch {requests}, acceptance {name}")
            times: dict[int, list[float]] = defaultdict(list)
            begin = time.monotonic()
            turns = 0
            while turns < 4 or time.monotonic() - begin < options.seconds:
                for live in lives if turns % 2 else reversed(lives):
                    us = served(live, requests, options.context, acceptance)
                    if turns:  # the first turn warms up
                        times[max(live.variant.drafts, default=0)].append(us)
                turns += 1
            of_setting = {drafts: median(us) for drafts, us in sorted(times.items())}
            medians[name, requests] = of_setting
            # Printed as it comes: a run that is cut short keeps what it measured.
            say(" ".join(f"k={drafts} {us / 1e3:.3f} ms" for drafts, us in of_setting.items()))
    return medians


def served(live: LiveDrafts, requests: int, context: int, acceptance: Acceptance) -> float:
    """The time of a token of a request in us, of one generation.

    Where acceptance is fixed, how many tokens a step gives is known, and its draws are no noise.
    """
    fixed = acceptance if live.facts.acceptance_fixed else None
    rates = fixed.rates(live.facts.drafts) if fixed else None
    request = Draft(PromptBatch(requests, context, TOKENS), acceptance=rates, to_the_end=True)
    drafted = live.engine.ask(request, Drafted, f"serving batch {requests}")
    return token_times(drafted, requests, fixed)[0]


def report(
    result: SpeculateResult,
    truth: dict[tuple[str, int], dict[int, float]],
    rates: dict[str, Acceptance],
) -> int:
    """Prints chosen against best; how many choices are too far off."""
    far = 0
    print("| acceptance | batch | chosen k | undecided with | best k | chosen costs more by | ok |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for (name, requests), times in truth.items():
        measured = next(shape for shape in result.measured if shape.requests == requests)
        best = best_of(requests, measured.context, measured.rounds, rates[name])
        assert best.drafts is not None
        chosen = times[best.drafts]
        truly = min(times, key=times.__getitem__)
        off = chosen / times[truly] - 1
        far += off > WITHIN
        rivals = ",".join(map(str, best.rivals)) or "-"
        print(
            f"| {name} | {requests} | {best.drafts} | {rivals} | {truly} | {100 * off:.2f} % | "
            f"{'yes' if off <= WITHIN else 'NO'} |"
        )
    for (name, requests), times in truth.items():
        measured = next(shape for shape in result.measured if shape.requests == requests)
        best = best_of(requests, measured.context, measured.rounds, rates[name])
        predicted = {row.drafts: row.token_us for row in best.rows}
        pairs = " ".join(
            f"{k}:{us / 1e3:.3f}/{(predicted.get(k) or float('nan')) / 1e3:.3f}"
            for k, us in times.items()
        )
        print(f"{name}, batch {requests}, ms a token, served/speculate: {pairs}")
    return far


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", default="tiny-dense", choices=sorted(MODELS))
    parser.add_argument("--drafter", default="eagle3", choices=("eagle3", "ngram"))
    parser.add_argument("--drafts", default="1,2,3,4,5")
    parser.add_argument("--batch-sizes", default="1,4,16")
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--kv-gib", type=float, default=0.0)
    parser.add_argument("--engine", default="")
    parser.add_argument("--minutes", type=float, default=10.0)
    options = parser.parse_args()
    options.batch_sizes = tuple(map(int, options.batch_sizes.split(",")))
    drafts = tuple(map(int, options.drafts.split(",")))
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    options.folder = options.folder.absolute()
    options.folder.mkdir(parents=True, exist_ok=True)
    command = command_of(options, drafts)
    middle = RATES["middle"]
    acceptance = given_acceptance(",".join(f"{middle**at:.6f}" for at in range(1, max(drafts) + 1)))
    settings = SpeculateOptions(
        options.folder / "speculate", drafts, options.batch_sizes, (options.context,),
        options.minutes, 2 * options.seconds, acceptance, at_once=2, proof=False,
    )  # fmt: skip
    begin = time.monotonic()
    file = settings.folder / "result.json"
    if file.exists():
        say(f"with the earlier {file}")
    else:
        run_speculate(command, settings, say, lambda page: render_speculate(page, Layout("html")))
    took = time.monotonic() - begin
    result = read_speculate(file)
    print(render_speculate(result, Layout("text"), typed=True))
    say(f"speculate took {took:.0f} s")
    if result.failure:
        return 1
    rates = {
        name: given_acceptance(",".join(f"{rate**at:.6f}" for at in range(1, max(drafts) + 1)))
        for name, rate in RATES.items()
    }
    variants = fixed_variants(drafts)
    plan = replace(settings, at_once=len(variants), folder=options.folder)
    with DraftEngines(command, plan, time.monotonic() + 1200, say) as engines:
        lives = engines.start(variants, with_drafter(command, result.drafter))
        say(f"the longest start took {engines.start_seconds:.0f} s")
        if not all(live.facts.acceptance_fixed for live in lives[1:]):
            say("this engine cannot fix what is accepted: of random weights next to nothing is")
            rates = {"none": given_acceptance(",".join("0" for _ in range(max(drafts))))}
        truth = served_times(lives, options, rates)
    far = report(result, truth, rates)
    mean = fmean(min(times.values()) for times in truth.values())
    say(f"{far} of {len(truth)} choices are more than 2 % off; a token takes {mean:.0f} us at best")
    return 1 if far or took > 600 else 0


if __name__ == "__main__":
    sys.exit(main())
