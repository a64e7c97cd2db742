// Causal attention of mixed rows over paged keys and values, and the writing of new ones (online softmax:
// arXiv 1805.02867, arXiv 2205.14135).
//
// Keys are visited in blocks that begin at multiples of KEYS of the absolute position, whatever the row's width, chunk
// or window, and every number is one fixed chain of operations over them. So a token's output is bit for bit the same
// when it is decoded alone, computed in a chunk, or follows a cached prefix.
#include <omp.h>

#include <algorithm>
#include <type_traits>

#include "tile.h"
#include "transpose.h"

namespace {

constexpr int KEYS = 64;
constexpr int KEY_VECTORS = KEYS / W;
constexpr int QUERY_ROWS = 96;  // query heads times tokens of one piece of work
constexpr int MAX_HEAD_DIM = 256;
constexpr float MASKED = -1e30f, LOWEST = -1e20f;  // a row that has seen no key yet is still above every masked score
constexpr ptrdiff_t SERIAL_KEYS = 48;  // below this, waking the other threads costs more than it saves

// What the scores and values are multiplied in: bf16 stays, the other formats become float.
template <class T>
struct Multiply {
  using Type = float;
};
template <>
struct Multiply<bf16> {
  using Type = bf16;
};

template <class From, class To>
inline void convert(const From* from, To* to, int n) {
  if constexpr (std::is_same_v<From, To>)
    std::memcpy(to, from, n * sizeof(To));
  else
    for (int i = 0; i < n; i += W) store(to + i, load(from + i));
}

// W rows of 32-bit units, transposed into the W columns of one vector of a panel; `units` is a multiple of 8.
template <class T>
void pack_columns(const void* const* rows, int units, T* panel, ptrdiff_t panel_step) {
  for (int u = 0; u < units; u += W) {
    int n = std::min(W, units - u);
    vi r[W];
    for (int i = 0; i < W; i++) {
      const char* from = static_cast<const char*>(rows[i]) + u * 4;
      if (n == W) {
        r[i] = load_bits(from);
      } else {
        alignas(64) int32_t part[W] = {};
        std::memcpy(part, from, 32);
        r[i] = load_bits(part);
      }
    }
    transpose(r);
    for (int i = 0; i < n; i++) store_bits(panel + (u + i) * panel_step, r[i]);
  }
}

// The values of two neighbouring keys, interleaved as one step of a bf16 panel row.
inline void interleave(const bf16* even, const bf16* odd, bf16* to) {
  store_bits(to, or_bits(widen(load_halves(even)), shift_left(widen(load_halves(odd)), 16)));
}

struct Shape {
  int heads, kv_heads, head_dim;
  ptrdiff_t window;  // 0: none
  float scale;       // of the scores, times log2 e
};

struct Rows {
  const int32_t *slots, *starts, *offsets;  // offsets: a row's first token in the step
  const int32_t* order;                     // rows as pieces count them
  const int32_t* page_table;
  ptrdiff_t page_table_row, page_size;

  const int32_t* pages(int row) const { return page_table + slots[row] * page_table_row; }
};

// Tokens [first, last) of each of the rows [row, last_row), for the key heads [head, last_head). The rows' first `shared`
// keys, a multiple of KEYS, are the same ones, and every token sees them all.
struct Piece {
  int32_t row, last_row, first, last, head, last_head, shared;
};

// Working memory of one thread, and what it does with a piece of work.
template <class TQ, class TKV>
class Worker {
  using M = typename Multiply<TKV>::Type;
  static constexpr int K = Step<M>::K;
  const Shape& shape;
  const int hd, group;
  int n;            // queries of one key head
  ptrdiff_t start;  // position of the first token
  const TKV *key[KEYS], *value[KEYS];
  alignas(64) M queries[QUERY_ROWS * MAX_HEAD_DIM];
  alignas(64) M keys[KEYS * MAX_HEAD_DIM];
  alignas(64) M values[KEYS * MAX_HEAD_DIM];
  alignas(64) float outputs[QUERY_ROWS * MAX_HEAD_DIM];
  alignas(64) TKV no_key[MAX_HEAD_DIM];
  alignas(64) M unpacked[W * MAX_HEAD_DIM];
  float peaks[QUERY_ROWS], totals[QUERY_ROWS];

 public:
  explicit Worker(const Shape& s) : shape(s), hd(s.head_dim), group(s.heads / s.kv_heads) {
    std::memset(no_key, 0, sizeof no_key);
  }

  // One piece of work. What its rows share is read and packed once for all of them, the rest row by row.
  void run(const TQ* q, ptrdiff_t q_row, const TKV* pool_keys, const TKV* pool_values, const Rows& rows,
           const Piece& piece, TQ* out) {
    const int heads = piece.last_head - piece.head, tokens = piece.last - piece.first, own = tokens * group;
    n = (piece.last_row - piece.row) * own;
    // The step's token and the query head of number `r` in memory: by key head, then row, then token, then query head.
    auto place = [&](int r) {
      int i = r % n;
      ptrdiff_t token = rows.offsets[rows.order[piece.row + i / own]] + piece.first + i % own / group;
      return token * shape.heads + (piece.head + r / n) * group + i % group;
    };
    for (int r = 0; r < heads * n; r++) {
      ptrdiff_t at = place(r);
      convert(q + at / shape.heads * q_row + at % shape.heads * hd, queries + r * hd, hd);
      peaks[r] = LOWEST;
      totals[r] = 0;
    }
    std::memset(outputs, 0, sizeof(float) * heads * n * hd);
    auto attend_block = [&](int row, ptrdiff_t block, ptrdiff_t from, ptrdiff_t to, int at, int count) {
      const int32_t* pages = rows.pages(row);
      for (const TKV* pool : {pool_keys, pool_values}) touch(pool, pages, rows.page_size, piece, from, to);
      find_keys(pool_keys, pool_values, pages, rows.page_size, piece.head, block, from, to);
      for (int h = 0; h < heads; h++) {
        pack_keys(h);
        pack_values(h);
        for (int i = 0; i < count;) {
          int tile = std::min(tile_rows(PANEL), count - i);
          ptrdiff_t low = start + i / group, high = start + (i + tile - 1) / group;
          if (high >= block) attend(h * n + at + i, i, tile, block, low, high);
          i += tile;
        }
      }
    };
    start = piece.shared;  // as good as any position after these keys
    for (ptrdiff_t block = 0; block < piece.shared; block += KEYS)
      attend_block(rows.order[piece.row], block, block, block + KEYS, 0, n);
    for (int i = piece.row; i < piece.last_row; i++) {
      int row = rows.order[i];
      start = rows.starts[row] + piece.first;
      ptrdiff_t end = rows.starts[row] + piece.last;
      ptrdiff_t begin = shape.window ? std::max<ptrdiff_t>(0, start - shape.window + 1) : piece.shared;
      for (ptrdiff_t block = begin / KEYS * KEYS; block < end; block += KEYS)
        attend_block(row, block, std::max(begin, block), std::min(end, block + KEYS), (i - piece.row) * own, own);
    }
    for (int r = 0; r < heads * n; r++) {
      TQ* to = out + place(r) * hd;
      vf by = splat(1.0f / totals[r]);
      for (int d = 0; d < hd; d += W) store(to + d, load(outputs + r * hd + d) * by);
    }
  }

 private:
  // Panels of head_dim vectors: PANEL wide, the last one narrower.
  int value_width(int vector) const { return std::min(PANEL, hd / W - vector); }

  // f(position, index in the pool) for the positions [from, to).
  template <class F>
  static void each_key(const int32_t* pages, ptrdiff_t page_size, ptrdiff_t from, ptrdiff_t to, F&& f) {
    for (ptrdiff_t p = from; p < to;) {
      ptrdiff_t page = p / page_size, stop = std::min(to, (page + 1) * page_size);
      for (ptrdiff_t at = pages[page] * page_size + p % page_size; p < stop; p++, at++) f(p, at);
    }
  }

  // Where the block's keys and values of head `head` lie; what is not to be seen by any token reads as zero.
  void find_keys(const TKV* pool_keys, const TKV* pool_values, const int32_t* pages, ptrdiff_t page_size, int head,
                 ptrdiff_t block, ptrdiff_t from, ptrdiff_t to) {
    for (int j = 0; j < KEYS; j++) key[j] = value[j] = nullptr;
    each_key(pages, page_size, from, to, [&](ptrdiff_t p, ptrdiff_t at) {
      key[p - block] = pool_keys + (at * shape.kv_heads + head) * hd;
      value[p - block] = pool_values + (at * shape.kv_heads + head) * hd;
    });
  }

  // Reads one byte of each line of the block in the order of memory, which the hardware's prefetcher follows at full
  // speed. Left to themselves, head after head and key after key, the first reads would be slow scattered ones.
  void touch(const TKV* pool, const int32_t* pages, ptrdiff_t page_size, const Piece& piece, ptrdiff_t from,
             ptrdiff_t to) const {
    size_t bytes = (piece.last_head - piece.head) * hd * sizeof(TKV);
    each_key(pages, page_size, from, to, [&](ptrdiff_t, ptrdiff_t at) {
      const char* line = reinterpret_cast<const char*>(pool + (at * shape.kv_heads + piece.head) * hd);
      for (size_t b = 0; b < bytes; b += 64) {
        int byte;
        asm volatile("movzbl %1, %0" : "=r"(byte) : "m"(line[b]));
      }
    });
  }

  void pack_keys(int h) {
    for (int v = 0; v < KEY_VECTORS; v++) {
      const void* rows[W];
      for (int i = 0; i < W; i++) {
        const TKV* from = key[v * W + i] ? key[v * W + i] + h * hd : no_key;
        rows[i] = from;
        if constexpr (!std::is_same_v<TKV, M>) {
          convert(from, unpacked + i * hd, hd);
          rows[i] = unpacked + i * hd;
        }
      }
      M* panel = keys + v / PANEL * (hd / K) * PANEL * STEP<M>;
      pack_columns(rows, hd / K, panel + v % PANEL * STEP<M>, PANEL * STEP<M>);
    }
  }

  void pack_values(int h) {
    for (int j = 0; j < KEYS; j += K) {
      const TKV* even = value[j] ? value[j] + h * hd : no_key;
      const TKV* odd = value[j + K - 1] ? value[j + K - 1] + h * hd : no_key;
      for (int v = 0; v < hd / W; v += PANEL) {
        M* to = values + (v * (KEYS / K) + value_width(v) * (j / K)) * STEP<M>;
        for (int w = v; w < v + value_width(v); w++, to += STEP<M>) {
          if constexpr (K == 2)
            interleave(even + w * W, odd + w * W, to);
          else
            store(to, load(even + w * W));
        }
      }
    }
  }

  // One tile of rows, from row `i` and the head's `j`-th, against the packed block; they stand at positions low ..
  // high.
  void attend(int i, int j, int rows, ptrdiff_t block, ptrdiff_t low, ptrdiff_t high) {
    alignas(64) float scores[8 * KEYS] = {};
    alignas(64) M weights[8 * KEYS];
    for (int v = 0; v < KEY_VECTORS; v += PANEL)
      tile_for<M>(rows, PANEL)(queries + i * hd, hd, keys + v * (hd / K) * STEP<M>, PANEL * STEP<M>, hd / K,
                               scores + v * W, KEYS);
    bool edge = block + KEYS > low + 1 || (shape.window && block <= high - shape.window);
    for (int t = 0; t < rows; t++) {
      ptrdiff_t position = start + (j + t) / group - block;
      softmax(scores + t * KEYS, weights + t * KEYS, i + t, edge, position);
    }
    ptrdiff_t seen = std::min<ptrdiff_t>(KEYS, high - block + 1);
    for (int v = 0; v < hd / W; v += PANEL) {
      int width = value_width(v);
      for (int t = 0; t < rows;) {
        int part = std::min(tile_rows(width), rows - t);
        tile_for<M>(part, width)(weights + t * KEYS, KEYS, values + v * (KEYS / K) * STEP<M>, width * STEP<M>,
                                 (seen + K - 1) / K, outputs + (i + t) * hd + v * W, hd);
        t += part;
      }
    }
  }

  // Scores of one query to weights; the row's running peak, total and output follow. `position` is counted from the
  // block's first key.
  void softmax(const float* scores, M* weights, int row, bool edge, ptrdiff_t position) {
    vf s[KEY_VECTORS], peak = splat(LOWEST);
    vf lanes = lane_numbers(), last = splat(float(position));
    vf before = splat(shape.window ? float(position - shape.window) : -1.0f);
    for (int v = 0; v < KEY_VECTORS; v++) {
      s[v] = load(scores + v * W) * splat(shape.scale);
      if (edge) {
        vf at = lanes + splat(float(v * W));
        s[v] = choose_above(at, last, splat(MASKED), choose_above(at, before, s[v], splat(MASKED)));
      }
      peak = vmax(peak, s[v]);
    }
    float old = peaks[row], now = std::max(old, largest(peak));
    vf total = zero(), base = splat(now);
    for (int v = 0; v < KEY_VECTORS; v++) {
      vf p = exp2v(s[v] - base);
      total = total + p;
      store(weights + v * W, p);
    }
    if (now != old) {
      vf shrink = exp2v(splat(old) - base);
      totals[row] *= scalar_of(shrink);
      for (int d = 0; d < hd; d += W) store(outputs + row * hd + d, load(outputs + row * hd + d) * shrink);
      peaks[row] = now;
    }
    totals[row] += sum(total);
  }

  static float scalar_of(vf x) {
    float lanes[W];
    store(lanes, x);
    return lanes[0];
  }
};

template <class TQ, class TKV>
void write(const TQ* k, const TQ* v, ptrdiff_t k_row, ptrdiff_t v_row, const int64_t* index, ptrdiff_t first,
           ptrdiff_t last, int numbers, TKV* keys, TKV* values) {
  for (ptrdiff_t t = first; t < last; t++) {
    convert(k + t * k_row, keys + index[t] * numbers, numbers);
    convert(v + t * v_row, values + index[t] * numbers, numbers);
  }
}

}  // namespace

extern "C" {

// A step's rows: all that does not change from layer to layer. `pieces` are seven numbers each (struct Piece), the longest
// first; key heads of a piece times rows times tokens times query heads per key head: at most radixlm_attention_rows().
struct radixlm_step {
  const int32_t *slots, *starts, *offsets, *order, *page_table, *pieces;
  const int64_t* index;
  int64_t page_table_row, page_size, tokens, num_pieces, heads, kv_heads, head_dim, window, keys_to_read;
};
}

namespace {

template <class TQ, class TKV>
void attention(const radixlm_step* s, const TQ* q, const TQ* k, const TQ* v, ptrdiff_t q_row, ptrdiff_t k_row,
               ptrdiff_t v_row, TKV* keys, TKV* values, float scale, TQ* out) {
  Shape shape{int(s->heads), int(s->kv_heads), int(s->head_dim), s->window, scale * 1.44269504f};
  Rows rows{s->slots, s->starts, s->offsets, s->order, s->page_table, s->page_table_row, s->page_size};
  const Piece* pieces = reinterpret_cast<const Piece*>(s->pieces);
  int numbers = shape.kv_heads * shape.head_dim;
  ptrdiff_t next = 0;
  int threads = int(std::min<ptrdiff_t>(s->num_pieces, omp_get_max_threads()));
  if (s->keys_to_read < SERIAL_KEYS || threads < 1) threads = 1;
#pragma omp parallel num_threads(threads)
  {
    ptrdiff_t n = omp_get_num_threads(), me = omp_get_thread_num();
    write(k, v, k_row, v_row, s->index, s->tokens * me / n, s->tokens * (me + 1) / n, numbers, keys, values);
#pragma omp barrier
    Worker<TQ, TKV> worker(shape);
    for (;;) {
      ptrdiff_t piece = __atomic_fetch_add(&next, 1, __ATOMIC_RELAXED);
      if (piece >= s->num_pieces) break;
      worker.run(q, q_row, keys, values, rows, pieces[piece], out);
    }
  }
}

}  // namespace

extern "C" {

int64_t radixlm_attention_rows() { return QUERY_ROWS; }
int64_t radixlm_attention_keys() { return KEYS; }  // what rows share is counted in blocks of so many

#define ATTENTION(TQ, TKV)                                                                                            \
  void radixlm_attention_##TQ##_##TKV(const radixlm_step* step, const void* q, const void* k, const void* v,          \
                                      int64_t q_row, int64_t k_row, int64_t v_row, void* keys, void* values,          \
                                      float scale, void* out) {                                                       \
    attention(step, (const TQ*)q, (const TQ*)k, (const TQ*)v, q_row, k_row, v_row, (TKV*)keys, (TKV*)values, scale, \
              (TQ*)out);                                                                                              \
  }

ATTENTION(bf16, bf16)
ATTENTION(bf16, f16)
ATTENTION(bf16, float)
ATTENTION(float, bf16)
ATTENTION(float, f16)
ATTENTION(float, float)
}
