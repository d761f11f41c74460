// Checks what a kernel does with memory; what is wrong stops the launch with a message.
//
// The compiler calls the functions at the end. With -fsanitize=thread it announces each access of
// memory that is not plainly the function's own: it has to lie in a tensor of the launch, in shared
// memory or in this library. What other threads wrote or read in shared memory is separated from it
// by a barrier or, in a warp, by sync_warp; other collectives do not order memory. With
// -fsanitize=undefined it announces what C++ does not define.
#pragma once

#include <string.h>

#include "cpu_threads.h"

// The linker names both ends of this library in memory.
extern "C" __attribute__((visibility("hidden"))) unsigned char __ehdr_start[], _end[];

namespace cpu {
namespace {

// Marks of who has read or written: other lanes of the warp or threads of other warps have too; it
// was an atomic.
constexpr u16 LANES = 0x4000, WARPS_TOO = 0x8000, ATOMIC = 0x2000, THREAD = MOST_THREADS - 1;

UNCHECKED static bool same_warp(u32 a, u32 b) { return (a & THREAD) / WARP == (b & THREAD) / WARP; }

// Whether an access is over before what the running thread does now.
UNCHECKED static bool is_before(u32 time, u16 who) {
    u32 self = running->index.x;
    if (time < launch.barrier_time || (who & ~ATOMIC) == int(self)) return true;
    if (who & WARPS_TOO || !same_warp(who, self)) return false;
    return time < launch.warps[running->warp].sync_time;
}

// The running thread, with those whose accesses are not over.
UNCHECKED static u16 with_others(u32 time, u16 who) {
    u16 self = u16(running->index.x);
    if (is_before(time, who)) return self;
    return self | (same_warp(who, self) && !(who & WARPS_TOO) ? LANES : WARPS_TOO);
}

UNCHECKED static void check_race(Access& seen, bool is_write, bool is_atomic) {
    bool both_atomic = is_atomic && seen.writer & ATOMIC;
    bool is_after_write = both_atomic || is_before(seen.write_time, seen.writer);
    bool is_after_read = !is_write || is_before(seen.read_time, seen.reader);
    if (!is_after_write || !is_after_read) {
        fail("a race: it %s shared memory that thread %u %s, with no barrier between",
             is_write ? "writes" : "reads", (is_after_write ? seen.reader : seen.writer) & THREAD,
             is_after_write ? "reads" : "writes");
    }
    if (is_write) {
        // After a plain write of its own an atomic is one too: to others that one is not over.
        u32 synced = launch.warps[running->warp].sync_time;
        bool is_over = seen.write_time < launch.barrier_time || seen.write_time < synced;
        bool stays_atomic = is_atomic && (seen.writer & ATOMIC || is_over);
        seen.writer = with_others(seen.write_time, seen.writer) | (stays_atomic ? ATOMIC : 0);
        seen.write_time = launch.time;
    } else {
        seen.reader = with_others(seen.read_time, seen.reader);
        seen.read_time = launch.time;
    }
}

// Where an access lies in shared memory; -1 elsewhere.
UNCHECKED static long shared_offset(u64 at, u32 size) {
    u64 offset = at - reinterpret_cast<u64>(__start_kernel_shared);
    u64 all = u64(__stop_kernel_shared - __start_kernel_shared);
    return offset < all && offset + size <= all ? long(offset) : -1;
}

// Whether an access lies in a tensor, which then is marked as used.
UNCHECKED static bool is_in_tensor(u64 at, u32 size, bool is_write) {
    for (u32 i = 0; i < launch.range_count; ++i) {
        Range& range = launch.ranges[i];
        if (at < range.begin || at + size > range.end) continue;
        range.uses |= (is_write ? IS_WRITTEN : IS_READ) * (running->has_waited ? AFTER_WAIT : 1);
        return true;
    }
    return false;
}

// Constants, and what runs the kernel.
UNCHECKED static bool is_in_library(u64 at) {
    return reinterpret_cast<u64>(__ehdr_start) <= at && at < reinterpret_cast<u64>(_end);
}

UNCHECKED static void check_access(const void* address, u32 size, bool is_write, bool is_atomic) {
    u64 at = reinterpret_cast<u64>(address);
    if (at - reinterpret_cast<u64>(launch.stacks) < launch.stacks_size) return;
    long offset = shared_offset(at, size);
    if (offset >= 0) {
        for (u32 i = 0; i < size; ++i) {
            check_race(launch.accesses[offset + i], is_write, is_atomic);
        }
    } else if (!is_in_tensor(at, size, is_write) && (is_write || !is_in_library(at))) {
        fail("%s of %u bytes outside of every tensor and of shared memory",
             is_write ? "a write" : "a read", size);
    }
}

// A load that goes past L1 is of a tensor, and aligned to its size.
UNCHECKED static void check_load(const void* address, u32 size) {
    u64 at = reinterpret_cast<u64>(address);
    if (at % size) fail("a load of %u bytes from a misaligned address", size);
    if (!is_in_tensor(at, size, false)) fail("a load of %u bytes outside of every tensor", size);
}

// Where in a source something undefined happens, as the compiler stores it.
struct Place {
    const char* file;
    u32 line, column;
};
[[noreturn]] UNCHECKED static void fail_at(const void* place, const char* what) {
    const Place& at = *static_cast<const Place*>(place);
    const char* name = strrchr(at.file, '/');
    fail("%s:%u: %s", name ? name + 1 : at.file, at.line, what);
}

}  // namespace
}  // namespace cpu

extern "C" {
UNCHECKED void __tsan_init() {}
UNCHECKED void __tsan_func_entry(void*) {}
UNCHECKED void __tsan_func_exit(void*) {}
#define ON_ACCESS(name, size, is_write)                                                            \
    UNCHECKED void __tsan_##name(void* at) { cpu::check_access(at, size, is_write, false); }
#define ON_ACCESSES(size)                                                                          \
    ON_ACCESS(read##size, size, false)                                                             \
    ON_ACCESS(write##size, size, true)                                                             \
    ON_ACCESS(unaligned_read##size, size, false)                                                   \
    ON_ACCESS(unaligned_write##size, size, true)
ON_ACCESSES(1)
ON_ACCESSES(2)
ON_ACCESSES(4)
ON_ACCESSES(8)
ON_ACCESSES(16)
#define ON_RANGE(is_write) cpu::check_access(at, u32(size), is_write, false)
UNCHECKED void __tsan_read_range(void* at, size_t size) { ON_RANGE(false); }
UNCHECKED void __tsan_write_range(void* at, size_t size) { ON_RANGE(true); }
// Clang has these called instead of the plain ones.
UNCHECKED void* __tsan_memset(void* at, int value, size_t size) {
    ON_RANGE(true);
    return memset(at, value, size);
}
UNCHECKED void* __tsan_memcpy(void* at, const void* from, size_t size) {
    ON_RANGE(true);
    cpu::check_access(from, u32(size), false, false);
    return memcpy(at, from, size);
}

#define ON_UNDEFINED(name, parameters, what)                                                       \
    UNCHECKED void __ubsan_handle_##name parameters { cpu::fail_at(place, what); }
ON_UNDEFINED(add_overflow, (void* place, void*, void*), "a sum beyond its type")
ON_UNDEFINED(sub_overflow, (void* place, void*, void*), "a difference beyond its type")
ON_UNDEFINED(mul_overflow, (void* place, void*, void*), "a product beyond its type")
ON_UNDEFINED(negate_overflow, (void* place, void*), "a negation beyond its type")
ON_UNDEFINED(divrem_overflow, (void* place, void*, void*), "a division by zero")
ON_UNDEFINED(shift_out_of_bounds, (void* place, void*, void*), "a shift by more than its type has")
ON_UNDEFINED(out_of_bounds, (void* place, void*), "an index outside of its array")
ON_UNDEFINED(float_cast_overflow, (void* place, void*), "a float that its integer type cannot hold")
ON_UNDEFINED(type_mismatch_v1, (void* place, void*), "a null pointer or a misaligned one is used")
}
