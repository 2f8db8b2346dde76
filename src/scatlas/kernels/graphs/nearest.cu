// Nearest cells among the cells of some lists. TF32 products on tensor cores propose 32 * SLOTS of
// them per query, which stay in shared memory; exact distances rank these. No product is written.
//
// A task is a tile of up to ROWS queries that share their candidates. Row of `tasks`: first query,
// number of queries, first and last entry of `lists`, row of `shifts`, first row of the result.
// List l holds the cells bounds[l] to bounds[l + 1]. `cell_numbers` names the cells by which equal
// distances are ordered; without it, their positions do.

constexpr int ROWS = 128, COLUMNS = 64, WARPS = 4, FIELDS = 6;
// Candidates that wait per row. They are merged before eight more, of a block of columns, could be
// too many: one by one they would take most of the time.
constexpr int WAITING = 32, FULL_FROM = WAITING - 8 + 1;
constexpr int LAST = 2147483647;

struct Task {
  int64 first, n, list, last_list, shift, out;
  __device__ Task(const int64* at)
      : first(at[0]), n(at[1]), list(at[2]), last_list(at[3]), shift(at[4]), out(at[5]) {}
};

// --- exact scores: the operations of nearest_cpu in their order, none fused: the same bits

template <typename A, typename B>
__device__ double squared_distance(const A* a, const B* b, int n_dims) {
  double total = 0.0;
  for (int j = 0; j < n_dims; ++j) {
    const double apart = __dsub_rn(double(load(a + j)), double(load(b + j)));
    total = __dadd_rn(total, __dmul_rn(apart, apart));
  }
  return total;
}

template <typename A, typename B>
__device__ double dot(const A* a, const B* b, int n_dims) {
  double total = 0.0;
  for (int j = 0; j < n_dims; ++j)
    total = __dadd_rn(total, __dmul_rn(double(load(a + j)), double(load(b + j))));
  return total;
}

template <typename A, typename B>
__device__ double exact_score(const A* a, const B* b, int n_dims, bool cosine) {
  if (!cosine) return squared_distance(a, b, n_dims);
  const double lengths = __dmul_rn(sqrt(dot(a, a, n_dims)), sqrt(dot(b, b, n_dims)));
  if (lengths == 0.0) return 1.0;
  return fmin(2.0, fmax(0.0, __dsub_rn(1.0, dot(a, b, n_dims) / lengths)));
}

__device__ inline bool comes_before(double score, int number, double other, int other_number) {
  return score < other || (score == other && number < other_number);
}

// --- proposals

__device__ inline float as_tf32(float v) {
  unsigned bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(v));
  return __uint_as_float(bits);
}

// c += a * b: 16 x 8 sums, of which a lane holds four.
__device__ inline void multiply_add(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
      "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Shared memory of a block.
template <int SLOTS>
struct Tile {
  float *queries, *cells, *added, *best, *waiting;
  int *where, *at, *waiting_at;

  __device__ Tile(float* shared, int step) {
    queries = shared;
    cells = queries + ROWS * step;
    added = cells + COLUMNS * step;
    where = reinterpret_cast<int*>(added + COLUMNS);
    best = reinterpret_cast<float*>(where + 2 * COLUMNS);
    at = reinterpret_cast<int*>(best + ROWS * 32 * SLOTS);
    waiting = reinterpret_cast<float*>(at + ROWS * 32 * SLOTS);
    waiting_at = reinterpret_cast<int*>(waiting + ROWS * WAITING);
  }

  // Merge the waiting candidates of a row into its best ones: by descending score, of equal ones
  // those that came first.
  __device__ void merge(int row, int n) {
    const bool is_there = lane() < n;
    const float mine = is_there ? waiting[row * WAITING + lane()] : -__int_as_float(0x7f800000);
    const int mine_at = is_there ? waiting_at[row * WAITING + lane()] : -1;
    float kept[SLOTS];
    int kept_at[SLOTS], place[SLOTS], mine_place = 0;
#pragma unroll
    for (int slot = 0; slot < SLOTS; ++slot) {
      place[slot] = slot * 32 + lane();
      kept[slot] = best[row * 32 * SLOTS + place[slot]];
      kept_at[slot] = at[row * 32 * SLOTS + place[slot]];
    }
#pragma unroll 8
    for (int from = 0; from < n; ++from) {
      const float other = __shfl_sync(FULL, mine, from);
      int n_before = 0;
#pragma unroll
      for (int slot = 0; slot < SLOTS; ++slot) {
        place[slot] += other > kept[slot];
        n_before += __popc(__ballot_sync(FULL, kept[slot] >= other));
      }
      if (lane() == from) mine_place += n_before;
      mine_place += other > mine || (other == mine && from < lane());
    }
    __syncwarp();
#pragma unroll
    for (int slot = 0; slot < SLOTS; ++slot)
      if (place[slot] < 32 * SLOTS) {
        best[row * 32 * SLOTS + place[slot]] = kept[slot];
        at[row * 32 * SLOTS + place[slot]] = kept_at[slot];
      }
    if (is_there && mine_place < 32 * SLOTS) {
      best[row * 32 * SLOTS + mine_place] = mine;
      at[row * 32 * SLOTS + mine_place] = mine_at;
    }
    __syncwarp();
  }

  // Merge the rows of a warp with at least this many waiting candidates. A lane has the numbers of
  // its four rows in the bytes of `counts`; the lanes of a quarter have the same.
  __device__ unsigned merge_rows(unsigned counts, int at_least, int warp) {
    __syncwarp();
#pragma unroll 1
    for (int part = 0; part < 4; ++part) {
      const int mine = counts >> (8 * part) & 255;
      unsigned full = __ballot_sync(FULL, mine >= at_least) & 0x11111111u;
      for (; full; full &= full - 1) {
        const int group = (__ffs(full) - 1) >> 2;
        merge(warp * 32 + part * 8 + group, __shfl_sync(FULL, mine, group * 4));
        if (lane() >> 2 == group) counts &= ~(255u << (8 * part));
      }
    }
    return counts;
  }
};

// Values of some rows, by eight lanes per row: read from memory while other work goes on, then
// written to a tile as differences from the shift, rounded to TF32. Zero without a cell.
template <int EIGHTHS>
struct Rows {
  float shift[EIGHTHS], values[COLUMNS / 16][EIGHTHS];

  __device__ int dim_of(int first_dim, int j) const {
    return first_dim + (threadIdx.x & 7) + 8 * j;
  }

  template <typename Cell>
  __device__ void read(const float* x, int n_dims, int first_dim, int first_row, Cell cell_of) {
#pragma unroll
    for (int i = 0; i < COLUMNS / 16; ++i) {
      const int64 cell = cell_of(first_row + (threadIdx.x >> 3) + 16 * i);
#pragma unroll
      for (int j = 0; j < EIGHTHS; ++j) {
        const int dim = dim_of(first_dim, j);
        values[i][j] = cell >= 0 && dim < n_dims ? load(x + cell * n_dims + dim) : 0.0f;
      }
    }
  }

  __device__ void read_shift(const float* from, int n_dims, int first_dim) {
#pragma unroll
    for (int j = 0; j < EIGHTHS; ++j) {
      const int dim = dim_of(first_dim, j);
      shift[j] = dim < n_dims ? load(from + dim) : 0.0f;
    }
  }

  // With `added`, what a candidate adds to a product: minus half its squared length, for cosines
  // the product with the shift; minus infinity without a cell.
  template <typename Cell>
  __device__ void write(
      float* out, float* added, int first_dim, int first_row, bool cosine, Cell cell_of) const {
#pragma unroll
    for (int i = 0; i < COLUMNS / 16; ++i) {
      const int row = first_row + (threadIdx.x >> 3) + 16 * i;
      const bool is_there = cell_of(row) >= 0;
      float sum = 0.0f;
#pragma unroll
      for (int j = 0; j < EIGHTHS; ++j) {
        const float moved = is_there ? values[i][j] - shift[j] : 0.0f;
        out[row * (8 * EIGHTHS + 4) + (threadIdx.x & 7) + 8 * j] = as_tf32(moved);
        sum += cosine ? values[i][j] * shift[j] : -0.5f * moved * moved;
      }
      if (added) {
        for (int lanes = 4; lanes; lanes >>= 1) sum += __shfl_xor_sync(FULL, sum, lanes, 8);
        if ((threadIdx.x & 7) == 0) {
          if (first_dim) sum += added[row];
          added[row] = is_there ? sum : -__int_as_float(0x7f800000);
        }
      }
    }
  }
};

// Rank the proposals of a query by exact scores and write the nearest. Returns whether no other
// candidate can be among them: products are off by at most `error` of the vectors' lengths.
template <typename Q, typename C, int SLOTS>
__device__ bool finish_row(
    const Tile<SLOTS>& tile, int row, const Q* query, const C* cells, const int* cell_numbers,
    const float* search, const float* shift, int n_dims, int itself, int64 n_candidates, int n,
    bool cosine, bool root, int* numbers, double* distances) {
  const float* best = tile.best + row * 32 * SLOTS;
  const int* at = tile.at + row * 32 * SLOTS;
  double score[SLOTS];
  int number[SLOTS], rank[SLOTS], n_found = 0;
#pragma unroll
  for (int slot = 0; slot < SLOTS; ++slot) {
    const int position = at[slot * 32 + lane()];
    score[slot] = INF;
    number[slot] = LAST;
    rank[slot] = 0;
    if (position >= 0) {
      number[slot] = cell_numbers ? load(cell_numbers + position) : position;
      score[slot] = number[slot] == itself
                        ? -1.0
                        : exact_score(query, cells + int64(position) * n_dims, n_dims, cosine);
    }
    n_found += __popc(__ballot_sync(FULL, position >= 0));
  }
#pragma unroll
  for (int slot = 0; slot < SLOTS; ++slot)
    for (int from = 0; from < 32; ++from) {
      const double other = __shfl_sync(FULL, score[slot], from);
      const int other_number = __shfl_sync(FULL, number[slot], from);
#pragma unroll
      for (int mine = 0; mine < SLOTS; ++mine)
        rank[mine] += comes_before(other, other_number, score[mine], number[mine]);
    }
  double last = 0.0;
#pragma unroll
  for (int slot = 0; slot < SLOTS; ++slot) {
    if (number[slot] != LAST && rank[slot] < n) {
      numbers[rank[slot]] = number[slot];
      distances[rank[slot]] =
          score[slot] < 0.0 ? 0.0 : root ? sqrt(score[slot]) : score[slot];
    }
    const unsigned is_last = __ballot_sync(FULL, number[slot] != LAST && rank[slot] == n - 1);
    if (is_last) last = __shfl_sync(FULL, score[slot], __ffs(is_last) - 1);
  }
  if (n_found == n_candidates) return true;

  double square = 0.0, far = 0.0, along = 0.0;
  for (int dim = lane(); dim < n_dims; dim += 32) {
    const double value = search[dim], by = shift[dim], moved = double(search[dim] - shift[dim]);
    square += moved * moved;
    far += value * value;
    along += value * by - by * by;
  }
  square = warp_sum(square);
  far = sqrt(warp_sum(far));
  along = warp_sum(along);
  const double lowest = best[32 * SLOTS - 1], length = sqrt(square);
  if (n_found < 32 * SLOTS || !isfinite(lowest)) return false;
  last = fmax(last, 0.0);
  // Rounding to TF32 is off by 2**-11 of each value, a sum of n products in float32 by n * 2**-23
  // (Higham 2002, section 3.1), `search` by 2**-24 of its length.
  const double error = 1.0 / 1024 + (2.0 * n_dims + 16) / 8388608;
  if (cosine) {
    // The squared distance of vectors of length 1 is twice the score.
    const double reach = sqrt(2.0 * last), off = 0.5 * error * (2.0 * length + reach) *
                                                     (2.0 * length + reach);
    return last < 1.0 && 1.0 - (lowest + along) - off - (n_dims + 16) / 2097152.0 > last;
  }
  const double reach = sqrt(last), both = 2.0 * length + reach;
  const double off = error * both * both + both * (far + reach) / 2097152.0;
  return square - 2.0 * lowest - off - 1e-30 > last;
}

template <typename Q, typename C, int SLOTS, int EIGHTHS>
__global__ void __launch_bounds__(WARPS * 32, 2) find_nearest(
    const float* __restrict__ query_search, const float* __restrict__ cell_search,
    const Q* __restrict__ queries, const C* __restrict__ cells, int n_dims,
    const int64* __restrict__ tasks, const int* __restrict__ lists,
    const int64* __restrict__ bounds, const float* __restrict__ shifts,
    const int* __restrict__ query_numbers, const int* __restrict__ cell_numbers,
    const int* __restrict__ places, int n, bool own, bool cosine, bool root,
    int* __restrict__ numbers, double* __restrict__ distances, uint8* __restrict__ unsure) {
  // Four floats more than the depth per row, so that lanes read different banks.
  constexpr int DEPTH = 8 * EIGHTHS, PITCH = DEPTH + 4;
  extern __shared__ float shared[];
  Tile<SLOTS> tile(shared, PITCH);
  const Task task(tasks + int64(blockIdx.x) * FIELDS);
  const float* shift = shifts + task.shift * n_dims;
  const int warp = threadIdx.x >> 5, group = lane() >> 2, quarter = lane() & 3;
  for (int i = threadIdx.x; i < ROWS * 32 * SLOTS; i += WARPS * 32) {
    tile.best[i] = -__int_as_float(0x7f800000);
    tile.at[i] = -1;
  }
  Rows<EIGHTHS> rows;
  rows.read_shift(shift, n_dims, 0);
  const auto query_of = [&](int row) { return row < task.n ? task.first + row : int64(-1); };
  const auto load_queries = [&](int first_dim) {
    Rows<EIGHTHS> of_queries;
    of_queries.read_shift(shift, n_dims, first_dim);
    for (int row = 0; row < ROWS; row += COLUMNS) {
      of_queries.read(query_search, n_dims, first_dim, row, query_of);
      of_queries.write(tile.queries, nullptr, first_dim, row, cosine, query_of);
    }
  };
  if (DEPTH >= n_dims) load_queries(0);

  // Write the next COLUMNS candidates, from as many lists as it takes; all threads count alike.
  int64 list = task.list, next = 0, stop = 0, n_candidates = 0;
  const auto fill = [&](int* where) {
    int n_filled = 0;
    while (n_filled < COLUMNS) {
      if (next == stop) {
        if (list == task.last_list) break;
        next = bounds[lists[list]];
        stop = bounds[lists[list] + 1];
        ++list;
        continue;
      }
      const int taken = int(min(int64(COLUMNS - n_filled), stop - next));
      if (threadIdx.x < taken) where[n_filled + threadIdx.x] = int(next + threadIdx.x);
      n_filled += taken;
      next += taken;
    }
    if (threadIdx.x < COLUMNS && threadIdx.x >= n_filled) where[threadIdx.x] = -1;
    return n_filled;
  };
  unsigned counts = 0;
  int* where = tile.where;
  int* where_next = tile.where + COLUMNS;
  const auto cell_of = [&](int column) { return int64(where[column]); };
  const auto next_cell_of = [&](int column) { return int64(where_next[column]); };
  int n_filled = fill(where);
  __syncthreads();
  rows.read(cell_search, n_dims, 0, 0, cell_of);
  while (n_filled) {
    n_candidates += n_filled;
    float products[2][COLUMNS / 8][4] = {};
    for (int dim = 0; dim < n_dims; dim += DEPTH) {
      __syncthreads();
      if (DEPTH < n_dims) {
        load_queries(dim);
        rows.read_shift(shift, n_dims, dim);
      }
      rows.write(tile.cells, tile.added, dim, 0, cosine, cell_of);
      // The next candidates are on their way while these are multiplied.
      const bool is_last = dim + DEPTH >= n_dims;
      if (is_last) n_filled = fill(where_next);
      __syncthreads();
      if (!is_last)
        rows.read(cell_search, n_dims, dim + DEPTH, 0, cell_of);
      else if (n_filled)
        rows.read(cell_search, n_dims, 0, 0, next_cell_of);
      const float* a = tile.queries + (warp * 32 + group) * PITCH + quarter;
      const float* b = tile.cells + group * PITCH + quarter;
#pragma unroll
      for (int k = 0; k < DEPTH; k += 8) {
        unsigned of_rows[2][4];
#pragma unroll
        for (int half = 0; half < 2; ++half)
#pragma unroll
          for (int part = 0; part < 4; ++part)
            of_rows[half][part] = __float_as_uint(
                a[(half * 16 + (part & 1) * 8) * PITCH + k + (part >> 1) * 4]);
#pragma unroll
        for (int c = 0; c < COLUMNS / 8; ++c) {
          const unsigned of_columns[2] = {
              __float_as_uint(b[c * 8 * PITCH + k]), __float_as_uint(b[c * 8 * PITCH + k + 4])};
          multiply_add(products[0][c], of_rows[0], of_columns);
          multiply_add(products[1][c], of_rows[1], of_columns);
        }
      }
    }

    // Candidates above the least score of their row wait to be merged.
    float least[4];
    const auto read_least = [&]() {
#pragma unroll
      for (int part = 0; part < 4; ++part)
        least[part] = tile.best[(warp * 32 + part * 8 + group + 1) * 32 * SLOTS - 1];
    };
    read_least();
#pragma unroll
    for (int c = 0; c < COLUMNS / 8; ++c) {
      const float2 add = *reinterpret_cast<const float2*>(tile.added + c * 8 + quarter * 2);
      bool is_any = false;
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        float& product = products[i >> 2][c][i & 3];
        product += i & 1 ? add.y : add.x;
        is_any |= product > least[i >> 1];
      }
      if (!__any_sync(FULL, is_any)) continue;
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int part = i >> 1;
        const float product = products[i >> 2][c][i & 3];
        const bool passes = product > least[part];
        const unsigned of_row = __ballot_sync(FULL, passes) >> (group * 4) & 15;
        if (passes) {
          const int before = (counts >> (8 * part) & 255) + __popc(of_row & ((1 << quarter) - 1));
          const int to = (warp * 32 + part * 8 + group) * WAITING + before;
          tile.waiting[to] = product;
          tile.waiting_at[to] = where[c * 8 + quarter * 2 + (i & 1)];
        }
        counts += __popc(of_row) << (8 * part);
      }
      // Whether a byte of the counts is at least FULL_FROM.
      if (__any_sync(FULL, (counts + 0x01010101u * (128 - FULL_FROM)) & 0x80808080u)) {
        counts = tile.merge_rows(counts, FULL_FROM, warp);
        read_least();
      }
    }
    int* const done = where;
    where = where_next;
    where_next = done;
  }

  tile.merge_rows(counts, 1, warp);
  for (int row = warp * 32; row < warp * 32 + 32 && row < task.n; ++row) {
    const int64 query = task.first + row;
    const int itself = own ? (query_numbers ? query_numbers[query] : int(query)) : -1;
    const int64 place = places ? places[query] : task.out + row;
    const bool is_sure = finish_row<Q, C, SLOTS>(
        tile, row, queries + query * n_dims, cells, cell_numbers, query_search + query * n_dims,
        shift, n_dims, itself, n_candidates, n, cosine, root, numbers + place * n,
        distances + place * n);
    if (lane() == 0) unsure[int64(blockIdx.x) * ROWS + row] = !is_sure;
  }
}

// All candidates in float64, a warp per query: the row `which[i] % ROWS` of task `which[i] / ROWS`.
// `numbers` and `scores` [n_which x n] hold LAST and infinity before, the nearest after. Inserting
// is slow, but few of many candidates are nearer than all before them.
template <typename Q, typename C>
__global__ void compare_all(
    const Q* __restrict__ queries, const C* __restrict__ cells, int n_dims,
    const int64* __restrict__ tasks, const int* __restrict__ lists,
    const int64* __restrict__ bounds, const int* __restrict__ query_numbers,
    const int* __restrict__ cell_numbers, const int64* __restrict__ which, int64 n_which, int n,
    bool own, bool cosine, int* numbers, double* scores) {
  for (int64 i = first_warp(); i < n_which; i += all_warps()) {
    const Task task(tasks + which[i] / ROWS * FIELDS);
    const int64 query = task.first + which[i] % ROWS;
    const int itself = own ? (query_numbers ? query_numbers[query] : int(query)) : -1;
    int* near = numbers + i * n;
    double* score = scores + i * n;
    double last = INF;
    int last_number = LAST;
    for (int64 list = task.list; list < task.last_list; ++list)
      for (int64 start = bounds[lists[list]]; start < bounds[lists[list] + 1]; start += 32) {
        const int64 position = start + lane();
        double mine = INF;
        int number = LAST;
        if (position < bounds[lists[list] + 1]) {
          number = cell_numbers ? load(cell_numbers + position) : int(position);
          mine = number == itself
                     ? -1.0
                     : exact_score(queries + query * n_dims, cells + position * n_dims, n_dims,
                                   cosine);
        }
        unsigned nearer = __ballot_sync(FULL, comes_before(mine, number, last, last_number));
        for (; nearer; nearer &= nearer - 1) {
          const double new_score = __shfl_sync(FULL, mine, __ffs(nearer) - 1);
          const int new_number = __shfl_sync(FULL, number, __ffs(nearer) - 1);
          if (!comes_before(new_score, new_number, last, last_number)) continue;
          for (int first = (n - 1) / 32 * 32; first >= 0; first -= 32) {
            const int e = first + lane();
            double moved = INF;
            int moved_number = LAST;
            bool stays = true;
            if (e < n) {
              stays = !comes_before(new_score, new_number, score[e], near[e]);
              if (!stays) {
                const bool is_place =
                    e == 0 || !comes_before(new_score, new_number, score[e - 1], near[e - 1]);
                moved = is_place ? new_score : score[e - 1];
                moved_number = is_place ? new_number : near[e - 1];
              }
            }
            __syncwarp();
            if (!stays) {
              score[e] = moved;
              near[e] = moved_number;
            }
            __syncwarp();
            if (__all_sync(FULL, e >= n || stays)) break;
          }
          last = score[n - 1];
          last_number = near[n - 1];
        }
      }
    if (own && lane() == 0 && near[0] == itself) score[0] = 0.0;
  }
}

// --- centres

// Sums of the cells of each label, added in the order of `order`, a thread per value, which reads
// many cells at once: the time goes into waiting. Scaled cells have sums in double.
constexpr int AT_ONCE = 16;

template <typename T, typename S>
__global__ void add_by_label(
    const T* __restrict__ x, int64 n_dims, const int64* __restrict__ order,
    const int64* __restrict__ bounds, int64 n_labels, const double* __restrict__ scales,
    S* __restrict__ sums) {
  for (int64 at = first_thread(); at < n_labels * n_dims; at += all_threads()) {
    const int64 label = at / n_dims, dim = at % n_dims, stop = load(bounds + label + 1);
    S total = 0, values[AT_ONCE];
    for (int64 i = load(bounds + label), cells[AT_ONCE]; i < stop; i += AT_ONCE) {
#pragma unroll
      for (int k = 0; k < AT_ONCE; ++k) cells[k] = load(order + min(i + k, stop - 1));
#pragma unroll
      for (int k = 0; k < AT_ONCE; ++k) values[k] = S(load(x + cells[k] * n_dims + dim));
#pragma unroll
      for (int k = 0; k < AT_ONCE && scales; ++k)
        values[k] = S(__dmul_rn(double(values[k]), load(scales + cells[k])));
#pragma unroll
      for (int k = 0; k < AT_ONCE; ++k) total = i + k < stop ? total + values[k] : total;
    }
    sums[at] = total;
  }
}

// One divided by the length of each cell; 0 for a cell that is zero.
template <typename T>
__global__ void inverse_lengths(
    const T* __restrict__ x, int n_dims, int64 n, double* __restrict__ out) {
  for (int64 i = first_thread(); i < n; i += all_threads()) {
    const double length = sqrt(dot(x + i * n_dims, x + i * n_dims, n_dims));
    out[i] = length > 0.0 ? 1.0 / length : 0.0;
  }
}

// Exact scores of some centres to all centres.
__global__ void scores_to(
    const double* __restrict__ centres, int n_dims, int64 n, const int64* __restrict__ rows,
    int64 n_rows, bool cosine, double* __restrict__ out) {
  for (int64 at = first_thread(); at < n_rows * n; at += all_threads())
    out[at] = exact_score(
        centres + rows[at / n] * n_dims, centres + at % n * n_dims, n_dims, cosine);
}
