// Routes up to 16 tokens by their logits, in one block: a warp a token.
constexpr int THREADS = 16 * 32;
#include "choice.cuh"

KERNEL __launch_bounds__(THREADS)
route(const void* logits, const float* correction, int* experts, float* weights, Plan* plan,
      int tokens, int logit_stride, int renormalize, float scale) {
    forget_choices();
    start_next_kernel();
    wait_for_previous_kernel();
    sync_block();
    choose(logits, correction, experts, weights, plan, tokens, logit_stride, renormalize, scale);
}
