// Selection of cells and genes of a block, optionally scaled by a factor per cell; one warp per
// row. Values that are only copied are passed as unsigned integers of their size.

// `rows` may be null: all rows.
__device__ int64 source_row(const int64* rows, int64 row) { return rows ? rows[row] : row; }

template <typename Out, typename T>
__device__ Out scaled(T v, const double* scales, int64 row) {
  return scales ? Out(double(v) * scales[row]) : Out(v);
}

// Number of selected values per row, into counts[1:]; whether a row is not sorted.
template <typename I>
__global__ void count_genes(const I* __restrict__ indices, const int64* __restrict__ indptr,
                            const int64* __restrict__ rows, int64 n_rows,
                            const int* __restrict__ place, int64* __restrict__ counts,
                            int* unsorted) {
  for (int64 row = first_warp(); row < n_rows; row += all_warps()) {
    const int64 from = source_row(rows, row);
    const int64 stop = indptr[from + 1];
    int n = 0;
    bool bad = false;
#pragma unroll 4
    for (int64 at = indptr[from] + lane(); at < stop; at += 32) {
      const I gene = indices[at];
      n += place[gene] >= 0;
      bad |= at + 1 < stop && indices[at + 1] < gene;
    }
    n = warp_sum(n);
    bad = __any_sync(FULL, bad);
    if (lane()) continue;
    counts[row + 1] = n;
    if (bad) *unsorted = 1;  // all write the same
  }
}

// Selected values in the order of the row: sorted if the row is sorted and new columns ascend.
template <typename T, typename I, typename Out, typename J>
__global__ void take_genes(const T* __restrict__ data, const I* __restrict__ indices,
                           const int64* __restrict__ indptr, const int64* __restrict__ rows,
                           int64 n_rows, const int* __restrict__ place,
                           const double* __restrict__ scales,
                           const int64* __restrict__ out_indptr, Out* __restrict__ out,
                           J* __restrict__ out_indices) {
  constexpr int AT_ONCE = 4;  // reads under way at once
  for (int64 row = first_warp(); row < n_rows; row += all_warps()) {
    const int64 from = source_row(rows, row);
    const int64 stop = indptr[from + 1];
    int64 to = out_indptr[row];
    for (int64 start = indptr[from]; start < stop; start += 32 * AT_ONCE) {
      int gene[AT_ONCE];
#pragma unroll
      for (int k = 0; k < AT_ONCE; ++k) {
        const int64 at = start + 32 * k + lane();
        gene[k] = at < stop ? place[indices[at]] : -1;
      }
#pragma unroll
      for (int k = 0; k < AT_ONCE; ++k) {
        const unsigned kept = __ballot_sync(FULL, gene[k] >= 0);
        if (gene[k] >= 0) {
          const int64 mine = to + __popc(kept & ((1u << lane()) - 1));
          out[mine] = scaled<Out>(data[start + 32 * k + lane()], scales, from);
          out_indices[mine] = J(gene[k]);
        }
        to += __popc(kept);
      }
    }
  }
}

// Keys that sort values by row, then gene.
template <typename J>
__global__ void sort_keys(const J* __restrict__ indices, const int64* __restrict__ indptr,
                          int64 n_rows, int64* __restrict__ keys) {
  const int64 first = indptr[0];
  for (int64 row = first_warp(); row < n_rows; row += all_warps()) {
    const int64 stop = indptr[row + 1];
    for (int64 at = indptr[row] + lane(); at < stop; at += 32) {
      keys[at - first] = row << 32 | int64(indices[at]);
    }
  }
}

template <typename T, typename I, typename J>
__global__ void take_rows(const T* __restrict__ data, const I* __restrict__ indices,
                          const int64* __restrict__ indptr, const int64* __restrict__ rows,
                          int64 n_rows, const int64* __restrict__ out_indptr, T* __restrict__ out,
                          J* __restrict__ out_indices) {
  for (int64 row = first_warp(); row < n_rows; row += all_warps()) {
    const int64 start = indptr[rows[row]], to = out_indptr[row];
    const int64 n = out_indptr[row + 1] - to;
#pragma unroll 4
    for (int64 k = lane(); k < n; k += 32) {
      out[to + k] = data[start + k];
      out_indices[to + k] = J(indices[start + k]);
    }
  }
}

// `genes` may be null: all genes.
template <typename T, typename Out>
__global__ void take_dense(const T* __restrict__ x, int64 row_step, int64 gene_step,
                           const int64* __restrict__ rows, int64 n_rows,
                           const int64* __restrict__ genes, int64 n_genes,
                           const double* __restrict__ scales, Out* __restrict__ out) {
  for (int64 row = first_warp(); row < n_rows; row += all_warps()) {
    const int64 from = source_row(rows, row);
    for (int64 k = lane(); k < n_genes; k += 32) {
      const int64 gene = genes ? genes[k] : k;
      out[row * n_genes + k] =
          scaled<Out>(x[from * row_step + gene * gene_step], scales, from);
    }
  }
}
