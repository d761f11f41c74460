"""Ends the process of an engine, and all below it, when the spark-prof that asks it is gone.

Nobody would end it otherwise. While it loads a model, or compiles for minutes, it reads no socket,
and vLLM's own processes wait for requests for ever, the GPU's memory with them.
"""

from __future__ import annotations

import os
import select
import threading
import time

from spark_prof.ending import leave_nothing

GRACE_SECONDS = 10.0
"""In which a process that reads the socket ends in order."""


def end_when_orphaned(socket: int, grace: float = GRACE_SECONDS) -> None:
    """Watches the other end of a connected socket in a thread, as long as this process lives.

    Args:
        socket: its file descriptor, which another thread may read and write.
        grace: seconds from the other end's close until the process is ended.
    """
    watch = threading.Thread(target=_end_after, args=(socket, grace), daemon=True)
    watch.start()


def _end_after(socket: int, grace: float) -> None:
    poll = select.poll()
    poll.register(socket, select.POLLRDHUP)
    while not poll.poll():
        pass
    time.sleep(grace)
    leave_nothing()
    os._exit(1)
