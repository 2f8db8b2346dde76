// Elementwise steps of a block: scaling each cell, log(1 + x).

template <typename T, typename Out>
__global__ void scale_csr(const T* __restrict__ data, const int64* __restrict__ indptr,
                          const double* __restrict__ factors, int64 n_rows,
                          Out* __restrict__ out) {
  for (int64 row = first_warp(); row < n_rows; row += all_warps()) {
    const double factor = factors[row];
    const int64 stop = indptr[row + 1];
#pragma unroll 4
    for (int64 at = indptr[row] + lane(); at < stop; at += 32) {
      out[at] = Out(double(data[at]) * factor);
    }
  }
}

template <typename T, typename I, typename Out>
__global__ void scale_csc(const T* __restrict__ data, const I* __restrict__ indices,
                          const double* __restrict__ factors, int64 n, Out* __restrict__ out) {
  const int64 step = int64(gridDim.x) * blockDim.x;
  for (int64 at = int64(blockIdx.x) * blockDim.x + threadIdx.x; at < n; at += step) {
    out[at] = Out(double(data[at]) * factors[indices[at]]);
  }
}

template <typename T, typename Out>
__global__ void scale_dense(const T* __restrict__ x, int64 row_step, int64 gene_step,
                            const double* __restrict__ factors, int64 n_rows, int64 n_genes,
                            Out* __restrict__ out) {
  for (int64 row = first_warp(); row < n_rows; row += all_warps()) {
    const double factor = factors[row];
#pragma unroll 4
    for (int64 gene = lane(); gene < n_genes; gene += 32) {
      out[row * n_genes + gene] = Out(double(x[row * row_step + gene * gene_step]) * factor);
    }
  }
}

// log(1 + v) with the operations of normalize_cpu, in their order and each rounded: fused
// multiply-adds would give other bits. Constants and reduction: fdlibm's e_log.c.
__device__ double log1p_of(double v, double log_base) {
  constexpr int64 ONE = 0x3FF0000000000000, SQRT_HALF = 0x3FE6A09E00000000;
  constexpr double LN2_HI = 6.93147180369123816490e-01, LN2_LO = 1.90821492927058770002e-10;
  constexpr double R[] = {6.666666666666735130e-01, 3.999999999940941908e-01,
                          2.857142874366239149e-01, 2.222219843214978396e-01,
                          1.818357216161805012e-01, 1.531383769920937332e-01,
                          1.479819860511658591e-01};
  if (!(v > -1.0)) {  // -1, below -1, or NaN
    if (v == -1.0) return __ddiv_rn(-__longlong_as_double(0x7FF0000000000000), log_base);
    return __longlong_as_double(0x7FF8000000000000);
  }
  if (v > 1.7976931348623157e308) return __ddiv_rn(v, log_base);
  const double u = __dadd_rn(1.0, v);
  const double lost = __ddiv_rn(__dsub_rn(v, __dsub_rn(u, 1.0)), u);
  const int64 bits = __double_as_longlong(u) + (ONE - SQRT_HALF);
  const double e = double((bits >> 52) - 1023);
  const double m = __longlong_as_double((bits & 0x000FFFFFFFFFFFFF) + SQRT_HALF);
  const double f = __dsub_rn(m, 1.0);
  const double s = __ddiv_rn(f, __dadd_rn(2.0, f));
  const double z = __dmul_rn(s, s);
  double r = __dmul_rn(z, R[6]);
#pragma unroll
  for (int k = 5; k >= 0; --k) r = __dmul_rn(z, __dadd_rn(R[k], r));
  const double h = __dmul_rn(__dmul_rn(0.5, f), f);
  const double low = __dadd_rn(__dmul_rn(e, LN2_LO), lost);
  const double part = __dadd_rn(__dmul_rn(s, __dadd_rn(h, r)), low);
  const double y = __dsub_rn(__dmul_rn(e, LN2_HI), __dsub_rn(__dsub_rn(h, part), f));
  return log_base == 1.0 ? y : __ddiv_rn(y, log_base);
}

// Not __restrict__: the output may be the input.
template <typename T, typename Out>
__global__ void log1p_flat(const T* data, int64 n, double log_base, Out* out) {
  const int64 step = int64(gridDim.x) * blockDim.x;
  for (int64 at = int64(blockIdx.x) * blockDim.x + threadIdx.x; at < n; at += step) {
    out[at] = Out(log1p_of(double(data[at]), log_base));
  }
}
