// A block's copy of the plan of routing.cu: which experts are active, and whose tokens they take.
#pragma once
#include "routing.cuh"

SHARED int plan_experts;
SHARED int plan_expert[MAX_ENTRIES];
SHARED int plan_start[MAX_ENTRIES + 1];
SHARED int plan_entry[MAX_ENTRIES];
SHARED int entry_token[MAX_ENTRIES];

// What a thread copies first. Everything is asked for at once, whether it turns out to be in use or
// not.
struct PlanPart {
    int experts, start, expert, entry;
};
INLINE PlanPart ask_plan(const Plan* plan, int at, int entries) {
    PlanPart part = {plan->experts};
    if (at <= entries) part.start = plan->start[at];
    if (at >= entries) return part;
    part.expert = plan->expert[at];
    part.entry = plan->entry[at];
    return part;
}
INLINE void put_plan(PlanPart part, const Plan* plan, int entries, int choices) {
    if (threadIdx.x == 0) plan_experts = part.experts;
    for (int at = threadIdx.x; at <= entries;) {
        plan_start[at] = part.start;
        if (at == entries) break;
        plan_expert[at] = part.expert;
        plan_entry[at] = part.entry;
        entry_token[at] = part.entry / choices;
        at += WARPS * 32;
        if (at <= entries) part = ask_plan(plan, at, entries);
    }
    sync_block();
}
INLINE void take_plan(const Plan* plan, int entries, int choices) {
    put_plan(ask_plan(plan, threadIdx.x, entries), plan, entries, choices);
}

INLINE int entries_of(int active) { return plan_start[active + 1] - plan_start[active]; }
// Where an active expert's entry is; beyond the last it is the last.
INLINE int entry_of(int active, int which) {
    return min(plan_start[active] + which, plan_start[active + 1] - 1);
}
