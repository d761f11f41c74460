"""An engine whose spark-prof is gone ends, with all that it has started."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path

import psutil
import pytest

from spark_prof.ab.messages import Check, send
from tests.rows import each_row

LOADING = """
import subprocess, sys, time
sys.modules["vllm"] = None
from spark_prof.ab import driver, orphan
orphan.end_when_orphaned.__defaults__ = (0.3,)
def answer(session, request):
    child = [sys.executable, "-c", CHILD]
    print(subprocess.Popen(child, start_new_session=True).pid, flush=True)
    time.sleep(600)
driver._Session.answer = answer
driver.main(sys.argv[1])
"""
"""A driver that is loading: it starts a process of another session, and reads no socket."""

WAITS = "import time; time.sleep(600)"
REFUSES = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {WAITS}"


@pytest.mark.slow
@each_row("child", [WAITS, REFUSES])
def test_one_that_loads_ends_with_its_family(tmp_path: Path, child: str) -> None:
    path = tmp_path / "socket"
    code = f"CHILD = {child!r}\n{LOADING}"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(1)
        listener.settimeout(60)
        command = [sys.executable, "-c", code, str(path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as driver:
            connection = Connection(listener.accept()[0].detach())
            send(connection, Check("serve", ()))
            assert driver.stdout is not None
            family = psutil.Process(int(driver.stdout.readline()))
            time.sleep(0.5)
            assert driver.poll() is None
            connection.close()
            assert driver.wait(30) == 1
    family.wait(10)
    assert not psutil.pid_exists(family.pid)
