// Runs a block's threads on one thread of the CPU, by turns.
//
// Each CUDA thread has a stack of its own and runs until it waits: at a barrier, or at a collective
// of its warp, which the last lane to arrive computes for all. Odd blocks run from their last
// thread down. A wait that nobody ends stops the launch with a message; a thread that spins on
// memory without a barrier never ends.
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>

// Not for the checks of cpu_checks.h: what runs the kernel is not the kernel.
#define UNCHECKED __attribute__((no_sanitize("thread", "undefined")))

// The linker gathers these variables and names both ends; in a template GCC would not put them
// there. They are `used`, because who fills them with NaN does it by those names.
#define SHARED static __attribute__((section("kernel_shared"), used))
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
    bool has_waited;  // for the kernel before
};

struct Warp {
    u32 alive, ready, at_barrier, arrived;  // one bit a lane
    u32 sync_time;
    void (*combine)(Warp&);
    const char* collective;
    void* operands[WARP];
};

// A tensor's addresses and how they are used: a bit for what threads do before they have waited for
// the kernel before, and that bit times AFTER_WAIT for what they do then.
struct Range {
    u64 begin, end;
    u32 uses;
};
constexpr u32 IS_READ = 1, IS_WRITTEN = 2, AFTER_WAIT = 4;

// Whether a thread waits for the kernel before, and whether one lets the next start before that.
struct Order {
    u32 waits, starts_next_early;
};

// When a byte of shared memory was last written and read, and by whom.
struct Access {
    u32 write_time, read_time;
    u16 writer, reader;
};

struct Launch {
    uint3 grid, block_at, block_size;
    u32 alive, at_barrier;
    u32 ready_warps;  // one bit a warp
    u32 time, barrier_time;  // counts what orders accesses; its value at the last barrier
    jmp_buf home;
    Range* ranges;
    u32 range_count;
    Order order;
    unsigned char* stacks;
    u64 stacks_size;
    Access* accesses;  // of shared memory
    void (*kernel)(void** arguments);
    void** arguments;
    Warp warps[MOST_WARPS];
    Thread threads[MOST_THREADS];
};

static Launch launch;
static Thread* running;
static char failure[512];

[[noreturn]] UNCHECKED static void fail(const char* format, ...) {
    va_list values;
    va_start(values, format);
    int length = snprintf(failure, sizeof failure, "block (%u, %u, %u), thread %u: ",
                          launch.block_at.x, launch.block_at.y, launch.block_at.z,
                          running->index.x);
    vsnprintf(failure + length, sizeof failure - length, format, values);
    va_end(values);
    _longjmp(launch.home, 1);
}

[[noreturn]] UNCHECKED static void fail_with_deadlock() {
    char text[384];
    u32 waiting = 0;
    const char* collective = "";
    for (const Warp& warp : launch.warps) {
        if (warp.arrived) collective = warp.collective;
        waiting += __builtin_popcount(warp.arrived);
    }
    int length = snprintf(text, sizeof text, "deadlock: of %u threads ", launch.block_size.x);
    if (waiting) {
        length += snprintf(text + length, sizeof text - length, "%u wait at %s, ", waiting,
                           collective);
    }
    snprintf(text + length, sizeof text - length, "%u wait at sync_block, %u have left the kernel",
             launch.at_barrier, launch.block_size.x - launch.alive);
    fail("%s", text);
}

UNCHECKED static u32 next_of(u32 bits) {
    return launch.block_at.x & 1 ? 31 - __builtin_clz(bits) : __builtin_ctz(bits);
}

// The next thread to run: first the other lanes of the warp.
UNCHECKED static Thread* next_thread() {
    u32 warp = running->warp;
    if (!launch.warps[warp].ready) {
        launch.ready_warps &= ~(1u << warp);
        if (!launch.ready_warps) fail_with_deadlock();
        warp = next_of(launch.ready_warps);
    }
    return &launch.threads[warp * WARP + next_of(launch.warps[warp].ready)];
}

// Leaves the running thread, which waits from now on, for another one.
UNCHECKED static __attribute__((noinline)) void switch_thread() {
    Thread* next = next_thread();
    if (_setjmp(running->resume) == 0) {
        running = next;
        _longjmp(next->resume, 1);
    }
}

UNCHECKED static void wake(u32 warp, u32 lanes) {
    launch.warps[warp].ready |= lanes;
    if (lanes) launch.ready_warps |= 1u << warp;
}

UNCHECKED static void end_collective(Warp& warp) {
    warp.combine(warp);
    wake(u32(&warp - launch.warps), warp.arrived);
    warp.arrived = 0;
}

// Waits for the warp's living lanes. The last one calls combine, which finds each arrived lane's
// operand, leaves the result in it, and names the collective.
UNCHECKED static void collect(const char* name, void (*combine)(Warp&), void* operand) {
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

UNCHECKED static void end_barrier() {
    for (u32 warp = 0; warp < MOST_WARPS; ++warp) {
        wake(warp, launch.warps[warp].at_barrier);
        launch.warps[warp].at_barrier = 0;
    }
    launch.at_barrier = 0;
    launch.barrier_time = ++launch.time;
}

UNCHECKED static void wait_for_block() {
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
UNCHECKED static void leave_block() {
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

}  // namespace
}  // namespace cpu

#define threadIdx (cpu::running->index)
#define blockIdx (cpu::launch.block_at)
#define blockDim (cpu::launch.block_size)
#define gridDim (cpu::launch.grid)
