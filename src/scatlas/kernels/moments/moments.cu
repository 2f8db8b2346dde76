// Exact sums and sums of squares per group and gene.
//
// Every finite value is an integer times 2^bottom and below 2^top in size; a first sweep finds
// both. Each of its digits to the base 2^width is added to a 64-bit integer (limb). The caller
// chooses the width such that rows times digit stays below 2^63: nothing overflows or is rounded,
// and the order of the atomics does not matter.
//
// limbs [groups, genes, n_sum + 1 + n_square]: digits of the sum; cells above zero (low half) and
// cells that are not finite (high half); digits of the sum of squares. Four limbs, as float32
// values have them, fill one sector of the cache: neighbouring lanes add to them at once.

// --- Values ---------------------------------------------------------------------------------

// Types of 16 bits and less fit float32 without rounding.
template <class V> struct Exact { using type = double; };
template <> struct Exact<bool> { using type = float; };
template <> struct Exact<int8> { using type = float; };
template <> struct Exact<uint8> { using type = float; };
template <> struct Exact<short> { using type = float; };
template <> struct Exact<uint16> { using type = float; };
template <> struct Exact<float> { using type = float; };

template <class V> struct Narrowed { using type = float; };
template <> struct Narrowed<double> { using type = double; };

template <class V> struct Wide { using type = double; };
template <> struct Wide<float> { using type = float; };

template <class R> __device__ inline R rounded(double v);
template <> __device__ inline float rounded<float>(double v) { return __double2float_rn(v); }
template <> __device__ inline double rounded<double>(double v) { return v; }

// Transforms of a value. `same`: every kernel computes the same bits.
template <class V> struct Plain {
  using R = typename Exact<V>::type;
  static constexpr bool same = true;
  static __device__ R of(V v, double) { return R(v); }
};

template <class V> struct Expm1 {
  using R = typename Wide<V>::type;
  static constexpr bool same = false;  // the compiler may fuse the library's operations
  static __device__ R of(V v, double log_base) {
    const double exponent = double(rounded<R>(__dmul_rn(double(v), log_base)));
    // -inf is the logarithm of zero: no count has it, and -1 would go unnoticed.
    return rounded<R>(isinf(exponent) && exponent < 0 ? nan("") : expm1(exponent));
  }
};

template <class V> struct Scaled {
  using R = typename Narrowed<V>::type;
  static constexpr bool same = true;
  static __device__ R of(V v, double scale) { return rounded<R>(__dmul_rn(double(v), scale)); }
};

template <class V> struct Logged {
  using R = typename Narrowed<V>::type;
  static constexpr bool same = true;
  static __device__ R of(V v, double scale) {
    return rounded<R>(log1p_of(double(Scaled<V>::of(v, scale))));
  }
};

// The absolute value of a finite number as whole * 2^exponent.
__device__ inline void split(float v, uint32& whole, int& exponent) {
  const uint32 bits = __float_as_uint(v);
  const int e = int(bits >> 23 & 0xff);
  whole = (bits & 0x7fffff) | (e ? 0x800000 : 0);
  exponent = (e ? e : 1) - 150;
}

__device__ inline void split(double v, uint64& whole, int& exponent) {
  const uint64 bits = uint64(__double_as_longlong(v));
  const int e = int(bits >> 52 & 0x7ff);
  whole = (bits & 0xfffffffffffffULL) | (e ? 0x10000000000000ULL : 0);
  exponent = (e ? e : 1) - 1075;
}

template <class R> struct Word { using type = uint64; };
template <> struct Word<float> { using type = uint32; };

// --- First sweep: the powers of two between which all values lie ----------------------------

template <class Of, class Rows>
__device__ void find_bounds(
  const Rows rows, const int* groups, const double* factors, int64 step, int64 n_rows, int* bounds
) {
  int bottom = 1 << 30, top = -(1 << 30);
  for (int64 row = first_warp(); row < n_rows; row += all_warps()) {
    if (groups[row] < 0) continue;
    const double factor = factors[row * step];
    const int64 end = rows.stop(row);
    for (int64 at = rows.start(row) + lane(); at < end; at += 32) {
      const typename Of::R v = Of::of(rows.value(row, at), factor);
      typename Word<typename Of::R>::type whole;
      int e;
      split(v, whole, e);
      if (whole == 0 || !isfinite(v)) continue;
      const int length = 64 - __clzll(int64(whole));
      // Values that the second sweep may get with another last bit: room for that.
      bottom = min(bottom, Of::same ? e + __ffsll(int64(whole)) - 1 : e - 1);
      top = max(top, e + length + (Of::same ? 0 : 1));
    }
  }
  for (int other = 16; other; other >>= 1) {
    bottom = min(bottom, __shfl_xor_sync(FULL, bottom, other));
    top = max(top, __shfl_xor_sync(FULL, top, other));
  }
  if (lane() == 0 && bottom < top) {
    atomicMin(bounds, bottom);
    atomicMax(bounds + 1, top);
  }
}

// --- Second sweep: the sums -----------------------------------------------------------------

struct Frame {
  int bottom, width, n_sum, n_square;
};

__device__ inline uint64 shifted(uint64 word, int right) {
  if (right >= 0) return right < 64 ? word >> right : 0;
  return right > -64 ? word << -right : 0;
}

// Bits of whole * 2^place, or of its square, from `from` on.
__device__ inline uint64 bits_of(uint32 whole, bool square, int place, int from) {
  const uint64 word = square ? uint64(whole) * whole : whole;
  return shifted(word, from - (square ? 2 * place : place));
}

__device__ inline uint64 bits_of(uint64 whole, bool square, int place, int from) {
  if (!square) return shifted(whole, from - place);
  const int right = from - 2 * place;
  return shifted(whole * whole, right) | shifted(__umul64hi(whole, whole), right - 64);
}

template <class Of, class Rows>
__device__ void add_rows(
  const Rows rows, const int* groups, const double* factors, int64 step, int64 n_rows,
  int64 n_genes, const Frame frame, uint64* limbs
) {
  const int n_limbs = frame.n_sum + 1 + frame.n_square;
  const uint64 mask = (uint64(1) << frame.width) - 1;
  // Each lane reads a value; then the lanes go through the limbs of all 32 values in order.
  const int first_source = lane() / n_limbs, first_limb = lane() % n_limbs;
  const int source_step = 32 / n_limbs, limb_step = 32 % n_limbs;
  for (int64 row = first_warp(); row < n_rows; row += all_warps()) {
    const int group = groups[row];
    if (group < 0) continue;
    const double factor = factors[row * step];
    uint64* of_group = limbs + group * n_genes * n_limbs;
    const int64 end = rows.stop(row);
    for (int64 start = rows.start(row); start < end; start += 32) {
      typename Word<typename Of::R>::type whole = 0;
      int place = 0, gene = 0;
      unsigned negative = 0, tally = 0;
      if (start + lane() < end) {
        const typename Of::R v = Of::of(rows.value(row, start + lane()), factor);
        gene = int(rows.gene(start + lane()));
        tally = v > 0;
        negative = v < 0;
        if (isfinite(v)) {
          split(v, whole, place);
          place -= frame.bottom;
          if (place < 0) {  // only zeros are shifted out
            whole = place > -64 ? uint64(whole) >> -place : 0;
            place = 0;
          }
        } else {
          tally |= 2;
        }
      }
      const int packed = int(unsigned(place) << 3 | tally << 1 | negative);
      const int n_here = end - start < 32 ? int(end - start) : 32;
      int source = first_source, limb = first_limb;
      for (int i = 0; i < n_here * n_limbs; i += 32) {
        const auto whole_ = __shfl_sync(FULL, whole, source);
        const int packed_ = __shfl_sync(FULL, packed, source);
        const int gene_ = __shfl_sync(FULL, gene, source);
        uint64 part;
        if (limb == frame.n_sum) {
          part = uint64(packed_ >> 1 & 1) | uint64(packed_ >> 2 & 1) << 32;
        } else {
          const bool square = limb > frame.n_sum;
          const int digit = square ? limb - frame.n_sum - 1 : limb;
          part = bits_of(whole_, square, packed_ >> 3, digit * frame.width) & mask;
          if (!square && packed_ & 1) part = 0 - part;
        }
        if (part) atomicAdd(of_group + int64(gene_) * n_limbs + limb, part);
        source += source_step;
        limb += limb_step;
        if (limb >= n_limbs) {
          limb -= n_limbs;
          ++source;
        }
      }
    }
  }
}

#define KERNELS(NAME, OF)                                                                      \
  template <class V> __global__ void bounds_##NAME##_csr(                                      \
    const V* data, const int64* indptr, const int* groups, const double* factors, int64 step,  \
    int64 n_rows, int* bounds                                                                  \
  ) {                                                                                          \
    const Sparse<V, int> rows{data, nullptr, indptr};                                             \
    find_bounds<OF<V>>(rows, groups, factors, step, n_rows, bounds);                           \
  }                                                                                            \
  template <class V> __global__ void bounds_##NAME##_dense(                                    \
    const V* x, int64 row_step, int64 gene_step, int64 n_genes, const int* groups,             \
    const double* factors, int64 step, int64 n_rows, int* bounds                               \
  ) {                                                                                          \
    const Dense<V> rows{x, row_step, gene_step, n_genes};                                      \
    find_bounds<OF<V>>(rows, groups, factors, step, n_rows, bounds);                           \
  }                                                                                            \
  template <class V, class I> __global__ void add_##NAME##_csr(                                \
    const V* data, const int64* indptr, const I* indices, const int* groups,                   \
    const double* factors, int64 step, int64 n_rows, int64 n_genes, int bottom, int width,     \
    int n_sum, int n_square, uint64* limbs                                                     \
  ) {                                                                                          \
    const Sparse<V, I> rows{data, indices, indptr};                                               \
    const Frame frame{bottom, width, n_sum, n_square};                                         \
    add_rows<OF<V>>(rows, groups, factors, step, n_rows, n_genes, frame, limbs);               \
  }                                                                                            \
  template <class V> __global__ void add_##NAME##_dense(                                       \
    const V* x, int64 row_step, int64 gene_step, const int* groups, const double* factors,     \
    int64 step, int64 n_rows, int64 n_genes, int bottom, int width, int n_sum, int n_square,   \
    uint64* limbs                                                                              \
  ) {                                                                                          \
    const Dense<V> rows{x, row_step, gene_step, n_genes};                                      \
    const Frame frame{bottom, width, n_sum, n_square};                                         \
    add_rows<OF<V>>(rows, groups, factors, step, n_rows, n_genes, frame, limbs);               \
  }

KERNELS(plain, Plain)
KERNELS(expm1, Expm1)
KERNELS(scaled, Scaled)
KERNELS(logged, Logged)

// --- From limbs to pairs of float64 ---------------------------------------------------------

// Carries on: digits become 0 .. 2^width - 1. Returns what is left above them.
__device__ inline int64 carry(uint64* digits, int n, int width, bool negate) {
  const uint64 mask = (uint64(1) << width) - 1;
  int64 over = 0;
#pragma unroll 1
  for (int k = 0; k < n; ++k) {
    const int64 digit = int64(digits[k]);
    const int64 sum = (negate ? -digit : digit) + over;
    digits[k] = uint64(sum) & mask;
    over = sum >> width;
  }
  return over;
}

// 64 bits of a number from bit `from` on; there is nothing below bit 0.
__device__ inline uint64 window(const uint64* digits, int n, int64 over, int width, int from) {
  uint64 bits = shifted(uint64(over), from - n * width);
#pragma unroll 1
  for (int k = 0; k < n; ++k) bits |= shifted(digits[k], from - k * width);
  return bits;
}

// Whether any bit below bit `from` is set.
__device__ inline bool any_below(const uint64* digits, int n, int64 over, int width, int from) {
  // Its bits above `from` are shifted out at the top.
  for (int k = 0; k <= n; ++k) {
    const int below = min(from - k * width, 64);
    if (below > 0 && shifted(k < n ? digits[k] : uint64(over), below - 64)) return true;
  }
  return false;
}

// The nearest float64 to a sum (ties to even), and what it leaves.
__device__ __noinline__ void to_pair(uint64* digits, int n, int width, int bottom, double* pair) {
  int64 over = carry(digits, n, width, false);
  const bool negative = over < 0;
  if (negative) over = carry(digits, n, width, true) - over;
  int length = over ? n * width + 64 - __clzll(over) : 0;
#pragma unroll 1
  for (int k = n - 1; k >= 0 && !length; --k) {
    if (digits[k]) length = k * width + 64 - __clzll(int64(digits[k]));
  }
  const uint64 first = window(digits, n, over, width, length - 64);
  uint64 second = window(digits, n, over, width, length - 128);
  second |= any_below(digits, n, over, width, length - 128);
  const uint64 cut = first & 0x7ff;
  const bool up = cut > 0x400 || (cut == 0x400 && (second || (first >> 11 & 1)));
  int64 rest = int64(cut) - (up ? 0x800 : 0);
  if (up) {  // what is left is negative
    second = 0 - second;
    rest = -rest - (second != 0);
  }
  double high = ldexp(double((first >> 11) + up), bottom + length - 53);
  double low = double(rest) * 18446744073709551616.0 + double(second);
  low = ldexp(low, bottom + length - 128);
  if (up != negative && low != 0.0) low = -low;
  if (negative) high = -high;
  if (!isfinite(high)) high = low = NOT_A_NUMBER;
  pair[0] = high;
  pair[1] = low;
}

// A template, so that it is compiled only where it is used.
template <class Count> __global__ void close_sums(
  uint64* limbs, int64 n, int bottom, int width, int n_sum, int n_square, double* sums,
  Count* expressed
) {
  for (int64 at = first_thread(); at < n; at += all_threads()) {
    uint64* of = limbs + at * (n_sum + 1 + n_square);
    double* pairs = sums + 4 * at;
    to_pair(of, n_sum, width, bottom, pairs);
    to_pair(of + n_sum + 1, n_square, width, 2 * bottom, pairs + 2);
    expressed[at] = Count(of[n_sum] & 0xffffffffu);
    if (of[n_sum] >> 32) {
      for (int k = 0; k < 4; ++k) pairs[k] = NOT_A_NUMBER;
    }
  }
}
