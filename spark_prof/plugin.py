"""The entry point that vLLM loads in every process (group ``vllm.general_plugins``).

It wraps two constructors, so that the workers and schedulers of this process are known. Nothing
else is touched until a recording is wanted, by the environment or by `spark-prof record --attach`.
"""

from __future__ import annotations

import importlib
import logging
import os
import time
from collections.abc import Callable
from typing import Any

from spark_prof.profiler import draft_steps, ray
from spark_prof.profiler.control import Control
from spark_prof.profiler.settings import ENVIRONMENT, Settings
from spark_prof.profiler.start_marks import MARKS
from spark_prof.profiler.vllm_names import NEWEST, OLDEST, SCHEDULER, WORKER, is_supported
from spark_prof.traces.chunks import append_log, pieces_folder, write_refusal

logger = logging.getLogger("spark_prof")

_MARK = "_spark_prof_wrapped"


def install() -> None:
    """Makes this process recordable. Called by vLLM, possibly more than once; never raises."""
    if os.environ.get(ENVIRONMENT, "") == "off":
        return
    settings = None
    try:
        settings = Settings.from_environment()
        if settings is not None:
            MARKS.installed(settings)
        import vllm

        from spark_prof.swaps.swap_settings import SwapSettings

        if not is_supported(vllm.__version__):
            supported = f"{'.'.join(map(str, OLDEST))} to {'.'.join(map(str, NEWEST))}"
            _refuse(settings, f"vLLM {vllm.__version__} is not supported; {supported} are")
            return
        control = Control()
        ray.CONTROLS.append(control)

        def add_scheduler(scheduler: Any) -> None:
            control.add_scheduler(scheduler, settings)
            if os.environ.get(draft_steps.ENVIRONMENT):
                draft_steps.install(scheduler)
            ray.flush_before_shutdown()

        swaps = SwapSettings.from_environment()

        def add_worker(worker: Any) -> None:
            if swaps is not None:
                # Before the recording, which then sees the layers as they run.
                _install_swaps(worker, swaps)
            control.add_worker(worker, settings)

        _wrap_constructor(WORKER, add_worker)
        _wrap_constructor(SCHEDULER, add_scheduler)
        if settings is not None:
            MARKS.watch_front()
    except Exception as error:
        logger.warning("spark-prof is off in this process: %s: %s", type(error).__name__, error)
        _refuse(settings, f"{type(error).__name__}: {error}")


def _wrap_constructor(where: tuple[str, str], created: Callable[[Any], None]) -> None:
    module_name, class_name = where
    owner = getattr(importlib.import_module(module_name), class_name)
    original = owner.__init__
    if hasattr(original, _MARK):
        return

    def constructor(self: Any, *arguments: Any, **named: Any) -> None:
        original(self, *arguments, **named)
        try:
            created(self)
        except Exception as error:
            logger.warning("spark-prof does not record %s: %s", class_name, error)

    setattr(constructor, _MARK, True)
    owner.__init__ = constructor


def _install_swaps(worker: Any, swaps: Any) -> None:
    """Swaps what the environment asks for; on failure vLLM's own kernels run, with one line."""
    try:
        from spark_prof.swaps.install import install as install_swaps

        install_swaps(worker, swaps)
    except Exception as error:
        logger.warning("spark-prof swaps no kernel: %s: %s", type(error).__name__, error)


def _refuse(settings: Settings | None, reason: str) -> None:
    """Tells a waiting `spark-prof record` why nothing will come."""
    if settings is None:
        return
    try:
        folder = pieces_folder(settings.folder)
        folder.mkdir(parents=True, exist_ok=True)
        write_refusal(folder, reason)
        append_log(folder, f"pid{os.getpid()}", time.time_ns(), reason)
    except OSError as error:
        logger.warning("spark-prof cannot write %s: %s", settings.bundle, error)
