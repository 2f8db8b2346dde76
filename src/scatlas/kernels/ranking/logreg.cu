// Loss and gradient of multinomial logistic regression; one warp per row.
//
// The lanes of a warp process up to 32 columns (classes) of the coefficients, or fewer columns and
// several values at a time, which are summed by shuffles in a fixed order.

// Largest absolute value of each gene, as the bits of a double, over rows with a class.
template <class Rows>
__device__ void max_abs(const Rows rows, int64 n_rows, const int* codes, uint64* out) {
  for (int64 row = first_warp(); row < n_rows; row += all_warps()) {
    if (codes[row] < 0) continue;
    const int64 stop = rows.stop(row);
    for (int64 at = rows.start(row) + lane(); at < stop; at += 32) {
      const double size = fabs(double(rows.value(row, at)));
      // The bits of NaN are above those of infinity.
      if (size != 0.0) atomicMax(out + rows.gene(at), uint64(__double_as_longlong(size)));
    }
  }
}

template <class V, class I> __global__ void max_abs_csr(
  const V* data, const I* indices, const int64* indptr, int64 n_rows, const int* codes, uint64* out
) {
  const Sparse<V, I> rows{data, indices, indptr};
  max_abs(rows, n_rows, codes, out);
}

template <class V> __global__ void max_abs_dense(
  const V* x, int64 row_step, int64 gene_step, int64 n_genes, int64 n_rows, const int* codes,
  uint64* out
) {
  const Dense<V> rows{x, row_step, gene_step, n_genes};
  max_abs(rows, n_rows, codes, out);
}

// Replaces scores by the weighted residuals of a cell; returns its weighted loss.
__device__ inline double residuals(double* raw, int n_columns, int code, double weight) {
  if (n_columns == 1) {
    const double z = raw[0], small = exp(-fabs(z)), likely = 1.0 / (1.0 + small);
    const double loss = log1p(small) + fmax(z, 0.0) - (code == 1 ? z : 0.0);
    __syncwarp();
    if (lane() == 0) raw[0] = ((z > 0.0 ? likely : small * likely) - (code == 1)) * weight;
    return loss * weight;
  }
  double highest = -INF, all = 0.0;
  for (int c = lane(); c < n_columns; c += 32) highest = fmax(highest, raw[c]);
  for (int step = 16; step; step >>= 1) {
    highest = fmax(highest, __shfl_xor_sync(FULL, highest, step));
  }
  const double of_class = raw[code];
  __syncwarp();
  for (int c = lane(); c < n_columns; c += 32) {
    raw[c] = exp(raw[c] - highest);
    all += raw[c];
  }
  all = warp_sum(all);
  for (int c = lane(); c < n_columns; c += 32) raw[c] = (raw[c] / all - (c == code)) * weight;
  return (log(all) + highest - of_class) * weight;
}

// Scores of one row, by all lanes of a warp, into `raw`.
template <class Rows>
__device__ void scores_of(
  const Rows& rows, int64 row, int64 n_genes, int n_columns, int width, const double* coef,
  double* raw
) {
  const int column = lane() % width, part = lane() / width, parts = 32 / width;
  const int64 start = rows.start(row), stop = rows.stop(row);
  for (int first = 0; first < n_columns; first += width) {
    const int c = first + column;
    double sum = 0.0;
    if (c < n_columns) {
      if (part == 0) sum = load(coef + n_genes * n_columns + c);
      for (int64 at = start + part; at < stop; at += parts) {
        const double v = double(rows.value(row, at));
        if (v != 0.0) sum += v * load(coef + rows.gene(at) * n_columns + c);
      }
    }
    for (int step = width; step < 32; step <<= 1) sum += __shfl_xor_sync(FULL, sum, step);
    if (c < n_columns && part == 0) raw[c] = sum;
  }
}

// coef and gradient [genes + 1, columns], the last row the intercepts; scales [genes + 1], powers
// of two; scratch [warps, columns]. The gradient is in fixed point and summed in any order. `width`
// is 32, or the power of two that is not below the number of columns.
template <class Rows>
__device__ void evaluate(
  const Rows rows, int64 n_rows, int64 n_genes, const int* codes, int n_columns, int width,
  const double* coef, const double* scales, const double* weights, double* scratch,
  uint64* gradient, double* losses
) {
  double* raw = scratch + first_warp() * n_columns;
  const int column = lane() % width, part = lane() / width, parts = 32 / width;
  for (int64 row = first_warp(); row < n_rows; row += all_warps()) {
    const int code = codes[row];
    if (code < 0) continue;
    const int64 start = rows.start(row), stop = rows.stop(row);
    scores_of(rows, row, n_genes, n_columns, width, coef, raw);
    __syncwarp();
    const double loss = residuals(raw, n_columns, code, weights[code]);
    if (lane() == 0) losses[row] = loss;
    __syncwarp();
    for (int c = column; c < n_columns; c += width) {
      const double residual = raw[c];
      for (int64 at = start + part; at < stop; at += parts) {
        const double v = double(rows.value(row, at));
        if (v == 0.0) continue;
        const int64 gene = rows.gene(at);
        const int64 whole = __double2ll_rn(residual * (v * load(scales + gene)));
        atomicAdd(gradient + gene * n_columns + c, uint64(whole));
      }
      if (part == 0) {
        const int64 whole = __double2ll_rn(residual * load(scales + n_genes));
        atomicAdd(gradient + n_genes * n_columns + c, uint64(whole));
      }
    }
    __syncwarp();  // before the next row's scores
  }
}

template <class V, class I> __global__ void evaluate_csr(
  const V* data, const I* indices, const int64* indptr, int64 n_rows, int64 n_genes,
  const int* codes, int n_columns, int width, const double* coef, const double* scales,
  const double* weights, double* scratch, uint64* gradient, double* losses
) {
  const Sparse<V, I> rows{data, indices, indptr};
  evaluate(
    rows, n_rows, n_genes, codes, n_columns, width, coef, scales, weights, scratch, gradient, losses
  );
}

template <class V> __global__ void evaluate_dense(
  const V* x, int64 row_step, int64 gene_step, int64 n_rows, int64 n_genes, const int* codes,
  int n_columns, int width, const double* coef, const double* scales, const double* weights,
  double* scratch, uint64* gradient, double* losses
) {
  const Dense<V> rows{x, row_step, gene_step, n_genes};
  evaluate(
    rows, n_rows, n_genes, codes, n_columns, width, coef, scales, weights, scratch, gradient, losses
  );
}

// scores [rows, columns], of coef [genes + 1, columns], the last row the intercepts.
template <class Rows>
__device__ void class_scores(
  const Rows rows, int64 n_rows, int64 n_genes, int n_columns, int width, const double* coef,
  double* scores
) {
  for (int64 row = first_warp(); row < n_rows; row += all_warps()) {
    scores_of(rows, row, n_genes, n_columns, width, coef, scores + row * n_columns);
  }
}

template <class V, class I> __global__ void class_scores_csr(
  const V* data, const I* indices, const int64* indptr, int64 n_rows, int64 n_genes, int n_columns,
  int width, const double* coef, double* scores
) {
  const Sparse<V, I> rows{data, indices, indptr};
  class_scores(rows, n_rows, n_genes, n_columns, width, coef, scores);
}

template <class V> __global__ void class_scores_dense(
  const V* x, int64 row_step, int64 gene_step, int64 n_rows, int64 n_genes, int n_columns,
  int width, const double* coef, double* scores
) {
  const Dense<V> rows{x, row_step, gene_step, n_genes};
  class_scores(rows, n_rows, n_genes, n_columns, width, coef, scores);
}
