// Normalisation, rotation and gating of a step's tokens: each token by itself, in float, rounded once at the end.
#include <omp.h>

#include <algorithm>
#include <cmath>

#include "simd.h"

namespace {

constexpr ptrdiff_t SERIAL_NUMBERS = 16 << 10;  // below this, waking the other threads costs more than it saves

template <class F>
void each_token(ptrdiff_t tokens, ptrdiff_t numbers, F&& f) {
#pragma omp parallel for schedule(static) if (tokens * numbers >= SERIAL_NUMBERS)
  for (ptrdiff_t t = 0; t < tokens; t++) f(t);
}

template <class T>
float inverse_rms(const T* x, ptrdiff_t n, float eps) {
  vf squares = zero();
  ptrdiff_t i = 0;
  for (; i + W <= n; i += W) {
    vf v = load(x + i);
    squares = fma(v, v, squares);
  }
  if (i < n) {
    vf v = load_some(x + i, int(n - i));
    squares = fma(v, v, squares);
  }
  return 1.0f / std::sqrt(sum(squares) / float(n) + eps);
}

template <class T, class TW>
void scale_by(const T* x, const TW* weight, float by, T* y, ptrdiff_t n) {
  ptrdiff_t i = 0;
  for (; i + W <= n; i += W) store(y + i, load(x + i) * splat(by) * load(weight + i));
  if (i < n) {
    int rest = int(n - i);
    store_some(y + i, load_some(x + i, rest) * splat(by) * load_some(weight + i, rest), rest);
  }
}

// Vector v of x begins at x + v / heads * x_row + v % heads * n; of y likewise.
template <class T, class TW>
void rms_norm(const T* x, ptrdiff_t x_row, ptrdiff_t heads, const TW* weight, T* y, ptrdiff_t y_row, ptrdiff_t vectors,
              ptrdiff_t n, float eps) {
  each_token(vectors, n, [=](ptrdiff_t v) {
    const T* from = x + v / heads * x_row + v % heads * n;
    scale_by(from, weight, inverse_rms(from, n, eps), y + v / heads * y_row + v % heads * n, n);
  });
}

template <class T, class TW>
void add_rms_norm(const T* x, T* residual, const TW* weight, T* y, ptrdiff_t tokens, ptrdiff_t n, float eps) {
  each_token(tokens, n, [=](ptrdiff_t t) {
    const T* from = x + t * n;
    T* to = residual + t * n;
    ptrdiff_t i = 0;
    for (; i + W <= n; i += W) store(to + i, load(to + i) + load(from + i));
    if (i < n) {
      int rest = int(n - i);
      store_some(to + i, load_some(to + i, rest) + load_some(from + i, rest), rest);
    }
    scale_by(to, weight, inverse_rms(to, n, eps), y + t * n, n);
  });
}

template <class T>
void rotary(const T* x, ptrdiff_t x_row, const float* cos, const float* sin, T* y, ptrdiff_t tokens, ptrdiff_t heads,
            ptrdiff_t head_dim) {
  ptrdiff_t half = head_dim / 2;
  each_token(tokens, heads * head_dim, [=](ptrdiff_t t) {
    const float *c = cos + t * head_dim, *s = sin + t * head_dim;
    for (ptrdiff_t h = 0; h < heads; h++) {
      const T* from = x + t * x_row + h * head_dim;
      T* to = y + (t * heads + h) * head_dim;
      ptrdiff_t i = 0;
      for (; i + W <= half; i += W) {
        vf a = load(from + i), b = load(from + half + i);
        store(to + i, fma(b, load(s + i), a * load(c + i)));
        store(to + half + i, fma(a, load(s + half + i), b * load(c + half + i)));
      }
      for (; i < half; i++) {
        float a = scalar(from[i]), b = scalar(from[half + i]);
        store_some(to + i, splat(std::fma(b, s[i], a * c[i])), 1);
        store_some(to + half + i, splat(std::fma(a, s[half + i], b * c[half + i])), 1);
      }
    }
  });
}

// x * sigmoid(by)
inline vf gate(vf x, vf by) {
  vf e = exp2v<float>(vmax(by, splat(-87.0f)) * splat(-1.44269504f));
  return x / (splat(1.0f) + e);
}

struct Silu {
  static vf of(vf x) { return gate(x, x); }
};

// (1 + tanh(z)) / 2 is the sigmoid of 2 z.
struct GeluTanh {
  static vf of(vf x) { return gate(x, x * splat(1.59576912f) * fma(x * x, splat(0.044715f), splat(1.0f))); }
};

template <class F, class T>
void gate_mul(const T* gate_up, T* y, ptrdiff_t tokens, ptrdiff_t n) {
  each_token(tokens, 4 * n, [=](ptrdiff_t t) {
    const T *gate = gate_up + t * 2 * n, *up = gate + n;
    T* to = y + t * n;
    ptrdiff_t i = 0;
    for (; i + W <= n; i += W) store(to + i, F::of(load(gate + i)) * load(up + i));
    if (i < n) {
      int rest = int(n - i);
      store_some(to + i, F::of(load_some(gate + i, rest)) * load_some(up + i, rest), rest);
    }
  });
}

}  // namespace

extern "C" {

#define NORMS(T, TW)                                                                                                   \
  void radixlm_rms_norm_##T##_##TW(const void* x, int64_t x_row, int64_t heads, const void* weight, void* y,           \
                                   int64_t y_row, int64_t vectors, int64_t n, float eps) {                             \
    rms_norm((const T*)x, x_row, heads, (const TW*)weight, (T*)y, y_row, vectors, n, eps);                             \
  }                                                                                                                    \
  void radixlm_add_rms_norm_##T##_##TW(const void* x, void* residual, const void* weight, void* y, int64_t tokens,     \
                                       int64_t n, float eps) {                                                         \
    add_rms_norm((const T*)x, (T*)residual, (const TW*)weight, (T*)y, tokens, n, eps);                                 \
  }

NORMS(bf16, bf16)
NORMS(bf16, float)
NORMS(f16, f16)
NORMS(f16, float)
NORMS(float, float)

#define ELEMENTWISE(T)                                                                                                 \
  void radixlm_rotary_##T(const void* x, int64_t x_row, const void* cos, const void* sin, void* y, int64_t tokens,     \
                          int64_t heads, int64_t head_dim) {                                                           \
    rotary((const T*)x, x_row, (const float*)cos, (const float*)sin, (T*)y, tokens, heads, head_dim);                  \
  }                                                                                                                    \
  void radixlm_silu_mul_##T(const void* gate_up, void* y, int64_t tokens, int64_t n) {                                 \
    gate_mul<Silu>((const T*)gate_up, (T*)y, tokens, n);                                                               \
  }                                                                                                                    \
  void radixlm_gelu_tanh_mul_##T(const void* gate_up, void* y, int64_t tokens, int64_t n) {                            \
    gate_mul<GeluTanh>((const T*)gate_up, (T*)y, tokens, n);                                                           \
  }

ELEMENTWISE(bf16)
ELEMENTWISE(f16)
ELEMENTWISE(float)
}
