// Launches one kernel on the CPU, block after block; CPU_LAUNCH(kernel) exports what does it.
//
// Shared memory starts each block as NaN (all bits set).
#pragma once

#include <sys/mman.h>
#include <ucontext.h>

#include "platform_cpu.h"

namespace cpu {
namespace {

constexpr size_t STACK = 128 << 10;

// The life of a thread: one kernel call a block.
UNCHECKED static void live() {
    if (_setjmp(running->resume) == 0) _longjmp(launch.home, 1);
    for (;;) {
        launch.kernel(launch.arguments);
        leave_block();
    }
}

UNCHECKED static __attribute__((noinline)) void create(Thread& thread, unsigned char* stack) {
    ucontext_t context;
    getcontext(&context);
    context.uc_stack.ss_sp = stack;
    context.uc_stack.ss_size = STACK;
    context.uc_link = nullptr;
    makecontext(&context, live, 0);
    running = &thread;
    if (_setjmp(launch.home) == 0) setcontext(&context);
}

UNCHECKED static __attribute__((noinline)) void run_from(Thread& thread) {
    running = &thread;
    if (_setjmp(launch.home) == 0) _longjmp(thread.resume, 1);
}

UNCHECKED static void start_block(u32 x, u32 y, u32 z) {
    memset(__start_kernel_shared, 0xff, size_t(__stop_kernel_shared - __start_kernel_shared));
    launch.block_at = {x, y, z};
    launch.alive = launch.block_size.x;
    launch.at_barrier = launch.ready_warps = 0;
    launch.barrier_time = ++launch.time;
    for (u32 i = 0; i < launch.alive; ++i) launch.threads[i].has_waited = false;
    for (u32 warp = 0; warp < MOST_WARPS; ++warp) {
        u32 threads = launch.alive > warp * WARP ? launch.alive - warp * WARP : 0;
        u32 lanes = threads >= WARP ? ALL_LANES : (1u << threads) - 1;
        launch.warps[warp] = {};
        launch.warps[warp].alive = lanes;
        wake(warp, lanes);
    }
}

// Returns null, or what went wrong.
UNCHECKED static const char* run(void (*kernel)(void**), void** arguments, const u32* grid,
                                 u32 block, Range* ranges, u32 range_count, Order* order) {
    size_t shared = size_t(__stop_kernel_shared - __start_kernel_shared);
    size_t size = block * STACK + shared * sizeof(Access);
    void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return "no memory for the threads' stacks";
    failure[0] = 0;
    launch.grid = {grid[0], grid[1], grid[2]};
    launch.block_size = {block, 1, 1};
    launch.time = 0;
    launch.ranges = ranges;
    launch.range_count = range_count;
    launch.order = {};
    launch.stacks = static_cast<unsigned char*>(memory);
    launch.stacks_size = block * STACK;
    launch.accesses = reinterpret_cast<Access*>(launch.stacks + launch.stacks_size);
    launch.kernel = kernel;
    launch.arguments = arguments;
    for (u32 i = 0; i < block; ++i) {
        Thread& thread = launch.threads[i];
        thread.index = {i, 0, 0};
        thread.warp = i / WARP;
        thread.lane = i % WARP;
        create(thread, launch.stacks + i * STACK);
    }
    for (u32 z = 0; z < grid[2] && !failure[0]; ++z) {
        for (u32 y = 0; y < grid[1] && !failure[0]; ++y) {
            for (u32 x = 0; x < grid[0] && !failure[0]; ++x) {
                start_block(x, y, z);
                run_from(launch.threads[next_of(launch.ready_warps) * WARP]);
            }
        }
    }
    munmap(memory, size);
    *order = launch.order;
    return failure[0] ? failure : nullptr;
}

// A parameter's letter: p(ointer), i(nt) or f(loat).
template <class Parameter>
struct Letter {
    static_assert(!sizeof(Parameter), "a kernel's parameter is a pointer, an int or a float");
};
template <class Parameter>
struct Letter<Parameter*> { static constexpr char value = 'p'; };
template <>
struct Letter<int> { static constexpr char value = 'i'; };
template <>
struct Letter<float> { static constexpr char value = 'f'; };

template <class... Parameter>
UNCHECKED static const char* letters(void (*)(Parameter...)) {
    static const char text[] = {Letter<Parameter>::value..., 0};
    return text;
}

// Indices<0, 1, ... count - 1>, without a header of C++: these are slow to compile.
template <u32... index>
struct Indices {};
template <u32 count, u32... index>
struct Below : Below<count - 1, count - 1, index...> {};
template <u32... index>
struct Below<0, index...> { using All = Indices<index...>; };

template <class... Parameter, u32... index>
UNCHECKED static void call_with(void (*kernel)(Parameter...), void** arguments,
                                Indices<index...>) {
    kernel(*static_cast<Parameter*>(arguments[index])...);
}
template <class... Parameter>
UNCHECKED static void call(void (*kernel)(Parameter...), void** arguments) {
    call_with(kernel, arguments, typename Below<sizeof...(Parameter)>::All());
}

}  // namespace
}  // namespace cpu

#define CPU_EXPORT extern "C" __attribute__((visibility("default"))) UNCHECKED const char*
#define CPU_LAUNCH(kernel)                                                                         \
    UNCHECKED static void run_thread(void** arguments) { cpu::call(kernel, arguments); }           \
    CPU_EXPORT kernel_parameters() { return cpu::letters(kernel); }                                \
    CPU_EXPORT kernel_launch(void** arguments, const u32* grid, u32 block, cpu::Range* ranges,     \
                             u32 range_count, cpu::Order* order) {                                 \
        return cpu::run(run_thread, arguments, grid, block, ranges, range_count, order);           \
    }
