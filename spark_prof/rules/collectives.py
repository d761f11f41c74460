"""The kinds of collectives, by the base name of their kernel: first match wins.

Each row carries examples that are its tests.
"""

from __future__ import annotations

KINDS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("reduce_scatter", r"reduce_?scatter",
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",)),
    ("all_reduce", r"all_?reduce|cross_device_reduce|quickreduce|minimax_reduce",
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 2>(vllm::RankData*, int)",
        "_C::shm_allreduce", "c10d::allreduce_",
        "void minimax_reduce_rms_kernel_lamport<__nv_bfloat16, 4>(int)",
        "void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(int)")),
    ("all_gather", r"all_?gather",
        ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "c10d::_allgather_base_")),
    ("dispatch", r"dispatch",
        ("void deep_ep::intranode::dispatch<(int)2, (int)768, (int)8192>(int4 *, float *)",)),
    ("combine", r"combine", ("void deep_ep::internode_ll::combine<true, 7168>(void*)",)),
    ("all_to_all", r"all_?to_?all", ("c10d::alltoall_base_",)),
    ("broadcast", r"broadcast", ("ncclDevKernel_Broadcast_RING_LL",)),
    ("barrier", r"barrier|wait_signal|put_signal", ("c10d::barrier",)),
    ("send_recv", r"send_?recv",
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)",)),
    ("send", r"send", ("c10d::send", "_dcp_a2a_pack_send_kernel")),
    ("recv", r"recv", ("c10d::recv_",)),
    ("reduce", r"reduce", ("ncclDevKernel_Reduce_Sum_f32_RING_LL",)),
)  # fmt: skip
"""Kind, pattern and names of that kind."""
