// A block's copy of the plan of routing.cu: which experts are active, and whose tokens they take.
#pragma once
#include "routing.cuh"

SHARED int plan_experts;
SHARED int plan_expert[MAX_ENTRIES];
SHARED int plan_start[MAX_ENTRIES + 1];
SHARED int plan_entry[MAX_ENTRIES];
SHARED int entry_token[MAX_ENTRIES];

// Everything is asked for at once, whether it turns out to be in use or not.
INLINE void take_plan(const Plan* plan, int tokens, int choices) {
    const int entries = tokens * choices;
    if (threadIdx.x == 0) plan_experts = plan->experts;
    for (int at = threadIdx.x; at <= entries; at += WARPS * 32) {
        plan_start[at] = plan->start[at];
        if (at == entries) break;
        const int entry = plan->entry[at];
        plan_expert[at] = plan->expert[at];
        plan_entry[at] = entry;
        entry_token[at] = entry / choices;
    }
    sync_block();
}

INLINE int entries_of(int active) { return plan_start[active + 1] - plan_start[active]; }
// Where an active expert's entry is; beyond the last it is the last.
INLINE int entry_of(int active, int which) {
    return min(plan_start[active] + which, plan_start[active + 1] - 1);
}
