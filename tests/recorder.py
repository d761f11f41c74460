"""A process that records without vLLM: the real recording around a worker made by hand.

Its kernels are torch's own operators, watched by the torch backend, if torch is asked for.

usage: python -m tests.recorder BUNDLE [--backend none] [--steps 0] [--piece 4]
                                [--limit BYTES --limit-after STEPS]
"""

from __future__ import annotations

import argparse
import resource
import sys
from types import SimpleNamespace
from typing import Any

from spark_prof.profiler.control import Control
from spark_prof.profiler.settings import Settings
from tests.profiler import fakes


class Worker(fakes.Worker):
    """A worker whose model adds tensors, if it is given torch."""

    def __init__(self, torch: Any = None) -> None:
        super().__init__(two_parts=False)
        self._torch = torch

    def execute_model(self, scheduler_output: Any) -> int | None:
        count = scheduler_output.total_num_scheduled_tokens
        value = self._torch.full((4,), count) if self._torch else count
        answer = self.model_runner.model.forward(value)
        self.answer = int(answer[0]) if self._torch else answer
        return self.answer


class Scheduler:
    """Hands out one batch after another; its only request never ends."""

    def __init__(self) -> None:
        self.vllm_config = fakes.config()
        self.position = 0

    def schedule(self) -> Any:
        self.position += 1
        return fakes.decode(self.position)

    def update_from_output(self, scheduler_output: Any, tokens: list[int]) -> Any:
        return {0: SimpleNamespace(outputs=[SimpleNamespace(request_id="r", new_token_ids=tokens)])}

    def get_num_unfinished_requests(self) -> int:
        return 1


def run(settings: Settings, steps: int, limit: int | None = None, limit_after: int = 0) -> int:
    """Runs steps, 0 for ever, and records them; returns how many answers were right.

    After `limit_after` steps no file may become larger than `limit` bytes.
    """
    sys.modules["vllm"] = SimpleNamespace(__version__="0.32.0")  # type: ignore[assignment]
    torch: Any = None
    if settings.backend == "torch":
        import torch
    else:
        sys.modules["torch"] = fakes.torch()
    control, worker, scheduler = Control(), Worker(torch), Scheduler()
    control.add_worker(worker, settings)
    control.add_scheduler(scheduler, settings)
    worker.compile_or_warm_up_model()
    right = done = 0
    while not steps or done < steps:
        if limit is not None and done == limit_after:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        output = scheduler.schedule()
        answer = fakes.run(worker, output)
        scheduler.update_from_output(output, [answer])
        done += 1
        right += answer == output.total_num_scheduled_tokens + 4
    worker.shutdown()
    return right


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle")
    parser.add_argument("--backend", default="none")
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--piece", type=int, default=4)
    parser.add_argument("--limit", type=int, help="no file may become larger than this")
    parser.add_argument("--limit-after", type=int, default=0)
    options = parser.parse_args()
    settings = Settings(
        options.bundle, steps=0, backend=options.backend, steps_per_piece=options.piece
    )
    print(run(settings, options.steps, options.limit, options.limit_after), flush=True)


if __name__ == "__main__":
    main()
