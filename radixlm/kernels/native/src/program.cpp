// A list of kernel calls run one after another: what a model's layers come to once their Python has been run.
#include <cstdint>

extern "C" {

constexpr int ARGUMENTS = 11;

enum radixlm_kind : int64_t { LINEAR, RMS_NORM, ADD_RMS_NORM, ROTARY, SILU_MUL, GELU_TANH_MUL, ATTENTION };

// `rows_at` is the argument that counts rows, -1 for none: it becomes the tokens of the run times `per_token`.
struct radixlm_call {
  int64_t kind;
  void (*function)();
  int64_t rows_at, per_token;
  double real;
  int64_t arguments[ARGUMENTS];
};

void radixlm_run(const radixlm_call* calls, int64_t count, int64_t tokens) {
  using P = const void*;
  using N = int64_t;
  for (const radixlm_call* c = calls; c < calls + count; c++) {
    N a[ARGUMENTS];
    for (int i = 0; i < ARGUMENTS; i++) a[i] = c->arguments[i];
    if (c->rows_at >= 0) a[c->rows_at] = tokens * c->per_token;
    auto p = [&a](int i) { return reinterpret_cast<P>(a[i]); };
    float real = float(c->real);
    auto f = c->function;
    switch (c->kind) {
      case LINEAR:
        reinterpret_cast<void (*)(P, N, P, P, P, N, N, N)>(f)(p(0), a[1], p(2), p(3), p(4), a[5], a[6], a[7]);
        break;
      case RMS_NORM:
        reinterpret_cast<void (*)(P, N, N, P, P, N, N, N, float)>(f)(p(0), a[1], a[2], p(3), p(4), a[5], a[6], a[7],
                                                                     real);
        break;
      case ADD_RMS_NORM:
        reinterpret_cast<void (*)(P, P, P, P, N, N, float)>(f)(p(0), p(1), p(2), p(3), a[4], a[5], real);
        break;
      case ROTARY:
        reinterpret_cast<void (*)(P, N, P, P, P, N, N, N)>(f)(p(0), a[1], p(2), p(3), p(4), a[5], a[6], a[7]);
        break;
      case SILU_MUL:
      case GELU_TANH_MUL:
        reinterpret_cast<void (*)(P, P, N, N)>(f)(p(0), p(1), a[2], a[3]);
        break;
      case ATTENTION:
        reinterpret_cast<void (*)(P, P, P, P, N, N, N, P, P, float, P, P)>(f)(p(0), p(1), p(2), p(3), a[4], a[5], a[6],
                                                                              p(7), p(8), real, p(9), p(10));
        break;
    }
  }
}
}
