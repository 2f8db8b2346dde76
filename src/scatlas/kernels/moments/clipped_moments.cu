// Values above the bound of their gene and group; one warp per row.
//
// bounds [groups, genes]; groups [rows], negative for rows that are left out. Values are compared
// as float64, which no value is above if it is NaN.

template <class Rows>
__device__ inline bool is_above(const Rows rows, int64 row, int64 at, const double* bounds) {
  return double(rows.value(row, at)) > load(bounds + rows.gene(at));
}

// Number of values above the bound per row, into counts[1:].
template <class Rows>
__device__ void count_rows(
  const Rows rows, int64 n_rows, int64 n_genes, const int* groups, const double* bounds,
  int64* counts
) {
  for (int64 row = first_warp(); row < n_rows; row += all_warps()) {
    const int group = groups[row];
    if (group < 0) continue;
    const double* of_group = bounds + group * n_genes;
    const int64 stop = rows.stop(row);
    int n = 0;
#pragma unroll 4
    for (int64 at = rows.start(row) + lane(); at < stop; at += 32) {
      n += is_above(rows, row, at, of_group);
    }
    n = warp_sum(n);
    if (lane() == 0) counts[row + 1] = n;
  }
}

// Copies the values above the bound in the order of the row.
template <class Rows, class V>
__device__ void take_rows(
  const Rows rows, int64 n_rows, int64 n_genes, const int* groups, const double* bounds,
  const int64* indptr, V* data, int* indices
) {
  for (int64 row = first_warp(); row < n_rows; row += all_warps()) {
    int64 to = indptr[row];
    if (to == indptr[row + 1]) continue;
    const double* of_group = bounds + groups[row] * n_genes;
    const int64 stop = rows.stop(row);
    for (int64 start = rows.start(row); start < stop; start += 32) {
      const int64 at = start + lane();
      const bool above = at < stop && is_above(rows, row, at, of_group);
      const unsigned all = __ballot_sync(FULL, above);
      if (above) {
        const int64 mine = to + __popc(all & ((1u << lane()) - 1));
        data[mine] = rows.value(row, at);
        indices[mine] = int(rows.gene(at));
      }
      to += __popc(all);
    }
  }
}

template <class V, class I> __global__ void count_above_csr(
  const V* data, const I* indices, const int64* indptr, int64 n_rows, int64 n_genes,
  const int* groups, const double* bounds, int64* counts
) {
  const Sparse<V, I> rows{data, indices, indptr};
  count_rows(rows, n_rows, n_genes, groups, bounds, counts);
}

template <class V> __global__ void count_above_dense(
  const V* x, int64 row_step, int64 gene_step, int64 n_rows, int64 n_genes, const int* groups,
  const double* bounds, int64* counts
) {
  const Dense<V> rows{x, row_step, gene_step, n_genes};
  count_rows(rows, n_rows, n_genes, groups, bounds, counts);
}

template <class V, class I> __global__ void take_above_csr(
  const V* data, const I* indices, const int64* indptr, int64 n_rows, int64 n_genes,
  const int* groups, const double* bounds, const int64* out_indptr, V* out, int* out_indices
) {
  const Sparse<V, I> rows{data, indices, indptr};
  take_rows(rows, n_rows, n_genes, groups, bounds, out_indptr, out, out_indices);
}

template <class V> __global__ void take_above_dense(
  const V* x, int64 row_step, int64 gene_step, int64 n_rows, int64 n_genes, const int* groups,
  const double* bounds, const int64* out_indptr, V* out, int* out_indices
) {
  const Dense<V> rows{x, row_step, gene_step, n_genes};
  take_rows(rows, n_rows, n_genes, groups, bounds, out_indptr, out, out_indices);
}
