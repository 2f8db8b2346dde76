// Totals per cell, per gene, per gene set, and of the top genes; one warp per cell.

// Type of sums: int64 for integers, double for floats.
template <typename T> struct SumOf { typedef int64 type; };
template <> struct SumOf<float> { typedef double type; };
template <> struct SumOf<double> { typedef double type; };
template <typename T> using Sum = typename SumOf<T>::type;

// ---- Range of the values: largest finite |value| (as bits, which sort as the numbers do), whether
// ---- one is not an integer below 2^52, whether one is not finite.

template <typename T>
__global__ void extent(const T* __restrict__ values, int64 n, uint64* out) {
  uint64 max_abs = 0;
  bool odd = false, infinite = false;
#pragma unroll 4
  for (int64 at = first_thread(); at < n; at += all_threads()) {
    const double v = fabs(double(values[at]));
    const bool finite = v <= 1.7976931348623157e308;
    infinite |= !finite;
    odd |= !finite || v > 4503599627370496.0 || rint(v) != v;
    const uint64 bits = uint64(__double_as_longlong(v));
    if (finite && bits > max_abs) max_abs = bits;
  }
  for (int s = 16; s; s >>= 1) {
    const uint64 other = __shfl_xor_sync(FULL, max_abs, s);
    if (other > max_abs) max_abs = other;
  }
  odd = __any_sync(FULL, odd);
  infinite = __any_sync(FULL, infinite);
  if (lane()) return;
  if (max_abs) atomicMax(out, max_abs);
  if (odd) atomicOr(out + 1, 1ull);
  if (infinite) atomicOr(out + 2, 1ull);
}

// ---- All sums in one pass.

// Sums of genes: warps add in any order, so sums must be integers. An integer is added unchanged. A
// float v becomes hi + lo / fine in units of 1 / coarse, exact up to the resolution of lo. The
// caller chooses both units so that no sum over the block overflows.
struct Genes {
  uint64 *hi, *lo, *cells;
  int* odd;  // 1: a NaN, 2: +inf, 4: -inf was among the values
  double coarse, fine;
};

template <typename T>
__device__ void add_to(const Genes& genes, int64 gene, T v) {
  atomicAdd(genes.hi + gene, uint64(int64(v)));
}

__device__ void add_to(const Genes& genes, int64 gene, double v) {
  if (!(fabs(v) <= 1.7976931348623157e308)) {
    atomicOr(genes.odd + gene, v != v ? 1 : v > 0 ? 2 : 4);
    return;
  }
  const double x = v * genes.coarse;
  const double whole = rint(x);
  const int64 lo = __double2ll_rn((x - whole) * genes.fine);
  atomicAdd(genes.hi + gene, uint64(__double2ll_rn(whole)));
  if (lo) atomicAdd(genes.lo + gene, uint64(lo));
}

__device__ void add_to(const Genes& genes, int64 gene, float v) {
  add_to(genes, gene, double(v));
}

constexpr int MASKS = 4;  // sets of genes in one launch: bits of `sets`

// Null pointers: not requested. `masked` has a row of `width` values per cell.
// `positive`: a gene counts as present above zero, else when it is not zero.
template <typename T, typename Rows>
__device__ void sums(const Rows& x, int64 n_rows, const Genes& genes, int positive, Sum<T>* totals,
                     int64* n_genes, const uint8* sets, int n_sets, Sum<T>* masked, int64 width) {
  const bool by_gene = genes.hi || genes.cells || sets;
  for (int64 row = first_warp(); row < n_rows; row += all_warps()) {
    Sum<T> total = 0, of_set[MASKS] = {};
    int64 n = 0;
    const int64 stop = x.stop(row);
#pragma unroll 4
    for (int64 at = x.start(row) + lane(); at < stop; at += 32) {
      const T v = x.value(row, at);
      const bool present = positive ? v > T(0) : v != T(0);
      total += Sum<T>(v);
      n += present;
      if (!by_gene) continue;
      const int64 gene = x.gene(at);
      if (genes.hi && v != T(0)) add_to(genes, gene, v);
      if (genes.cells && present) atomicAdd(genes.cells + gene, 1ull);
      const int of = sets ? __ldg(sets + gene) : 0;
      if (of) {
#pragma unroll
        for (int k = 0; k < MASKS; ++k) {
          if (of >> k & 1) of_set[k] += Sum<T>(v);
        }
      }
    }
    if (totals) {
      total = warp_sum(total);
      if (!lane()) totals[row] = total;
    }
    if (n_genes) {
      n = warp_sum(n);
      if (!lane()) n_genes[row] = n;
    }
    if (sets) {
#pragma unroll
      for (int k = 0; k < MASKS; ++k) {
        const Sum<T> of = warp_sum(of_set[k]);
        if (!lane() && k < n_sets) masked[row * width + k] = of;
      }
    }
  }
}

template <typename T, typename I>
__global__ void sums_csr(const T* data, const I* indices, const int64* indptr, int64 n_rows,
                         uint64* hi, uint64* lo, uint64* cells, int* odd, double coarse,
                         double fine, int positive, Sum<T>* totals, int64* n_genes,
                         const uint8* sets, int n_sets, Sum<T>* masked, int64 width) {
  sums<T>(Sparse<T, I>{data, indices, indptr}, n_rows, Genes{hi, lo, cells, odd, coarse, fine},
          positive, totals, n_genes, sets, n_sets, masked, width);
}

template <typename T>
__global__ void sums_dense(const T* data, int64 row_step, int64 gene_step, int64 width_of_x,
                           int64 n_rows, uint64* hi, uint64* lo, uint64* cells, int* odd,
                           double coarse, double fine, int positive, Sum<T>* totals,
                           int64* n_genes, const uint8* sets, int n_sets, Sum<T>* masked,
                           int64 width) {
  sums<T>(Dense<T>{data, row_step, gene_step, width_of_x}, n_rows,
          Genes{hi, lo, cells, odd, coarse, fine}, positive, totals, n_genes, sets, n_sets, masked,
          width);
}

// ---- Genes with more than a fraction of the total of a cell.

template <typename T, typename Rows>
__device__ void dominant(const Rows& x, int64 n_rows, double fraction, bool* out) {
  for (int64 row = first_warp(); row < n_rows; row += all_warps()) {
    const int64 start = x.start(row) + lane(), stop = x.stop(row);
    Sum<T> total = 0;
    for (int64 at = start; at < stop; at += 32) total += Sum<T>(x.value(row, at));
    const double bound = double(warp_sum(total)) * fraction;
    for (int64 at = start; at < stop; at += 32) {
      if (double(x.value(row, at)) > bound) out[x.gene(at)] = true;  // all write the same
    }
  }
}

template <typename T, typename I>
__global__ void dominant_csr(const T* data, const I* indices, const int64* indptr, int64 n_rows,
                             double fraction, bool* out) {
  dominant<T>(Sparse<T, I>{data, indices, indptr}, n_rows, fraction, out);
}

template <typename T>
__global__ void dominant_dense(const T* data, int64 row_step, int64 gene_step, int64 n_genes,
                               int64 n_rows, double fraction, bool* out) {
  dominant<T>(Dense<T>{data, row_step, gene_step, n_genes}, n_rows, fraction, out);
}

// ---- Totals of the n largest values of each cell.

// Unsigned keys that order as the values do; NaN comes last, as in NumPy's sort.
template <typename T> struct KeyOf {
  typedef uint32 type;
  static constexpr bool SIGNED = T(-1) < T(0);
  static __device__ uint32 of(T v) { return SIGNED ? uint32(int(v)) ^ 0x80000000u : uint32(v); }
  static __device__ double value(uint32 key) {
    return SIGNED ? double(int(key ^ 0x80000000u)) : double(key);
  }
};
template <> struct KeyOf<uint64> {
  typedef uint64 type;
  static __device__ uint64 of(uint64 v) { return v; }
  static __device__ double value(uint64 key) { return double(key); }
};
template <> struct KeyOf<int64> {
  typedef uint64 type;
  static __device__ uint64 of(int64 v) { return uint64(v) ^ (1ull << 63); }
  static __device__ double value(uint64 key) { return double(int64(key ^ (1ull << 63))); }
};
template <> struct KeyOf<float> {
  typedef uint32 type;
  static __device__ uint32 of(float v) {
    const uint32 bits = __float_as_uint(v);
    if (v != v) return FULL;
    return bits >> 31 ? ~bits : bits | 0x80000000u;
  }
  static __device__ double value(uint32 key) {
    return double(__uint_as_float(key >> 31 ? key & 0x7fffffffu : ~key));
  }
};
template <> struct KeyOf<double> {
  typedef uint64 type;
  static __device__ uint64 of(double v) {
    const uint64 bits = uint64(__double_as_longlong(v));
    if (v != v) return ~0ull;
    return bits >> 63 ? ~bits : bits | (1ull << 63);
  }
  static __device__ double value(uint64 key) {
    return __longlong_as_double(int64(key >> 63 ? key & ~(1ull << 63) : ~key));
  }
};

constexpr int RANKS = 4;  // numbers n processed in one sweep of a cell

// The n-th largest key of a cell is found bit by bit from the top: a bit is set if at least n keys
// are as large with it. Only bits in which the keys of the cell differ are tried, few for counts.
// Then larger values are summed, plus the n-th value for the remaining ranks. No sort, any length.
template <typename T, typename Rows>
__device__ void top(const Rows& x, int64 n_rows, int64 n_genes, const int64* ns, int n_ns,
                    double* out) {
  typedef KeyOf<T> Key;
  typedef typename Key::type K;
  for (int64 row = first_warp(); row < n_rows; row += all_warps()) {
    const int64 start = x.start(row), first = start + lane(), stop = x.stop(row);
    K any = 0, all = ~K(0);
    int64 negative = 0;
    for (int64 at = first; at < stop; at += 32) {
      const T v = x.value(row, at);
      any |= Key::of(v);
      all &= Key::of(v);
      negative += v < T(0);
    }
    for (int s = 16; s; s >>= 1) {
      any |= __shfl_xor_sync(FULL, any, s);
      all &= __shfl_xor_sync(FULL, all, s);
    }
    negative = warp_sum(negative);
    const int64 stored = stop - start, rest = stored - negative, zeros = x.zeros(row, n_genes);
    for (int k0 = 0; k0 < n_ns; k0 += RANKS) {
      // How many stored values are among the n largest: zeros not stored come before negatives.
      int64 n[RANKS];
      K bound[RANKS];
#pragma unroll
      for (int k = 0; k < RANKS; ++k) {
        const int64 asked = k0 + k < n_ns ? ns[k0 + k] : 1;
        n[k] = asked <= rest ? asked : asked <= rest + zeros ? rest : asked - zeros;
        if (n[k] > stored) n[k] = stored;
        bound[k] = all;
      }
      for (K left = any & ~all; left;) {
        const K bit = K(1) << (63 - __clzll(uint64(left)));
        left ^= bit;
        int as_large[RANKS] = {};
        for (int64 at = first; at < stop; at += 32) {
          const K key = Key::of(x.value(row, at));
#pragma unroll
          for (int k = 0; k < RANKS; ++k) as_large[k] += key >= (bound[k] | bit);
        }
#pragma unroll
        for (int k = 0; k < RANKS; ++k) {
          if (warp_sum(as_large[k]) >= n[k]) bound[k] |= bit;
        }
      }
      double total[RANKS] = {};
      int64 larger[RANKS] = {};
      for (int64 at = first; at < stop; at += 32) {
        const T v = x.value(row, at);
#pragma unroll
        for (int k = 0; k < RANKS; ++k) {
          if (Key::of(v) > bound[k]) {
            total[k] += double(v);
            ++larger[k];
          }
        }
      }
#pragma unroll
      for (int k = 0; k < RANKS; ++k) {
        const double sum = warp_sum(total[k]);
        const int64 equal = n[k] - warp_sum(larger[k]);
        if (lane() || k0 + k >= n_ns) continue;
        out[row * n_ns + k0 + k] =
            n[k] > 0 ? __dadd_rn(sum, __dmul_rn(double(equal), Key::value(bound[k]))) : 0.0;
      }
    }
  }
}

template <typename T, typename I>
__global__ void top_csr(const T* data, const I* indices, const int64* indptr, int64 n_rows,
                        int64 n_genes, const int64* ns, int n_ns, double* out) {
  top<T>(Sparse<T, I>{data, indices, indptr}, n_rows, n_genes, ns, n_ns, out);
}

template <typename T>
__global__ void top_dense(const T* data, int64 row_step, int64 gene_step, int64 width, int64 n_rows,
                          int64 n_genes, const int64* ns, int n_ns, double* out) {
  top<T>(Dense<T>{data, row_step, gene_step, width}, n_rows, n_genes, ns, n_ns, out);
}
