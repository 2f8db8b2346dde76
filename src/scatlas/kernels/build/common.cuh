// Shared by all CUDA sources; prepended to each of them.

typedef signed char int8;
typedef unsigned char uint8;
typedef unsigned short uint16;
typedef unsigned int uint32;
typedef long long int64;
typedef unsigned long long uint64;

constexpr unsigned FULL = 0xffffffffu;

__device__ inline int lane() { return threadIdx.x & 31; }

// Rows are distributed over warps: first row of this warp, and number of warps.
__device__ inline int64 first_warp() { return (int64(blockIdx.x) * blockDim.x + threadIdx.x) >> 5; }
__device__ inline int64 all_warps() { return (int64(gridDim.x) * blockDim.x) >> 5; }

// The same for kernels with one thread per item.
__device__ inline int64 first_thread() { return int64(blockIdx.x) * blockDim.x + threadIdx.x; }
__device__ inline int64 all_threads() { return int64(gridDim.x) * blockDim.x; }

// Load through the read-only cache, for memory that no kernel writes at the same time.
template <typename T>
__device__ inline T load(const T* at) { return __ldg(at); }
__device__ inline bool load(const bool* at) { return __ldg(reinterpret_cast<const uint8*>(at)); }

// Rows (cells) of a CSR block, or of a dense array with any strides.
template <typename T, typename I>
struct Sparse {
  const T* data;
  const I* indices;
  const int64* indptr;
  __device__ int64 start(int64 row) const { return load(indptr + row); }
  __device__ int64 stop(int64 row) const { return load(indptr + row + 1); }
  __device__ int64 zeros(int64 row, int64 n_genes) const {
    const int64 n = n_genes - (stop(row) - start(row));
    return n > 0 ? n : 0;
  }
  __device__ T value(int64, int64 at) const { return load(data + at); }
  __device__ int64 gene(int64 at) const { return int64(load(indices + at)); }
};

template <typename T>
struct Dense {
  const T* data;
  int64 row_step, gene_step, n_genes;
  __device__ int64 start(int64) const { return 0; }
  __device__ int64 stop(int64) const { return n_genes; }
  __device__ int64 zeros(int64, int64) const { return 0; }
  __device__ T value(int64 row, int64 at) const {
    return load(data + row * row_step + at * gene_step);
  }
  __device__ int64 gene(int64 at) const { return at; }
};

// Sum over all lanes, for every lane, in a fixed order.
template <typename S>
__device__ inline S warp_sum(S v) {
  for (int step = 16; step; step >>= 1) v += __shfl_xor_sync(FULL, v, step);
  return v;
}

// The value of another lane, of the same group of `width` lanes.
template <typename T>
__device__ inline double of_lane(T value, int from, int width = 32) {
  if constexpr (sizeof(T) < 4)
    return double(__shfl_sync(FULL, int(value), from, width));
  else
    return double(__shfl_sync(FULL, value, from, width));
}

#define INF __longlong_as_double(0x7ff0000000000000LL)
#define NOT_A_NUMBER __longlong_as_double(0x7ff8000000000000LL)

// log(1 + v) with the operations of normalize_cpu, in their order and each rounded: fused
// multiply-adds would give other bits. Constants and reduction: fdlibm's e_log.c.
__device__ inline double log1p_of(double v) {
  if (v == -1.0) return -INF;
  if (!(v > -1.0 && v < INF)) return v > 0.0 ? v : NOT_A_NUMBER;
  const double u = __dadd_rn(1.0, v);
  const double lost = __ddiv_rn(__dsub_rn(v, __dsub_rn(u, 1.0)), u);
  const int64 one = 0x3ff0000000000000LL, sqrt_half = 0x3fe6a09e00000000LL;
  const int64 bits = __double_as_longlong(u) + (one - sqrt_half);
  const double e = double((bits >> 52) - 1023);
  const double m = __longlong_as_double((bits & 0x000fffffffffffffLL) + sqrt_half);
  const double f = __dsub_rn(m, 1.0), s = __ddiv_rn(f, __dadd_rn(2.0, f)), z = __dmul_rn(s, s);
  double r = 1.479819860511658591e-01;
  r = __dadd_rn(1.531383769920937332e-01, __dmul_rn(z, r));
  r = __dadd_rn(1.818357216161805012e-01, __dmul_rn(z, r));
  r = __dadd_rn(2.222219843214978396e-01, __dmul_rn(z, r));
  r = __dadd_rn(2.857142874366239149e-01, __dmul_rn(z, r));
  r = __dadd_rn(3.999999999940941908e-01, __dmul_rn(z, r));
  r = __dadd_rn(6.666666666666735130e-01, __dmul_rn(z, r));
  r = __dmul_rn(z, r);
  const double h = __dmul_rn(__dmul_rn(0.5, f), f);
  const double low = __dadd_rn(__dmul_rn(e, 1.90821492927058770002e-10), lost);
  const double t = __dsub_rn(h, __dadd_rn(__dmul_rn(s, __dadd_rn(h, r)), low));
  return __dsub_rn(__dmul_rn(e, 6.93147180369123816490e-01), __dsub_rn(t, f));
}
