"""The kernels of one rank as plain columns, 33 bytes a kernel, so that a page can look at all."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Launch:
    """One shape in which kernels were launched.

    Attributes:
        grid: blocks in x, y and z, as the bundle writes them; empty where unknown.
        block: threads in x, y and z.
        registers: of a thread, 0 where unknown.
        shared_bytes: of a block, static and dynamic, 0 where unknown.
    """

    grid: str
    block: str
    registers: int
    shared_bytes: int


@dataclass(frozen=True)
class KernelColumns:
    """The rows of a rank's `kernels` table in order of start; the arrays have one length.

    The arrays are not to be written to: all who look share them. Where nothing tells when kernels
    ran (`Prepared.timed`), each instance has its mean duration, and begins where the one before
    it ends: then only `end_ns - start_ns` means something.

    Attributes:
        start_ns: when each began.
        end_ns: when it ended.
        step: its step, -1 outside of the analyzed ones.
        layer: its decoder layer, -1 for none, or for one beyond any model's.
        component: place in `vocabulary.COMPONENTS`.
        name: place in `names`.
        launch: place in `launches`.
        stream: place in `streams`; of very many the last one stands for all that are left.
        names: as the trace wrote them; not to be drawn unescaped.
        copies: of each name, whether it is a copy or a memset, which no sum of kernels contains.
        launches: all shapes that occur.
        streams: device and stream of each lane, such as "0/7".
    """

    start_ns: npt.NDArray[np.int64]
    end_ns: npt.NDArray[np.int64]
    step: npt.NDArray[np.int32]
    layer: npt.NDArray[np.int16]
    component: npt.NDArray[np.uint8]
    name: npt.NDArray[np.int32]
    launch: npt.NDArray[np.int32]
    stream: npt.NDArray[np.uint16]
    names: tuple[str, ...]
    copies: tuple[bool, ...]
    launches: tuple[Launch, ...]
    streams: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.start_ns)
