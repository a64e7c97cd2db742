// Vectors of W floats on AVX-512 or AVX2, and the number formats of tensors. Knows no kernel.
#pragma once
#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

struct bf16 {
  uint16_t bits;
};
struct f16 {
  uint16_t bits;
};

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)
constexpr int W = 16;
using vf = __m512;
using vi = __m512i;
using vh = __m256i;  // W numbers of 16 bits

inline vf splat(float x) { return _mm512_set1_ps(x); }
inline vf zero() { return _mm512_setzero_ps(); }
inline vf load(const float* p) { return _mm512_loadu_ps(p); }
inline void store(float* p, vf x) { _mm512_storeu_ps(p, x); }
inline vf fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
inline vf vmax(vf a, vf b) { return _mm512_max_ps(a, b); }
inline float sum(vf x) { return _mm512_reduce_add_ps(x); }
inline float largest(vf x) { return _mm512_reduce_max_ps(x); }
inline vf nearest(vf x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline vi bits_of(vf x) { return _mm512_castps_si512(x); }
inline vf floats_of(vi x) { return _mm512_castsi512_ps(x); }
inline vi splat_bits(int32_t x) { return _mm512_set1_epi32(x); }
inline vi whole(vf x) { return _mm512_cvtps_epi32(x); }
inline vi shift_left(vi x, int n) { return _mm512_slli_epi32(x, n); }
inline vi add_bits(vi a, vi b) { return _mm512_add_epi32(a, b); }
inline vi and_bits(vi a, vi b) { return _mm512_and_si512(a, b); }
inline vi or_bits(vi a, vi b) { return _mm512_or_si512(a, b); }
inline vi load_bits(const void* p) { return _mm512_loadu_si512(p); }
inline void store_bits(void* p, vi x) { _mm512_storeu_si512(p, x); }
inline vh load_halves(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
inline void store_halves(void* p, vh x) { _mm256_storeu_si256(static_cast<__m256i*>(p), x); }
inline vi widen(vh x) { return _mm512_cvtepu16_epi32(x); }
inline vf load(const f16* p) { return _mm512_cvtph_ps(load_halves(p)); }
inline void store(f16* p, vf x) { store_halves(p, _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)); }
// a where x > y, else b
inline vf choose_above(vf x, vf y, vf a, vf b) {
  return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(x, y, _CMP_GT_OQ), b, a);
}
inline bool any_above(vf x, vf y) { return _mm512_cmp_ps_mask(x, y, _CMP_GT_OQ) != 0; }
inline vf lane_numbers() { return _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15); }
#if defined(__AVX512BF16__)
#define HAVE_BF16_DOT 1
inline vh to_bf16(vf x) { return (__m256i)_mm512_cvtneps_pbh(x); }
#else
inline vh to_bf16(vf x) {
  vi b = bits_of(x);
  vi odd = _mm512_and_si512(_mm512_srli_epi32(b, 16), splat_bits(1));
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(add_bits(b, add_bits(odd, splat_bits(0x7fff))), 16));
}
#endif

#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
constexpr int W = 8;
using vf = __m256;
using vi = __m256i;
using vh = __m128i;

inline vf splat(float x) { return _mm256_set1_ps(x); }
inline vf zero() { return _mm256_setzero_ps(); }
inline vf load(const float* p) { return _mm256_loadu_ps(p); }
inline void store(float* p, vf x) { _mm256_storeu_ps(p, x); }
inline vf fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
inline vf vmax(vf a, vf b) { return _mm256_max_ps(a, b); }
inline float sum(vf x) {
  __m128 s = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
inline float largest(vf x) {
  __m128 s = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  s = _mm_max_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
}
inline vf nearest(vf x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline vi bits_of(vf x) { return _mm256_castps_si256(x); }
inline vf floats_of(vi x) { return _mm256_castsi256_ps(x); }
inline vi splat_bits(int32_t x) { return _mm256_set1_epi32(x); }
inline vi whole(vf x) { return _mm256_cvtps_epi32(x); }
inline vi shift_left(vi x, int n) { return _mm256_slli_epi32(x, n); }
inline vi add_bits(vi a, vi b) { return _mm256_add_epi32(a, b); }
inline vi and_bits(vi a, vi b) { return _mm256_and_si256(a, b); }
inline vi or_bits(vi a, vi b) { return _mm256_or_si256(a, b); }
inline vi load_bits(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
inline void store_bits(void* p, vi x) { _mm256_storeu_si256(static_cast<__m256i*>(p), x); }
inline vh load_halves(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }
inline void store_halves(void* p, vh x) { _mm_storeu_si128(static_cast<__m128i*>(p), x); }
inline vi widen(vh x) { return _mm256_cvtepu16_epi32(x); }
inline vf load(const f16* p) { return _mm256_cvtph_ps(load_halves(p)); }
inline void store(f16* p, vf x) { store_halves(p, _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)); }
inline vf choose_above(vf x, vf y, vf a, vf b) { return _mm256_blendv_ps(b, a, _mm256_cmp_ps(x, y, _CMP_GT_OQ)); }
inline bool any_above(vf x, vf y) { return _mm256_movemask_ps(_mm256_cmp_ps(x, y, _CMP_GT_OQ)) != 0; }
inline vf lane_numbers() { return _mm256_setr_ps(0, 1, 2, 3, 4, 5, 6, 7); }
inline vh to_bf16(vf x) {
  vi b = bits_of(x);
  vi odd = _mm256_and_si256(_mm256_srli_epi32(b, 16), splat_bits(1));
  vi r = _mm256_srli_epi32(add_bits(b, add_bits(odd, splat_bits(0x7fff))), 16);
  return _mm_packus_epi32(_mm256_castsi256_si128(r), _mm256_extracti128_si256(r, 1));
}
#else
#error "needs AVX-512 (F, BW, VL, DQ) or AVX2 with FMA and F16C"
#endif

inline vf load(const bf16* p) { return floats_of(shift_left(widen(load_halves(p)), 16)); }
inline void store(bf16* p, vf x) { store_halves(p, to_bf16(x)); }

inline float scalar(float x) { return x; }
inline float scalar(bf16 x) {
  uint32_t b = uint32_t(x.bits) << 16;
  float f;
  std::memcpy(&f, &b, 4);
  return f;
}
inline float scalar(f16 x) { return _cvtsh_ss(x.bits); }

// Loads and stores of the first n < W numbers; the others read as zero and are not written.
template <class T>
inline vf load_some(const T* p, int n) {
  T whole_vector[W] = {};
  std::memcpy(whole_vector, p, n * sizeof(T));
  return load(whole_vector);
}
template <class T>
inline void store_some(T* p, vf x, int n) {
  T whole_vector[W];
  store(whole_vector, x);
  std::memcpy(p, whole_vector, n * sizeof(T));
}

// 2^x for x <= 126, as exactly as T can hold it; zero below 2^-125. Relative error on [-1/2, 1/2]: 7.5e-5 for bf16 (the
// least that a cubic can have), else 2e-7 (a Taylor polynomial).
template <class T>
inline vf exp2v(vf x) {
  vf n = nearest(x);
  vf f = x - n;
  vf p;
  if constexpr (std::is_same_v<T, bf16>) {
    p = fma(splat(5.5171669e-2f), f, splat(2.4261113e-1f));
    p = fma(p, f, splat(6.9326097e-1f));
    p = fma(p, f, splat(0.99992806f));
  } else {
    p = fma(splat(1.5403530e-4f), f, splat(1.3333558e-3f));
    p = fma(p, f, splat(9.6181291e-3f));
    p = fma(p, f, splat(5.5504109e-2f));
    p = fma(p, f, splat(2.4022651e-1f));
    p = fma(p, f, splat(6.9314718e-1f));
    p = fma(p, f, splat(1.0f));
  }
  vf scaled = floats_of(add_bits(bits_of(p), shift_left(whole(n), 23)));
  return choose_above(x, splat(-125.0f), scaled, zero());
}
