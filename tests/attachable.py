"""A server that can be attached to, without vLLM: it runs steps until its input ends.

It prints the port at which it listens, and at its end how many steps it ran and how many answers
were right. Its registry is in TMPDIR, as that of a real one.

usage: python -m tests.attachable [--limit BYTES] < PIPE
"""

from __future__ import annotations

import argparse
import resource
import signal
import socket
import sys
import threading
import time
from types import SimpleNamespace

from spark_prof.profiler.control import Control
from tests.profiler import fakes
from tests.recorder import Scheduler, Worker


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--limit", type=int, help="no file may become larger than this")
    options = parser.parse_args()
    sys.modules["vllm"] = SimpleNamespace(__version__="0.32.0")  # type: ignore[assignment]
    control, worker, scheduler = Control(), Worker(), Scheduler()
    control.add_worker(worker, None)
    control.add_scheduler(scheduler, None)
    worker.compile_or_warm_up_model()
    if options.limit is not None:  # stands for a quota
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (options.limit, options.limit))
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    with socket.create_server(("127.0.0.1", 0)) as server:
        print(server.getsockname()[1], flush=True)
        steps = right = 0
        while not ended.is_set():
            output = scheduler.schedule()
            answer = fakes.run(worker, output)
            scheduler.update_from_output(output, [answer])
            steps += 1
            right += answer == output.total_num_scheduled_tokens + 4
            time.sleep(0.002)
    worker.shutdown()
    print(steps, right, flush=True)


if __name__ == "__main__":
    main()
