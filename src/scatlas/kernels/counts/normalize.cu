// Elementwise operations on a block: scaling of each cell, log(1 + x).

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
  for (int64 at = first_thread(); at < n; at += all_threads()) {
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

// Not __restrict__: the output may be the input.
template <typename T, typename Out>
__global__ void log1p_flat(const T* data, int64 n, double log_base, Out* out) {
  for (int64 at = first_thread(); at < n; at += all_threads()) {
    const double y = log1p_of(double(data[at]));
    out[at] = Out(log_base == 1.0 ? y : __ddiv_rn(y, log_base));
  }
}
