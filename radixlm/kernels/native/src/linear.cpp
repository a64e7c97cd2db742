// y = x Wᵀ + b with W packed once into panels: reads each weight once, from one end of memory to the other.
#include <omp.h>

#include <algorithm>

#include "tile.h"

namespace {

constexpr ptrdiff_t CHUNK_BYTES = 64 << 10;   // weights that a thread takes at a time
constexpr ptrdiff_t ROWS_BYTES = 384 << 10;   // activations kept in the second-level cache while panels pass
constexpr ptrdiff_t SERIAL_BYTES = 32 << 10;  // below this, waking the other threads costs more than it saves
constexpr ptrdiff_t AHEAD_TILES = 4;          // with a panel's last so many tiles the next panel is fetched

template <class T>
struct Shape {
  ptrdiff_t out, in, steps, vectors, panels;
  Shape(ptrdiff_t out_features, ptrdiff_t in_features)
      : out(out_features),
        in(in_features),
        steps(in_features / Step<T>::K),
        vectors((out_features + W - 1) / W),
        panels((vectors + PANEL - 1) / PANEL) {}
  ptrdiff_t bytes(ptrdiff_t vectors) const { return vectors * steps * STEP<T> * ptrdiff_t(sizeof(T)); }
  int width(ptrdiff_t panel) const { return int(std::min<ptrdiff_t>(PANEL, vectors - panel * PANEL)); }
  ptrdiff_t offset(ptrdiff_t panel) const { return panel * PANEL * steps * STEP<T>; }
};

template <class T>
void pack(const T* weight, ptrdiff_t weight_row, T* packed, ptrdiff_t out, ptrdiff_t in) {
  Shape<T> s(out, in);
  constexpr int K = Step<T>::K;
#pragma omp parallel for schedule(static)
  for (ptrdiff_t panel = 0; panel < s.panels; panel++) {
    T* to = packed + s.offset(panel);
    int columns = s.width(panel) * W;
    for (ptrdiff_t step = 0; step < s.steps; step++)
      for (int c = 0; c < columns; c++) {
        ptrdiff_t n = panel * PANEL * W + c;
        for (int k = 0; k < K; k++) *to++ = n < out ? weight[n * weight_row + step * K + k] : T{};
      }
  }
}

// y[rows, columns] = start + x panel, the rows of x and y being `x_row` and `y_row` numbers apart; `start` is as wide as
// the panel, whose last columns may be too many.
template <class T, class TY>
struct Tile {
  template <int ROWS, int VECTORS>
  static void run(const T* x, ptrdiff_t x_row, const T* panel, ptrdiff_t steps, const float* start, TY* y,
                  ptrdiff_t y_row, ptrdiff_t columns, Ahead ahead) {
    vf sums[ROWS][VECTORS];
    each<ROWS>([&](int i) INLINE { each<VECTORS>([&](int j) INLINE { sums[i][j] = load(start + j * W); }); });
    multiply<T>(x, x_row, panel, steps, sums, ahead);
    each<ROWS>([&](int i) INLINE {
      each<VECTORS>([&](int j) INLINE {
        ptrdiff_t left = columns - j * W;
        TY* to = y + i * y_row + j * W;
        left >= W ? store(to, sums[i][j]) : store_some(to, sums[i][j], int(left));
      });
    });
  }
};

// One panel for the rows [first, last); `next` is what the thread multiplies with after it, or null.
template <class T, class TY>
void panel_rows(const Shape<T>& s, ptrdiff_t panel, const T* x, ptrdiff_t x_row, const T* packed, const float* bias,
                TY* y, ptrdiff_t y_row, ptrdiff_t first, ptrdiff_t last, const T* next) {
  int width = s.width(panel);
  ptrdiff_t column = panel * PANEL * W, columns = std::min<ptrdiff_t>(width * W, s.out - column);
  ptrdiff_t tiles = (last - first + tile_rows(width) - 1) / tile_rows(width);
  alignas(64) float start[PANEL * W] = {};
  if (bias) std::memcpy(start, bias + column, columns * sizeof(float));
  ptrdiff_t row = first, fetching = next && tiles > 1 ? std::min(tiles, AHEAD_TILES) : 0;
  for (ptrdiff_t t = 0; t < tiles; t++) {
    int rows = int((last - row) / (tiles - t));
    Ahead ahead;
    if (ptrdiff_t turn = t - (tiles - fetching); turn >= 0) {
      ptrdiff_t from = PANEL * turn / fetching, to = PANEL * (turn + 1) / fetching;
      ahead = {(const char*)next + s.bytes(from), s.bytes(to - from) / s.steps};
    }
    tile_for<Tile<T, TY>>(rows, width)(x + row * x_row, x_row, packed + s.offset(panel), s.steps, start,
                                       y + row * y_row + column, y_row, columns, ahead);
    row += rows;
  }
}

template <class T, class TY>
void linear(const T* x, ptrdiff_t x_row, const T* packed, const float* bias, TY* y, ptrdiff_t y_row, ptrdiff_t rows,
            ptrdiff_t out, ptrdiff_t in) {
  Shape<T> s(out, in);
  ptrdiff_t panel_bytes = s.bytes(PANEL);
  ptrdiff_t most = std::max<ptrdiff_t>(64, ROWS_BYTES / (in * ptrdiff_t(sizeof(T))));
  ptrdiff_t blocks = std::max<ptrdiff_t>(1, (rows + most - 1) / most), block = (rows + blocks - 1) / blocks;
  int threads = s.panels * panel_bytes < SERIAL_BYTES && rows == 1 ? 1 : omp_get_max_threads();
  ptrdiff_t share = std::max<ptrdiff_t>(1, s.panels / (4 * threads));
  ptrdiff_t chunk = std::clamp<ptrdiff_t>(CHUNK_BYTES / panel_bytes, 1, share);
  ptrdiff_t chunks = (s.panels + chunk - 1) / chunk, tasks = chunks * blocks, taken = 0;
  bool early = rows > tile_rows(PANEL);  // a panel read more than once leaves time to fetch the next
#pragma omp parallel num_threads(threads)
  {
    auto take = [&] { return __atomic_fetch_add(&taken, 1, __ATOMIC_RELAXED); };
    for (ptrdiff_t task = take(), after; task < tasks; task = after) {
      after = early ? take() : tasks;
      ptrdiff_t first = task / chunks * block, last = std::min(first + block, rows);
      ptrdiff_t from = task % chunks * chunk, to = std::min(from + chunk, s.panels);
      for (ptrdiff_t panel = from; panel < to; panel++) {
        const T* next = panel + 1 < to ? packed + s.offset(panel + 1)
                        : after < tasks ? packed + s.offset(after % chunks * chunk) : nullptr;
        panel_rows(s, panel, x, x_row, packed, bias, y, y_row, first, last, next);
      }
      if (!early) after = take();
    }
  }
}

}  // namespace

extern "C" {

int64_t radixlm_packed_elements(int64_t out, int64_t in) { return (out + W - 1) / W * W * in; }

#define PACK(T)                                                                                          \
  void radixlm_pack_##T(const void* weight, int64_t weight_row, void* packed, int64_t out, int64_t in) { \
    pack((const T*)weight, weight_row, (T*)packed, out, in);                                             \
  }

#define LINEAR(T, TY)                                                                                                  \
  void radixlm_linear_##T##_##TY(const void* x, int64_t x_row, const void* packed, const void* bias, void* y,         \
                                 int64_t rows, int64_t out, int64_t in) {                                             \
    linear((const T*)x, x_row, (const T*)packed, (const float*)bias, (TY*)y, out, rows, out, in);                     \
  }

PACK(bf16)
PACK(float)
LINEAR(bf16, bf16)
LINEAR(bf16, float)
LINEAR(float, float)
}
