// Centring, scaling, clipping: subtractions and divisions alone, nothing to fuse, the bits of a CPU.

__device__ double clip(double v, double low, double high) {
  return v > high ? high : v < low ? low : v;  // NaN passes
}

// `rows` may be null: all rows.
template <typename T, typename I, typename Out>
__global__ void scale_csr(const T* __restrict__ data, const I* __restrict__ indices,
                          const int64* __restrict__ indptr, int64 n_rows,
                          const double* __restrict__ sd, double low, double high,
                          const bool* __restrict__ rows, Out* __restrict__ out) {
  for (int64 row = first_warp(); row < n_rows; row += all_warps()) {
    const bool wanted = !rows || rows[row];
    const int64 stop = indptr[row + 1];
    for (int64 at = indptr[row] + lane(); at < stop; at += 32) {
      const double v = double(data[at]);
      out[at] = Out(wanted ? clip(v / sd[indices[at]], low, high) : v);
    }
  }
}

// `zeros`: what a zero of each gene becomes.
template <typename T, typename I, typename Out>
__global__ void scale_csr_to_dense(const T* __restrict__ data, const I* __restrict__ indices,
                                   const int64* __restrict__ indptr, int64 n_rows, int64 n_genes,
                                   const double* __restrict__ mean, const double* __restrict__ sd,
                                   double low, double high, const bool* __restrict__ rows,
                                   const Out* __restrict__ zeros, Out* out) {
  for (int64 row = first_warp(); row < n_rows; row += all_warps()) {
    const bool wanted = !rows || rows[row];
    Out* to = out + row * n_genes;
    for (int64 gene = lane(); gene < n_genes; gene += 32) to[gene] = wanted ? zeros[gene] : Out(0);
    __syncwarp();  // the zeros lie there before the values come
    const int64 stop = indptr[row + 1];
    for (int64 at = indptr[row] + lane(); at < stop; at += 32) {
      const double v = double(data[at]);
      const int64 gene = int64(indices[at]);
      to[gene] = Out(wanted ? clip((v - mean[gene]) / sd[gene], low, high) : v);
    }
  }
}

// `mean` may be null: zeros.
template <typename T, typename Out>
__global__ void scale_dense(const T* __restrict__ x, int64 row_step, int64 gene_step, int64 n_rows,
                            int64 n_genes, const double* __restrict__ mean,
                            const double* __restrict__ sd, double low, double high,
                            const bool* __restrict__ rows, Out* __restrict__ out) {
  for (int64 row = first_warp(); row < n_rows; row += all_warps()) {
    const bool wanted = !rows || rows[row];
    for (int64 gene = lane(); gene < n_genes; gene += 32) {
      const double v = double(x[row * row_step + gene * gene_step]);
      const double centre = mean ? mean[gene] : 0.0;
      out[row * n_genes + gene] = Out(wanted ? clip((v - centre) / sd[gene], low, high) : v);
    }
  }
}

template <typename T, typename I>
__global__ void shift(const T* __restrict__ data, const I* __restrict__ indices, int64 n,
                      const double* __restrict__ mean, const double* __restrict__ sd,
                      const double* __restrict__ zeros, double low, double high,
                      float* __restrict__ out) {
  for (int64 at = first_thread(); at < n; at += all_threads()) {
    const int64 gene = int64(indices[at]);
    const double v = clip((double(data[at]) - mean[gene]) / sd[gene], low, high);
    out[at] = float(v - zeros[gene]);
  }
}
