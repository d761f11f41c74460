// Runs a kernel's threads on one thread of the CPU, block after block.
//
// Each CUDA thread has a stack of its own and runs until it waits: at a barrier, or at a collective
// of its warp, which the last lane to arrive computes for all. Who runs next is fixed by the block's
// index, but neither the warps nor the lanes run in one direction only, so that a missing barrier
// shows. Shared memory starts as NaN (all bits set). A wait that nobody ends, a load outside of
// what the kernel was given and a write behind the dynamic shared memory end the launch with a
// message. A thread that spins on memory without a barrier never ends.
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <ucontext.h>

// The linker gathers these variables and names both ends. Not inside of a template: GCC would
// put them elsewhere.
#define SHARED static __attribute__((section("kernel_shared")))
extern "C" __attribute__((weak, visibility("hidden"))) unsigned char __start_kernel_shared[];
extern "C" __attribute__((weak, visibility("hidden"))) unsigned char __stop_kernel_shared[];

namespace cpu {
namespace {

constexpr u32 WARP = 32, MOST_THREADS = 1024, MOST_WARPS = MOST_THREADS / WARP;
constexpr u32 ALL_LANES = ~0u;

struct Thread {
    jmp_buf resume;
    uint3 index;
    u32 warp, lane;
};

struct Warp {
    u32 alive, ready, at_barrier, arrived;  // one bit a lane
    void (*combine)(Warp&);
    const char* collective;
    void* operands[WARP];
};

// Bytes of the caller's memory that the kernel may load.
struct Range {
    u64 from, to;
};

struct Launch {
    uint3 grid, block_at, block_size;
    u32 alive, at_barrier;
    u32 ready_warps;  // one bit a warp
    u32 random;
    jmp_buf home;
    const Range* ranges;
    int range_count;
    unsigned char* dynamic_shared;
    void (*kernel)(void** arguments);
    void** arguments;
    Warp warps[MOST_WARPS];
    Thread threads[MOST_THREADS];
};

static Launch launch;
static Thread* running;
static char failure[512];

[[noreturn]] static void fail(const char* format, ...) {
    va_list values;
    va_start(values, format);
    int length = snprintf(failure, sizeof failure, "block (%u, %u, %u), thread %u: ",
                          launch.block_at.x, launch.block_at.y, launch.block_at.z,
                          running->index.x);
    vsnprintf(failure + length, sizeof failure - length, format, values);
    va_end(values);
    _longjmp(launch.home, 1);
}

[[noreturn]] static void fail_with_deadlock() {
    char text[384];
    u32 waiting = 0;
    const char* collective = "";
    for (const Warp& warp : launch.warps) {
        if (warp.arrived) collective = warp.collective;
        waiting += __builtin_popcount(warp.arrived);
    }
    int length = snprintf(text, sizeof text, "deadlock: of %u threads ", launch.block_size.x);
    if (waiting) {
        length += snprintf(text + length, sizeof text - length, "%u wait at %s, ", waiting, collective);
    }
    snprintf(text + length, sizeof text - length, "%u wait at sync_block, %u have left the kernel",
             launch.at_barrier, launch.block_size.x - launch.alive);
    fail("%s", text);
}

// The next thread to run: first the warp's other lanes, odd warps from the last lane down.
static Thread* next_thread() {
    u32 warp = running->warp;
    if (!launch.warps[warp].ready) {
        launch.ready_warps &= ~(1u << warp);
        if (!launch.ready_warps) fail_with_deadlock();
        launch.random = launch.random * 1664525u + 1013904223u;
        u32 turn = launch.random >> 27;
        u32 later = launch.ready_warps & (ALL_LANES << turn);
        warp = __builtin_ctz(later ? later : launch.ready_warps);
    }
    u32 ready = launch.warps[warp].ready;
    u32 lane = (warp + launch.block_at.x) & 1 ? 31 - __builtin_clz(ready) : __builtin_ctz(ready);
    return &launch.threads[warp * WARP + lane];
}

// Leaves the running thread, which waits from now on, for another one.
static __attribute__((noinline)) void switch_thread() {
    Thread* next = next_thread();
    if (_setjmp(running->resume) == 0) {
        running = next;
        _longjmp(next->resume, 1);
    }
}

static void wake(u32 warp, u32 lanes) {
    launch.warps[warp].ready |= lanes;
    if (lanes) launch.ready_warps |= 1u << warp;
}

static void end_collective(Warp& warp) {
    warp.combine(warp);
    wake(u32(&warp - launch.warps), warp.arrived);
    warp.arrived = 0;
}

// Waits for the warp's living lanes. The last one calls combine, which finds each arrived lane's
// operand, leaves the result in it, and names the collective.
static void collect(const char* name, void (*combine)(Warp&), void* operand) {
    Warp& warp = launch.warps[running->warp];
    if (warp.arrived && warp.combine != combine) {
        fail("a lane is at %s and another lane of its warp at %s", name, warp.collective);
    }
    u32 lane = 1u << running->lane;
    warp.combine = combine;
    warp.collective = name;
    warp.operands[running->lane] = operand;
    warp.arrived |= lane;
    if (warp.arrived == warp.alive) {
        end_collective(warp);
    } else {
        warp.ready &= ~lane;
        switch_thread();
    }
}

static void end_barrier() {
    for (u32 warp = 0; warp < MOST_WARPS; ++warp) {
        wake(warp, launch.warps[warp].at_barrier);
        launch.warps[warp].at_barrier = 0;
    }
    launch.at_barrier = 0;
}

static void wait_for_block() {
    Warp& warp = launch.warps[running->warp];
    u32 lane = 1u << running->lane;
    warp.at_barrier |= lane;
    if (++launch.at_barrier == launch.alive) {
        end_barrier();
    } else {
        warp.ready &= ~lane;
        switch_thread();
    }
}

// Who has left is no longer waited for.
static void leave_block() {
    Warp& warp = launch.warps[running->warp];
    warp.alive &= ~(1u << running->lane);
    warp.ready &= warp.alive;
    if (--launch.alive == 0) {
        if (_setjmp(running->resume) == 0) _longjmp(launch.home, 1);
        return;
    }
    if (warp.arrived && warp.arrived == warp.alive) end_collective(warp);
    if (launch.at_barrier == launch.alive) end_barrier();
    switch_thread();
}

// A load that a GPU would refuse or that no argument covers ends the launch.
static inline void check_load(const void* from, u32 size) {
    u64 at = reinterpret_cast<uintptr_t>(from);
    if (at % size) fail("a load of %u bytes from a misaligned address", size);
    for (int i = 0; i < launch.range_count; ++i) {
        if (launch.ranges[i].from <= at && at + size <= launch.ranges[i].to) return;
    }
    fail("a load of %u bytes from outside of every tensor", size);
}

}  // namespace
}  // namespace cpu

#define threadIdx (cpu::running->index)
#define blockIdx (cpu::launch.block_at)
#define blockDim (cpu::launch.block_size)
#define gridDim (cpu::launch.grid)
