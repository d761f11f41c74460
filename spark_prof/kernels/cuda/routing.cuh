// What a router decides for up to 16 tokens, as routing.cu writes it and the experts read it.
#pragma once
#include "platform.cuh"

constexpr int MAX_TOKENS = 16;
constexpr int MAX_CHOICES = 16;  // experts of a token
constexpr int MAX_ENTRIES = MAX_TOKENS * MAX_CHOICES;

// An entry is a token's choice: token * choices + which. Each active expert has its entries side by
// side, in the order of their tokens; experts are in their own order.
struct Plan {
    int experts;                   // how many are active
    int expert[MAX_ENTRIES];       // their numbers
    int start[MAX_ENTRIES + 1];    // where their entries begin
    int entry[MAX_ENTRIES];
};
