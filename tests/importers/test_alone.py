"""Several files of Nsight Compute are kernels of one process."""

import pandas as pd

from spark_prof.importers.importing import one_process
from spark_prof.traces.foreign import Foreign, Process
from tests.importers.traces import foreign, window


def measured(name, times, launches):
    rows = [(name, t, s, e, -1, -1) for t, (s, e) in enumerate(times)]
    trace = foreign([window(rows)])
    metrics = pd.DataFrame({"launch": launches, "name": name})
    return Foreign("ncu", [Process(None, {}, metrics=metrics)], trace.windows, ["alone", name])


def test_kernels_follow_one_another_and_metrics_keep_their_launch():
    whole = one_process([measured("a", [(5, 10), (10, 12)], [0, 1]), measured("b", [(0, 3)], [0])])
    (one,) = whole.windows
    gpu = one.trace.gpu
    assert gpu["name"].tolist() == ["a", "a", "b"]
    assert list(zip(gpu["start_ns"], gpu["end_ns"], strict=True)) == [(0, 5), (5, 7), (7, 10)]
    assert whole.processes[0].metrics["launch"].tolist() == [0, 1, 2]
    assert whole.lost == ["alone", "a", "b"]
    assert len(one.scope) == len(one.launch_ns) == len(one.thread) == 3
