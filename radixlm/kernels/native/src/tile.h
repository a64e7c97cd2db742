// The one matrix tile that linear layers and attention share: C += A B with B packed in panels. Knows no tensor.
//
// A panel holds up to PANEL vectors of W columns. Its memory is, for each step over the inner dimension, those vectors
// one after another; a step is one k for float and a pair of neighbouring k for bf16 (what one bf16 dot product takes).
// Every element of C is one chain of additions in rising k, whatever the tile's height or width: so a row's result does
// not depend on the rows that are computed with it.
#pragma once
#include "simd.h"

#if defined(HAVE_BF16_DOT) || defined(__AVX512F__)
constexpr int PANEL = 4;  // vectors
#else
constexpr int PANEL = 2;
#endif

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

// c[rows, vectors * W] += a[rows, steps * K] * panel; strides in elements. `b` is the panel, `b_step` its elements per
// step.
template <class T, int ROWS, int VECTORS>
__attribute__((noinline)) void tile(const T* a, ptrdiff_t a_row, const T* b, ptrdiff_t b_step, ptrdiff_t steps,
                                    float* c, ptrdiff_t c_row) {
  using S = Step<T>;
  vf sums[ROWS][VECTORS];
  for (int i = 0; i < ROWS; i++)
    for (int j = 0; j < VECTORS; j++) sums[i][j] = load(c + i * c_row + j * W);
  for (ptrdiff_t k = 0; k < steps; k++, b += b_step, a += S::K) {
    typename S::B columns[VECTORS];
#pragma GCC unroll 4
    for (int j = 0; j < VECTORS; j++) columns[j] = S::columns(b + j * STEP<T>);
#pragma GCC unroll 8
    for (int i = 0; i < ROWS; i++) {
      typename S::A x = S::row(a + i * a_row);
#pragma GCC unroll 4
      for (int j = 0; j < VECTORS; j++) sums[i][j] = S::add(sums[i][j], columns[j], x);
    }
  }
  for (int i = 0; i < ROWS; i++)
    for (int j = 0; j < VECTORS; j++) store(c + i * c_row + j * W, sums[i][j]);
}

template <class T>
using TileFn = void (*)(const T*, ptrdiff_t, const T*, ptrdiff_t, ptrdiff_t, float*, ptrdiff_t);

template <class T, int VECTORS, int... ROWS>
constexpr TileFn<T> pick(int rows) {
  constexpr TileFn<T> of[] = {tile<T, ROWS, VECTORS>...};
  return of[rows - 1];
}

// The tile function for 1 <= rows <= tile_rows(vectors), 1 <= vectors <= PANEL.
template <class T>
TileFn<T> tile_for(int rows, int vectors) {
#if defined(__AVX512F__)
  switch (vectors) {
    case 1: return pick<T, 1, 1, 2, 3, 4, 5, 6, 7, 8>(rows);
    case 2: return pick<T, 2, 1, 2, 3, 4, 5, 6, 7, 8>(rows);
    case 3: return pick<T, 3, 1, 2, 3, 4, 5, 6, 7, 8>(rows);
    default: return pick<T, 4, 1, 2, 3, 4, 5, 6>(rows);
  }
#else
  return vectors == 1 ? pick<T, 1, 1, 2, 3, 4>(rows) : pick<T, 2, 1, 2, 3, 4>(rows);
#endif
}
