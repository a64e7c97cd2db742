// The one matrix tile that linear layers and attention share: C += A B with B packed in panels. Knows no tensor.
//
// A panel holds up to PANEL vectors of W columns. Its memory is, for each step over the inner dimension, those vectors
// one after another; a step is one k for float and a pair of neighbouring k for bf16 (what one bf16 dot product takes).
// Every element of C is one chain of additions in rising k, whatever the tile's height or width: so a row's result does
// not depend on the rows that are computed with it.
#pragma once
#include <utility>

#include "simd.h"

#if defined(HAVE_BF16_DOT) || defined(__AVX512F__)
constexpr int PANEL = 4;  // vectors
#else
constexpr int PANEL = 2;
#endif

constexpr ptrdiff_t LINE = 64;  // bytes that come from memory together

// Rows of a tile of `vectors` vectors: as many accumulators as the register file holds.
constexpr int tile_rows(int vectors) {
  return PANEL == 2 ? 4 : vectors == 4 ? 6 : 8;
}

template <class T>
struct Step;

template <>
struct Step<float> {
  static constexpr int K = 1;
  using B = vf;
  using A = vf;
  static B columns(const float* p) { return load(p); }
  static A row(const float* p) { return splat(*p); }
  static vf add(vf c, B b, A a) { return fma(a, b, c); }
};

template <>
struct Step<bf16> {
  static constexpr int K = 2;
#if defined(HAVE_BF16_DOT)
  using B = __m512bh;
  using A = __m512bh;
  static B columns(const bf16* p) { return (__m512bh)load_bits(p); }
  static A row(const bf16* p) {
    int32_t pair;
    std::memcpy(&pair, p, 4);
    return (__m512bh)splat_bits(pair);
  }
  static vf add(vf c, B b, A a) { return _mm512_dpbf16_ps(c, b, a); }
#else
  struct Pair {
    vf first, second;
  };
  using B = Pair;
  using A = Pair;
  static Pair split(vi x) {
    return {floats_of(shift_left(x, 16)), floats_of(and_bits(x, splat_bits(int(0xffff0000))))};
  }
  static B columns(const bf16* p) { return split(load_bits(p)); }
  static A row(const bf16* p) {
    int32_t pair;
    std::memcpy(&pair, p, 4);
    return split(splat_bits(pair));
  }
  static vf add(vf c, B b, A a) { return fma(a.second, b.second, fma(a.first, b.first, c)); }
#endif
};

// The numbers of T in one vector of one step.
template <class T>
constexpr int STEP = W * Step<T>::K;

#define INLINE __attribute__((always_inline))

template <class F, int... I>
INLINE inline void each_of(F&& f, std::integer_sequence<int, I...>) {
  (f(I), ...);
}
// f(0) ... f(N - 1), unrolled from the start: a loop would make the compiler keep an array of vectors in memory.
template <int N, class F>
INLINE inline void each(F&& f) {
  each_of(f, std::make_integer_sequence<int, N>{});
}

// Memory that the same core reads next, to be fetched into its second-level cache: `each` bytes with every step. All at
// once would fill the few places where a core's first-level cache keeps what it waits for.
struct Ahead {
  const char* at = nullptr;
  ptrdiff_t each = 0;

  INLINE void step() {
    for (ptrdiff_t b = 0; b < each; b += LINE) __builtin_prefetch(at + b, 0, 2);
    at += each;
  }
};

// sums[rows, vectors * W] += a[rows, steps * K] * panel of `vectors` vectors; a's rows are `a_row` numbers apart.
template <class T, int ROWS, int VECTORS>
INLINE inline void multiply(const T* a, ptrdiff_t a_row, const T* panel, ptrdiff_t steps, vf (&sums)[ROWS][VECTORS],
                            Ahead ahead = {}) {
  using S = Step<T>;
  for (ptrdiff_t k = 0; k < steps; k++, panel += VECTORS * STEP<T>, a += S::K) {
    ahead.step();
    typename S::B columns[VECTORS];
    each<VECTORS>([&](int j) INLINE { columns[j] = S::columns(panel + j * STEP<T>); });
    each<ROWS>([&](int i) INLINE {
      typename S::A x = S::row(a + i * a_row);
      each<VECTORS>([&](int j) INLINE { sums[i][j] = S::add(sums[i][j], columns[j], x); });
    });
  }
}

// tile_for<F>(rows, vectors) is F::run<rows, vectors>, for 1 <= rows <= tile_rows(vectors), 1 <= vectors <= PANEL.
template <class F, int VECTORS, int... ROWS>
auto pick(int rows, std::integer_sequence<int, ROWS...>) {
  constexpr decltype(&F::template run<1, 1>) of[] = {&F::template run<ROWS + 1, VECTORS>...};
  return of[rows - 1];
}
template <class F, int VECTORS>
auto pick(int rows) {
  return pick<F, VECTORS>(rows, std::make_integer_sequence<int, tile_rows(VECTORS)>{});
}
template <class F>
auto tile_for(int rows, int vectors) {
  if constexpr (PANEL == 2) {
    return vectors == 1 ? pick<F, 1>(rows) : pick<F, 2>(rows);
  } else {
    switch (vectors) {
      case 1: return pick<F, 1>(rows);
      case 2: return pick<F, 2>(rows);
      case 3: return pick<F, 3>(rows);
      default: return pick<F, 4>(rows);
    }
  }
}
