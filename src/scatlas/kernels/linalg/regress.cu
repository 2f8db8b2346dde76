// Residuals of a fit: x - (base[group] + weights . slopes); one warp per row. Each product and sum
// is rounded as on the CPU: fused multiply-adds would give other bits.
//
// base [groups, genes]; weights [rows, n_weights]; slopes [n_weights, genes].

struct Fit {
  const double *base, *weights, *slopes;
  int64 n_weights, n_genes;
  // `base` and `weights` of a row.
  __device__ double at(int64 gene) const {
    double sum = load(base + gene);
    for (int64 k = 0; k < n_weights; ++k) {
      sum = __dadd_rn(sum, __dmul_rn(load(weights + k), load(slopes + k * n_genes + gene)));
    }
    return sum;
  }
};

template <typename T, typename I, typename Out>
__global__ void residuals_csr(const T* __restrict__ data, const I* __restrict__ indices,
                              const int64* __restrict__ indptr, int64 n_rows, int64 n_genes,
                              const int64* __restrict__ codes, const double* __restrict__ base,
                              const double* __restrict__ weights,
                              const double* __restrict__ slopes, int64 n_weights, Out* out) {
  for (int64 row = first_warp(); row < n_rows; row += all_warps()) {
    const Fit fit{base + codes[row] * n_genes, weights + row * n_weights, slopes, n_weights,
                  n_genes};
    Out* to = out + row * n_genes;
    for (int64 gene = lane(); gene < n_genes; gene += 32) to[gene] = Out(0.0 - fit.at(gene));
    __syncwarp();  // what zeros become lies there before the values come
    const int64 stop = indptr[row + 1];
    for (int64 at = indptr[row] + lane(); at < stop; at += 32) {
      const int64 gene = int64(indices[at]);
      to[gene] = Out(__dsub_rn(double(data[at]), fit.at(gene)));
    }
  }
}

template <typename T, typename Out>
__global__ void residuals_dense(const T* __restrict__ x, int64 row_step, int64 gene_step,
                                int64 n_rows, int64 n_genes, const int64* __restrict__ codes,
                                const double* __restrict__ base,
                                const double* __restrict__ weights,
                                const double* __restrict__ slopes, int64 n_weights,
                                Out* __restrict__ out) {
  for (int64 row = first_warp(); row < n_rows; row += all_warps()) {
    const Fit fit{base + codes[row] * n_genes, weights + row * n_weights, slopes, n_weights,
                  n_genes};
    for (int64 gene = lane(); gene < n_genes; gene += 32) {
      const double v = double(x[row * row_step + gene * gene_step]);
      out[row * n_genes + gene] = Out(__dsub_rn(v, fit.at(gene)));
    }
  }
}
