// Analytic Pearson residuals with the operations of pearson_cpu, each rounded: the same numbers.

__device__ inline double residual(double value, double mu, double theta, double clip) {
  if (mu == 0.0) return 0.0;  // of an empty cell, or of a gene that none has
  const double variance = __dadd_rn(mu, __ddiv_rn(__dmul_rn(mu, mu), theta));
  const double found = __ddiv_rn(__dsub_rn(value, mu), __dsqrt_rn(variance));
  return found > clip ? clip : found < -clip ? -clip : found;
}

// Expected count of a gene in a cell.
__device__ inline double expected(double gene, double cell, double all) {
  return __ddiv_rn(__dmul_rn(gene, cell), all);
}

// Knuth's sum of the pairs high + low and value + error (pair_sum of pairs_cpu).
__device__ inline void add_to(double& high, double& low, double value, double error) {
  const double sum = __dadd_rn(high, value), part = __dsub_rn(sum, high);
  const double lost = __dadd_rn(__dsub_rn(high, __dsub_rn(sum, part)), __dsub_rn(value, part));
  const double rest = __dadd_rn(low, __dadd_rn(lost, error));
  high = __dadd_rn(sum, rest);
  low = __dsub_rn(rest, __dsub_rn(high, sum));
}

// Adds n * value with its rounding error.
__device__ inline void add_times(double& high, double& low, double n, double value) {
  const double product = __dmul_rn(n, value);
  add_to(high, low, product, __fma_rn(n, value, -product));
}

// One thread per gene loops over the totals of cells. A template, so that it is compiled only where
// it is used.
template <class T> __global__ void sums_of_zeros(
  const T* __restrict__ genes, int64 n_genes, double all, double clip, double theta,
  const double* __restrict__ totals, const double* __restrict__ n_cells, int64 n_totals, double* out
) {
  for (int64 gene = first_thread(); gene < n_genes; gene += all_threads()) {
    const double of_gene = double(genes[gene]);
    double sum = 0.0, sum_low = 0.0, squares = 0.0, squares_low = 0.0;
    for (int64 i = 0; i < n_totals; ++i) {
      const double zero = residual(0.0, expected(of_gene, load(totals + i), all), theta, clip);
      const double n = load(n_cells + i);
      add_times(sum, sum_low, n, zero);
      add_times(squares, squares_low, n, __dmul_rn(zero, zero));
    }
    double* of = out + 4 * gene;
    of[0] = sum;
    of[1] = sum_low;
    of[2] = squares;
    of[3] = squares_low;
  }
}

// Differences between the residual of each value and that of a zero in its place, and between their
// squares, with rounding errors: four consecutive arrays of n_values; one warp per row. genes
// [groups, genes]; groups [rows], negative for rows that are left out, whose values become zero.
template <class Rows>
__device__ void differences(
  const Rows rows, int64 n_rows, int64 n_genes, const int* groups, const double* totals,
  const double* genes, const double* all, const double* clips, double theta, int64 row_length,
  int64 n_values, double* terms
) {
  for (int64 row = first_warp(); row < n_rows; row += all_warps()) {
    const int group = groups[row];
    const int64 start = rows.start(row), stop = rows.stop(row), to = row * row_length;
    for (int64 at = start + lane(); at < stop; at += 32) {
      const double v = double(rows.value(row, at));
      double first = 0.0, first_low = 0.0, second = 0.0, second_low = 0.0;
      if (group >= 0 && v != 0.0) {
        const double gene = load(genes + group * n_genes + rows.gene(at));
        const double mu = expected(gene, totals[row], all[group]), clip = clips[group];
        const double found = residual(v, mu, theta, clip), zero = residual(0.0, mu, theta, clip);
        first = found;
        add_to(first, first_low, -zero, 0.0);
        second = __dmul_rn(found, found);
        add_to(second, second_low, -__dmul_rn(zero, zero), 0.0);
      }
      terms[to + at] = first;
      terms[n_values + to + at] = first_low;
      terms[2 * n_values + to + at] = second;
      terms[3 * n_values + to + at] = second_low;
    }
  }
}

template <class V, class I> __global__ void differences_csr(
  const V* data, const I* indices, const int64* indptr, int64 n_rows, int64 n_genes,
  const int* groups, const double* totals, const double* genes, const double* all,
  const double* clips, double theta, int64 n_values, double* terms
) {
  const Sparse<V, I> rows{data, indices, indptr};
  differences(rows, n_rows, n_genes, groups, totals, genes, all, clips, theta, 0, n_values,
              terms);
}

template <class V> __global__ void differences_dense(
  const V* x, int64 row_step, int64 gene_step, int64 n_rows, int64 n_genes, const int* groups,
  const double* totals, const double* genes, const double* all, const double* clips, double theta,
  int64 n_values, double* terms
) {
  const Dense<V> rows{x, row_step, gene_step, n_genes};
  differences(rows, n_rows, n_genes, groups, totals, genes, all, clips, theta, n_genes,
              n_values, terms);
}
