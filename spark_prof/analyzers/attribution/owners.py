"""Whose memory a kernel reads: the module of the largest weight among its arguments.

A word among a kernel's arguments that lies in a tensor of the live model is believed by these
rules:

1. It begins the tensor, or is a multiple of 16 bytes inside it.
2. A plain pointer, an argument of 8 bytes, is believed, and so are the pointers of PyTorch's
   elementwise kernels, which stand in one array, and the first word of its TensorInfo. What follows
   in a TensorInfo are sizes and strides, and whatever was left where no dimension has one.
3. A word of a larger argument (a struct such as the parameters of CUTLASS or FlashAttention) may be
   what was left on the stack. The place (kernel name, argument, offset) is believed if in every
   launch of that name whose arguments are known the word lies in a tensor, always of the same kind
   (weights and buffers are one, caches and states the other), and if no step with several
   launches of that name has one layer's same tensor in all of them: the layers of a model have
   weights of their own.
4. A packed buffer (argument -1: cuBLAS's nvjet kernels, TMA descriptors included) holds parameters
   only. The place is believed if in every launch of that name the word lies in a tensor, always of
   the same kind. One name serves several roles, so the roles may differ. A weight may be either
   operand of a product, and each operand's address stands in a buffer several times: if three or
   more words of a launch lie in weights, and all of them in one module's, they are believed too.
5. Where the kernel's name tells a component (FlashAttention), a word of a struct or a packed buffer
   that lies in another component's tensor was left there, too.
6. A collective works on no weight but that of a norm that is fused with it.

What a kernel reads names its owner: its largest matrix (of a product or experts), else its largest
other weight, else an embedding's matrix, else a KV cache or state, else a buffer. Of an embedding
it looks up a few rows, while it reads the weight of a norm that is fused with it in full; a product
with that matrix computes logits. Where the tensor belongs to several layers, a layer that another
believed word names is taken.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pandas as pd

from spark_prof.analyzers.attribution.memory_map import (
    BUFFER,
    CACHE,
    MATRIX,
    OTHER_WEIGHT,
    MemoryMap,
)
from spark_prof.analyzers.attribution.order import CODES
from spark_prof.analyzers.classify.classifier import classify, finishes_gemm, is_gemm
from spark_prof.analyzers.lookup import Integers, combined
from spark_prof.arrays import Flags
from spark_prof.vocabulary import BASES, BASIS_CLASSES, COMPONENTS

_POINTER = 8
_ARRAY = 2  # the argument of PyTorch's elementwise kernels that is the array of pointers
_HAS_ARRAY = re.compile(r"at::native::(?:vectorized|unrolled)_elementwise_kernel<")
_TENSOR_INFO = "at::cuda::detail::TensorInfo<"
_PACKED = -1
_REPEATED = 3  # cuBLAS's nvjet kernels hold each operand's address five times
_LOOKED_UP = (OTHER_WEIGHT + CACHE) / 2
"""The rank of an embedding's matrix of which a kernel reads some rows."""
_LM_HEAD_ROLE = 1  # where MemoryMap.roles has LM_HEAD


@dataclass(frozen=True)
class KnownLaunches:
    """Launches and captured nodes whose arguments are known; arrays have one entry each."""

    name: Integers  # number of the kernel's name
    step: Integers  # the first step that runs it
    named: Integers  # code of the component that its name tells, -1 for none
    names: Sequence[str]  # the names

    @cached_property
    def product(self) -> Flags:
        """Which of them are matrix products by name."""
        return self._which(is_gemm)

    @cached_property
    def finishes(self) -> Flags:
        """Which of them add up the parts of the product before them by name."""
        return self._which(finishes_gemm)

    @cached_property
    def exchanges(self) -> Flags:
        """Which of them are collectives by name."""
        return self._which(lambda name: classify(name).component == "collective")

    def _which(self, true_of: Callable[[str], bool]) -> Flags:
        flags: Flags = np.array([true_of(name) for name in self.names] + [False])[self.name]
        return flags


@dataclass(frozen=True)
class Owners:
    """What the memory that a launch reads says of it; arrays have one entry a launch."""

    rank: Integers  # of the tensor that names the owner (see memory_map.py), 0 for none
    pointer: Flags  # whether a plain pointer named it
    component: Integers  # code, -1 for none
    components: Integers  # a bit for the code of each component that holds the tensor
    layer: Integers  # decoder layer, -1 for none or an open one
    open: Flags  # whether it must have a layer that its tensors do not tell
    role: Integers  # number of the role in the map's `roles`
    words: Integers  # two rows: for each believed word the launch, and the stretch of the map


_MORE_EXACT = {"attention": ("kv_write", "rope"), "experts": ("router",)}
"""For a module's component, the components that a kernel's name may make of it; a collective is one
in any module."""


def most_exact(by_module: Integers, by_name: Integers) -> npt.NDArray[np.int8]:
    """The component by name where it is believed before that of the module, else the latter's."""
    places = len(COMPONENTS) + 1
    chosen = np.repeat(np.arange(-1, places - 1, dtype=np.int8), places)
    for whole in COMPONENTS:
        for name in (*_MORE_EXACT.get(whole, ()), "collective"):
            chosen[(CODES[whole] + 1) * places + CODES[name] + 1] = CODES[name]
    # In 16 bits, which ten million rows take a quarter of the time and memory for.
    index = (by_module + np.int16(1)) * np.int16(places)
    index += by_name
    index += 1
    component: npt.NDArray[np.int8] = chosen[index]
    return component


def owners_of(
    memory: MemoryMap, arguments: pd.DataFrame, launch: Integers, launches: KnownLaunches
) -> Owners:
    """The owners of launches by what they read."""
    place = memory.find(arguments["address"].to_numpy(np.int64))
    pointer = (arguments["size"] == _POINTER).to_numpy() & (arguments["argument"] >= 0).to_numpy()
    pointer |= in_array(arguments, launches.name[launch], launches.names)
    described = _in_tensor_info(arguments, launches.name[launch], launches.names)
    begins = (arguments["offset"] == 0).to_numpy()
    pointer |= described & begins
    place[described & ~begins] = -1
    believed = (place >= 0) & (
        pointer | _in_every_launch(memory, arguments, place, launch, launches)
    )
    part = memory.component[np.where(believed, place, -1)]
    named = launches.named[launch]
    contradicted = (part >= 0) & (named >= 0) & (most_exact(part, named) != named)
    believed &= pointer | ~contradicted
    believed &= ~launches.exchanges[launch] | (part == CODES["norm"])
    launch, place, pointer = launch[believed], place[believed], pointer[believed]
    argument = arguments["argument"].to_numpy()[believed]
    norm = memory.component[place] == CODES["norm"]
    of_embedding = memory.tied | (memory.component == CODES["embedding"])
    looked_up = (of_embedding & (memory.rank == MATRIX))[place] & ~launches.product[launch]
    rank = np.where(looked_up, _LOOKED_UP, memory.rank[place])
    # The best word of each launch comes first; a norm's weight is as large as a bias beside it.
    order = np.lexsort((argument, ~pointer, ~norm, -memory.bytes[place], -rank, launch))
    first = order[np.unique(launch[order], return_index=True)[1]]
    count = len(launches.name)
    best, by_pointer = np.full(count, -1), np.zeros(count, bool)
    best[launch[first]], by_pointer[launch[first]] = place[first], pointer[first]
    # Of a tied matrix, a product computes logits, what is none looks up. A model that shares the
    # module itself has its path but once.
    rank = memory.rank[best]
    component = np.where(memory.tied[best], CODES["embedding"], memory.component[best])
    head = (component == CODES["embedding"]) & (rank == MATRIX) & launches.product
    # A cache without a layer of its own serves all layers.
    shared = memory.several[best] | (rank == CACHE)
    beside = order[memory.layer[place[order]] >= 0]
    beside = beside[np.unique(launch[beside], return_index=True)[1]]
    layer, other = memory.layer[best], np.full(count, -1)
    other[launch[beside]] = memory.layer[place[beside]]
    layer = np.where((shared | (rank == BUFFER)) & (layer < 0), other, layer)
    return Owners(
        rank=rank,
        pointer=by_pointer,
        component=np.where(head, CODES["lm_head"], component),
        components=memory.components[best],
        layer=layer,
        open=shared & (layer < 0),
        role=np.where(head, _LM_HEAD_ROLE, memory.role[best]),
        words=np.stack([launch, place]),
    )


def in_array(arguments: pd.DataFrame, name: Integers, names: Sequence[str]) -> Flags:
    """Which words are pointers of PyTorch's elementwise kernels: the result's, then the inputs'."""
    has_array = np.array([bool(_HAS_ARRAY.search(one)) for one in names] + [False])
    flags: Flags = has_array[name] & (arguments["argument"] == _ARRAY).to_numpy()
    return flags


def _in_tensor_info(arguments: pd.DataFrame, name: Integers, names: Sequence[str]) -> Flags:
    """Which words lie in structs of PyTorch's kernels that take a TensorInfo."""
    has_info = np.array([_TENSOR_INFO in one for one in names] + [False])
    inside: Flags = has_info[name] & (arguments["size"] > _POINTER).to_numpy()
    inside &= (arguments["argument"] >= 0).to_numpy()
    return inside


def _in_every_launch(
    memory: MemoryMap,
    arguments: pd.DataFrame,
    place: Integers,
    launch: Integers,
    launches: KnownLaunches,
) -> Flags:
    """Whether rules 3 and 4 believe each word."""
    in_tensor, name = place >= 0, launches.name[launch]
    packed = (arguments["argument"] == _PACKED).to_numpy()
    spot, first = combined(name, arguments["argument"], arguments["offset"])
    # A launch of which no word is known to be an address is none whose arguments were read.
    launched = np.bincount(launches.name[np.unique(launch)], minlength=len(launches.names))
    kinds = (
        pd.Series(memory.kind[place[in_tensor]])
        .groupby(spot[in_tensor])
        .agg(["size", "min", "max"])
    )
    spots = kinds.index.to_numpy(np.int64)
    good = np.zeros(len(first), bool)
    good[spots] = (kinds["size"] == launched[name[first[spots]]]) & (kinds["min"] == kinds["max"])
    stale = _same_in_all(
        memory, spot[in_tensor], place[in_tensor], launches.step[launch[in_tensor]]
    )
    good[stale] &= packed[first[stale]]
    believed: Flags = good[spot]
    believed[_of_one_module(memory, place, launch, packed)] = True
    return believed


def _of_one_module(memory: MemoryMap, place: Integers, launch: Integers, packed: Flags) -> Integers:
    """The words of packed buffers in weights, where several of a launch lie in one module's."""
    words = np.flatnonzero(packed & (place >= 0))
    words = words[memory.rank[place[words]] >= OTHER_WEIGHT]
    if not len(words):
        return words
    of_word = {"layer": memory.layer[place[words]], "role": memory.role[place[words]]}
    of_launch = pd.DataFrame(of_word).groupby(launch[words])
    one = (of_launch.transform("nunique") == 1).all(axis=1)
    one &= of_launch["role"].transform("size") >= _REPEATED
    believed: Integers = words[one.to_numpy()]
    return believed


def _same_in_all(memory: MemoryMap, spot: Integers, place: Integers, step: Integers) -> Integers:
    """The spots that have one layer's same tensor in all of several launches of a step."""
    launches = pd.DataFrame({"spot": spot, "step": step, "place": place}).groupby(["spot", "step"])
    places = launches["place"].agg(["size", "min", "max"]).reset_index()
    same = (places["size"] > 1) & (places["min"] == places["max"])
    stale: Integers = places.loc[same & (memory.layer[places["min"]] >= 0), "spot"].to_numpy()
    return stale


BASIS = {name: code for code, name in enumerate(BASES)}  # the bases as numbers
PROOFS = np.array([BASIS[name] for name in BASIS_CLASSES["proven"]])
"""The bases that prove an owner, as numbers."""


@dataclass
class Ownership:
    """What is known of kernels or launches so far; arrays have one entry each."""

    component: Integers  # code, -1 for none
    layer: Integers  # decoder layer, -1 for none
    role: Integers  # number of the role in `roles`
    basis: Integers  # number of the basis
    settled: Flags  # whether component and layer are known, as far as there is a layer
    roles: tuple[str, ...]  # texts, of which the first is empty
    # For each role its module's, which has no part of it such as w13 in it; None where they are.
    of_module: Integers | None = None
    # For each kernel the role of the norm that a collective makes as well, 0 for none; None where
    # none does.
    fused: Integers | None = None
    # For each kernel the rows of the `tensors` table that hold the weights that it reads, as
    # tuples, of which the first is empty; None where no arguments tell.
    reads: pd.Categorical | None = None
