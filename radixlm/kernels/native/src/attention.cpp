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
constexpr int MAX_HEAD_DIM = 256;
constexpr int QUERY_NUMBERS = 96 * MAX_HEAD_DIM;  // of a piece of work: query heads times tokens times head_dim
constexpr int MAX_ROWS = QUERY_NUMBERS / 16;
constexpr float MASKED = -1e30f, LOWEST = -1e20f;  // a row that has seen no key yet is still above every masked score
constexpr float SLACK = 8;  // by which the power of two of a weight may exceed 0 before the row's peak is raised
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
  ptrdiff_t window;    // 0: none
  float scale;         // of the scores, times log2 e
  float cap;           // the soft cap in units of the scores, 0: none
  const float* sinks;  // in units of scaled scores, for each query head; null: none
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

template <class T>
struct Pool {
  const T *keys, *values;
};

// c[rows, vectors * W] += a[rows, steps * K] * panel; the rows of a and c are `a_row` and `c_row` numbers apart.
template <class T>
struct Accumulate {
  template <int ROWS, int VECTORS>
  static void run(const T* a, ptrdiff_t a_row, const T* panel, ptrdiff_t steps, float* c, ptrdiff_t c_row) {
    vf sums[ROWS][VECTORS];
    each<ROWS>([&](int i) INLINE {
      each<VECTORS>([&](int j) INLINE { sums[i][j] = load(c + i * c_row + j * W); });
    });
    multiply<T>(a, a_row, panel, steps, sums);
    each<ROWS>([&](int i) INLINE {
      each<VECTORS>([&](int j) INLINE { store(c + i * c_row + j * W, sums[i][j]); });
    });
  }
};

// Working memory of one thread, and what it does with a piece of work.
template <class TQ, class TKV>
class Worker {
  using M = typename Multiply<TKV>::Type;
  static constexpr int K = Step<M>::K;
  static constexpr int TILE_ROWS = tile_rows(PANEL);

  // Where the keys and values of one head lie; null for those that no token is to see, which read as zero.
  struct Block {
    const TKV *key[KEYS], *value[KEYS];
  };

  // A block's keys and values on their way to the second-level cache, a portion whenever there is time. One burst would
  // fill the few places where the first-level cache keeps what it waits for, and stall the reading of what is there.
  struct Fetch {
    const Block& block;
    const int bytes, portion;  // of one key or value; keys and values at a time
    int at = 0;

    // Inlined, because GCC takes a function that only prefetches for one without effect.
    INLINE void some() {
      for (int to = std::min(at + portion, 2 * KEYS); at < to; at++) {
        const TKV* from = at % 2 ? block.value[at / 2] : block.key[at / 2];
        for (int b = 0; from && b < bytes; b += LINE) __builtin_prefetch((const char*)from + b, 0, 2);
      }
    }
  };

  struct AttendTile {
    template <int ROWS, int>
    static void run(Worker& worker, int i, int j, ptrdiff_t block) {
      worker.template attend_tile<ROWS>(i, j, block);
    }
  };

  const Shape& shape;
  const int hd, group;
  int n;            // queries of one key head
  ptrdiff_t start;  // position of the first token
  alignas(64) M queries[QUERY_NUMBERS];
  alignas(64) M keys[KEYS * MAX_HEAD_DIM];
  alignas(64) M values[KEYS * MAX_HEAD_DIM];
  alignas(64) float outputs[QUERY_NUMBERS];
  alignas(64) TKV no_key[MAX_HEAD_DIM];
  alignas(64) M unpacked[W * MAX_HEAD_DIM];
  float peaks[MAX_ROWS];
  alignas(64) float totals[MAX_ROWS * W];

 public:
  explicit Worker(const Shape& s) : shape(s), hd(s.head_dim), group(s.heads / s.kv_heads) {
    std::memset(no_key, 0, sizeof no_key);
  }

  // One piece of work. What its rows share is read and packed once for all of them, the rest row by row.
  void run(const TQ* q, ptrdiff_t q_row, const Pool<TKV>& pool, const Rows& rows, const Piece& piece, TQ* out) {
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
      store(totals + r * W, zero());
      if (shape.sinks) {  // as if a key with this score and a value of zero had been seen
        peaks[r] = shape.sinks[at % shape.heads] * 1.44269504f / shape.scale;
        totals[r * W] = 1;
      }
    }
    std::memset(outputs, 0, sizeof(float) * heads * n * hd);
    start = piece.shared;  // as good as any position after these keys
    if (piece.shared) attend(rows, rows.order[piece.row], piece, pool, 0, piece.shared, 0, n);
    for (int i = piece.row; i < piece.last_row; i++) {
      int row = rows.order[i];
      start = rows.starts[row] + piece.first;
      ptrdiff_t begin = shape.window ? std::max<ptrdiff_t>(0, start - shape.window + 1) : piece.shared;
      attend(rows, row, piece, pool, begin, rows.starts[row] + piece.last, (i - piece.row) * own, own);
    }
    for (int r = 0; r < heads * n; r++) {
      TQ* to = out + place(r) * hd;
      vf by = splat(1.0f / sum(load(totals + r * W)));
      for (int d = 0; d < hd; d += W) store(to + d, load(outputs + r * hd + d) * by);
    }
  }

 private:
  // Queries `at` .. `at` + `count` of each head against the row's keys [from, to).
  void attend(const Rows& rows, int row, const Piece& piece, const Pool<TKV>& pool, ptrdiff_t from, ptrdiff_t to,
              int at, int count) {
    const int heads = piece.last_head - piece.head;
    const int bytes = heads * hd * int(sizeof(TKV));
    const int pauses = heads * (KEY_VECTORS * 2 + (count + TILE_ROWS - 1) / TILE_ROWS);
    const int portion = (2 * KEYS + pauses - 1) / pauses;
    Block blocks[2];
    find_keys(rows, row, pool, piece.head, from, to, blocks[0]);
    Fetch{blocks[0], bytes, 2 * KEYS}.some();
    int turn = 0;
    for (ptrdiff_t block = from / KEYS * KEYS; block < to; block += KEYS, turn ^= 1) {
      const Block& now = blocks[turn];
      find_keys(rows, row, pool, piece.head, block + KEYS, to, blocks[turn ^ 1]);
      Fetch next{blocks[turn ^ 1], bytes, portion};
      for (int h = 0; h < heads; h++) {
        pack_keys(now, h, next);
        pack_values(now, h, next);
        for (int i = 0; i < count;) {
          next.some();
          int tile = std::min(TILE_ROWS, count - i);
          pick<AttendTile, PANEL>(tile)(*this, h * n + at + i, i, block);
          i += tile;
        }
      }
    }
  }

  // Where the keys and values of head `head` lie, from position `from` to the end of its block and before `to`.
  void find_keys(const Rows& rows, int row, const Pool<TKV>& pool, int head, ptrdiff_t from, ptrdiff_t to,
                 Block& found) const {
    found = {};
    const int32_t* pages = rows.pages(row);
    ptrdiff_t block = from / KEYS * KEYS;
    to = std::min(to, block + KEYS);
    ptrdiff_t page = from / rows.page_size, in_page = from % rows.page_size;
    for (ptrdiff_t p = from; p < to; page++, in_page = 0) {
      ptrdiff_t stop = std::min(to, p + rows.page_size - in_page);
      for (ptrdiff_t at = pages[page] * rows.page_size + in_page; p < stop; p++, at++) {
        ptrdiff_t offset = (at * shape.kv_heads + head) * hd;
        found.key[p - block] = pool.keys + offset;
        found.value[p - block] = pool.values + offset;
      }
    }
  }

  void pack_keys(const Block& block, int h, Fetch& next) {
    for (int v = 0; v < KEY_VECTORS; v++) {
      next.some();
      const void* rows[W];
      for (int i = 0; i < W; i++) {
        const TKV* key = block.key[v * W + i];
        const TKV* from = key ? key + h * hd : no_key;
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

  // Panels of head_dim vectors: PANEL wide, the last one narrower.
  int value_width(int vector) const { return std::min(PANEL, hd / W - vector); }

  void pack_values(const Block& block, int h, Fetch& next) {
    M* to = values;
    for (int v = 0; v < hd / W; v += PANEL) {
      const int width = value_width(v);
      for (int j = 0; j < KEYS; j += K) {
        if (j % W == 0) next.some();
        const TKV *one = block.value[j], *two = block.value[j + K - 1];
        one = (one ? one + h * hd : no_key) + v * W;
        two = (two ? two + h * hd : no_key) + v * W;
        for (int w = 0; w < width; w++, to += STEP<M>) {
          if constexpr (K == 2)
            interleave(one + w * W, two + w * W, to);
          else
            store(to, load(one + w * W));
        }
      }
    }
  }

  // One tile of rows, from row `i` and the head's `j`-th, against the packed block.
  template <int ROWS>
  void attend_tile(int i, int j, ptrdiff_t block) {
    ptrdiff_t low = start + j / group, high = start + (j + ROWS - 1) / group;
    if (high < block) return;
    vf scores[ROWS][KEY_VECTORS];
    each<KEY_VECTORS / PANEL>([&](int p) INLINE {
      vf sums[ROWS][PANEL];
      each<ROWS>([&](int t) INLINE { each<PANEL>([&](int v) INLINE { sums[t][v] = zero(); }); });
      multiply<M>(queries + i * hd, hd, keys + p * PANEL * (hd / K) * STEP<M>, hd / K, sums);
      each<ROWS>([&](int t) INLINE {
        each<PANEL>([&](int v) INLINE { scores[t][p * PANEL + v] = sums[t][v]; });
      });
    });
    if (shape.cap > 0) each<ROWS>([&](int t) INLINE { soften(scores[t]); });
    bool edge = block + KEYS > low + 1 || (shape.window && block <= high - shape.window);
    if (edge) each<ROWS>([&](int t) INLINE { mask(scores[t], start + (j + t) / group - block); });
    alignas(64) M weights[ROWS * KEYS];
    each<ROWS>([&](int t) INLINE { softmax(scores[t], weights + t * KEYS, i + t); });
    ptrdiff_t seen = std::min<ptrdiff_t>(KEYS, high - block + 1);
    for (int v = 0; v < hd / W; v += PANEL)
      tile_for<Accumulate<M>>(ROWS, value_width(v))(weights, KEYS, values + v * (KEYS / K) * STEP<M>, (seen + K - 1) / K,
                                                    outputs + i * hd + v * W, hd);
  }

  // cap * tanh(score / cap), where `shape.scale` is yet to be multiplied with both.
  INLINE void soften(vf* scores) const {
    each<KEY_VECTORS>([&](int v) INLINE {
      vf x = vmax(scores[v] * splat(2 * 1.44269504f / shape.cap), splat(-120.0f));
      scores[v] = splat(shape.cap) * (splat(2.0f) / (splat(1.0f) + exp2v<float>(splat(0.0f) - x)) - splat(1.0f));
    });
  }

  // Hides the keys that a token does not see; `position` is the token's, counted from the block's first key.
  INLINE void mask(vf* scores, ptrdiff_t position) const {
    vf last = splat(float(position)), before = splat(shape.window ? float(position - shape.window) : -1.0f);
    each<KEY_VECTORS>([&](int v) INLINE {
      vf at = lane_numbers() + splat(float(v * W));
      scores[v] = choose_above(at, last, splat(MASKED), choose_above(at, before, scores[v], splat(MASKED)));
    });
  }

  // Scores of one query to weights; the row's total follows, lane by lane. Its peak follows only a score that is well
  // above it: until then weights are a little above 1, which costs no accuracy, and nothing has to be scaled again.
  INLINE void softmax(const vf* scores, M* weights, int row) {
    vf top = scores[0];
    each<KEY_VECTORS>([&](int v) INLINE { top = vmax(top, scores[v]); });
    if (any_above(top, splat(peaks[row] + SLACK / shape.scale))) raise_peak(row, largest(top));
    vf scale = splat(shape.scale), base = splat(-peaks[row] * shape.scale), total = load(totals + row * W);
    each<KEY_VECTORS>([&](int v) INLINE {
      vf p = exp2v<M>(fma(scores[v], scale, base));
      total = total + p;
      store(weights + v * W, p);
    });
    store(totals + row * W, total);
  }

  __attribute__((noinline)) void raise_peak(int row, float to) {
    vf shrink = exp2v<float>(splat((peaks[row] - to) * shape.scale));
    store(totals + row * W, load(totals + row * W) * shrink);
    for (int d = 0; d < hd; d += W) store(outputs + row * hd + d, load(outputs + row * hd + d) * shrink);
    peaks[row] = to;
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
// first; key heads of a piece times rows times tokens times query heads per key head are at most what
// radixlm_attention_rows(head_dim) says.
struct radixlm_step {
  const int32_t *slots, *starts, *offsets, *order, *page_table, *pieces;
  const int64_t* index;
  int64_t page_table_row, page_size, tokens, num_pieces, heads, kv_heads, head_dim, window, keys_to_read;
  float soft_cap;  // 0: none
};
}

namespace {

template <class TQ, class TKV>
void attention(const radixlm_step* s, const TQ* q, const TQ* k, const TQ* v, ptrdiff_t q_row, ptrdiff_t k_row,
               ptrdiff_t v_row, TKV* keys, TKV* values, float scale, const float* sinks, TQ* out) {
  Shape shape{int(s->heads), int(s->kv_heads), int(s->head_dim), s->window, scale * 1.44269504f, s->soft_cap / scale,
              sinks};
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
      worker.run(q, q_row, {keys, values}, rows, pieces[piece], out);
    }
  }
}

}  // namespace

extern "C" {

int64_t radixlm_attention_rows(int64_t head_dim) { return QUERY_NUMBERS / head_dim; }
int64_t radixlm_attention_keys() { return KEYS; }  // what rows share is counted in blocks of so many

#define ATTENTION(TQ, TKV)                                                                                            \
  void radixlm_attention_##TQ##_##TKV(const radixlm_step* step, const void* q, const void* k, const void* v,          \
                                      int64_t q_row, int64_t k_row, int64_t v_row, void* keys, void* values,          \
                                      float scale, const float* sinks, void* out) {                                   \
    attention(step, (const TQ*)q, (const TQ*)k, (const TQ*)v, q_row, k_row, v_row, (TKV*)keys, (TKV*)values, scale,   \
              sinks, (TQ*)out);                                                                                       \
  }

ATTENTION(bf16, bf16)
ATTENTION(bf16, f16)
ATTENTION(bf16, float)
ATTENTION(float, bf16)
ATTENTION(float, f16)
ATTENTION(float, float)
}
