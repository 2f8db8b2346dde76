// Sums, sums of squares and nonzero values per group of cells and gene, added in place.
//
// Null pointers: not requested. Arrays are [groups, genes].

// ---- Integers: 64-bit atomics in any order, one warp per row. Additions wrap as int64 does.

template <class Rows>
__device__ void add_whole(
  const Rows rows, const int* groups, int64 n_rows, int64 n_genes, uint64* sums, uint64* squares,
  uint64* nonzero
) {
  for (int64 row = first_warp(); row < n_rows; row += all_warps()) {
    if (groups[row] < 0) continue;
    const int64 first = groups[row] * n_genes, end = rows.stop(row);
    for (int64 at = rows.start(row) + lane(); at < end; at += 32) {
      const uint64 v = uint64(int64(rows.value(row, at)));
      if (v == 0) continue;
      const int64 to = first + rows.gene(at);
      if (sums) atomicAdd(sums + to, v);
      if (squares) atomicAdd(squares + to, v * v);
      if (nonzero) atomicAdd(nonzero + to, 1ull);
    }
  }
}

template <class V, class I> __global__ void add_whole_csr(
  const V* data, const I* indices, const int64* indptr, const int* groups, int64 n_rows,
  int64 n_genes, uint64* sums, uint64* squares, uint64* nonzero
) {
  const Sparse<V, I> rows{data, indices, indptr};
  add_whole(rows, groups, n_rows, n_genes, sums, squares, nonzero);
}

template <class V> __global__ void add_whole_dense(
  const V* x, int64 row_step, int64 gene_step, const int* groups, int64 n_rows, int64 n_genes,
  uint64* sums, uint64* squares, uint64* nonzero
) {
  const Dense<V> rows{x, row_step, gene_step, n_genes};
  add_whole(rows, groups, n_rows, n_genes, sums, squares, nonzero);
}

// ---- Floats: a block of threads per group adds the cells of the group in their order, with the
// ---- operations of group_sums_cpu: no atomics, and the same bits. The genes of a cell are
// ---- distinct, so that no two threads add to the same sum.

struct Pairs {
  double *sums, *errors, *squares, *square_errors;
  uint64* nonzero;
};

// Knuth's sum of the pairs high + low and value + error (pair_sum of pairs_cpu).
__device__ inline void add_to(double* high, double* low, double value, double error) {
  const double old = *high, sum = __dadd_rn(old, value), part = __dsub_rn(sum, old);
  const double lost = __dadd_rn(__dsub_rn(old, __dsub_rn(sum, part)), __dsub_rn(value, part));
  const double rest = __dadd_rn(*low, __dadd_rn(lost, error));
  const double total = __dadd_rn(sum, rest);
  const bool finite = fabs(total) < INF;
  *high = finite ? total : sum;
  *low = finite ? __dsub_rn(rest, __dsub_rn(total, sum)) : 0.0;
}

template <class Rows>
__device__ void add_real(
  const Rows rows, const int64* order, const int64* starts, const int64* groups, int64 n_groups,
  int64 n_genes, const Pairs& to
) {
  for (int64 group = blockIdx.x; group < n_groups; group += gridDim.x) {
    const int64 first = groups[group] * n_genes, last = starts[group + 1];
    for (int64 i = starts[group]; i < last; ++i) {
      const int64 row = order[i], end = rows.stop(row);
      for (int64 at = rows.start(row) + threadIdx.x; at < end; at += blockDim.x) {
        const double v = double(rows.value(row, at));
        if (v == 0.0) continue;
        const int64 gene = first + rows.gene(at);
        if (to.sums) add_to(to.sums + gene, to.errors + gene, v, 0.0);
        if (to.squares) {
          const double square = __dmul_rn(v, v);
          // Exact, as Dekker's; zero for float32, whose squares float64 holds.
          const double error = __fma_rn(v, v, -square);
          add_to(to.squares + gene, to.square_errors + gene, square, error);
        }
        if (to.nonzero) to.nonzero[gene] += 1;
      }
      __syncthreads();  // the next cell's threads see these sums
    }
  }
}

template <class V, class I> __global__ void add_real_csr(
  const V* data, const I* indices, const int64* indptr, const int64* order, const int64* starts,
  const int64* groups, int64 n_groups, int64 n_genes, double* sums, double* errors,
  double* squares, double* square_errors, uint64* nonzero
) {
  const Sparse<V, I> rows{data, indices, indptr};
  const Pairs to{sums, errors, squares, square_errors, nonzero};
  add_real(rows, order, starts, groups, n_groups, n_genes, to);
}

template <class V> __global__ void add_real_dense(
  const V* x, int64 row_step, int64 gene_step, const int64* order, const int64* starts,
  const int64* groups, int64 n_groups, int64 n_genes, double* sums, double* errors,
  double* squares, double* square_errors, uint64* nonzero
) {
  const Dense<V> rows{x, row_step, gene_step, n_genes};
  const Pairs to{sums, errors, squares, square_errors, nonzero};
  add_real(rows, order, starts, groups, n_groups, n_genes, to);
}
