// Shares of cells in the clusters of Harmony, and their sums over batches.

// Softmax of rows [n, n_clusters] and the penalties [blocks, n_batches, n_clusters] of their block
// and batches, in place, one warp per row; the logarithm of what a row is divided by.
__global__ void soft_clusters(
  float* logits, const float* penalties, const uint16* blocks, const uint16* codes,
  const int64* levels, int64 n, int64 n_clusters, int64 n_batches, int64 n_columns, double* logs
) {
  for (int64 i = first_warp(); i < n; i += all_warps()) {
    float* row = logits + i * n_clusters;
    const float* of_block = penalties + int64(blocks[i]) * n_batches * n_clusters;
    float top = -3.4e38f;
    for (int64 k = lane(); k < n_clusters; k += 32) {
      float value = row[k];
      for (int64 column = 0; column < n_columns; ++column) {
        value += of_block[levels[codes[i] * n_columns + column] * n_clusters + k];
      }
      row[k] = value;
      top = fmaxf(top, value);
    }
    for (int step = 16; step; step >>= 1) top = fmaxf(top, __shfl_xor_sync(FULL, top, step));
    float total = 0.0f;
    for (int64 k = lane(); k < n_clusters; k += 32) total += row[k] = expf(row[k] - top);
    total = warp_sum(total);
    const float factor = 1.0f / total;
    for (int64 k = lane(); k < n_clusters; k += 32) row[k] *= factor;
    if (lane() == 0) logs[i] = double(top) + log(double(total));
  }
}

// Scale each row [n, width] to length 1, in place; rows of zeros stay.
__global__ void unit_rows(float* x, int64 n, int64 width) {
  for (int64 i = first_warp(); i < n; i += all_warps()) {
    float* row = x + i * width;
    double square = 0.0;
    for (int64 j = lane(); j < width; j += 32) square += double(row[j]) * double(row[j]);
    square = warp_sum(square);
    if (square == 0.0) continue;
    const double length = sqrt(square);
    for (int64 j = lane(); j < width; j += 32) row[j] = float(double(row[j]) / length);
  }
}

// Add rows, rounded to a grid, to sums [blocks, n_batches, n_clusters] of their block and batches:
// exact, so that atomics may come in any order. A block of threads has CELLS neighbouring rows, of
// which most have the same block and batches, and a thread some clusters.
constexpr int64 CELLS = 256;

__global__ void add_shares(
  const float* shares, const uint16* codes, const int64* levels, const uint16* blocks, int64 n,
  int64 n_clusters, int64 n_batches, int64 n_columns, double grid, double* sums
) {
  const int64 first = blockIdx.x * CELLS, stop = min(first + CELLS, n);
  for (int64 k = threadIdx.x; k < n_clusters; k += blockDim.x) {
    for (int64 column = 0; column < n_columns; ++column) {
      int64 at = -1;
      double total = 0.0;
      for (int64 i = first; i < stop; ++i) {
        const int64 level = levels[codes[i] * n_columns + column];
        const int64 to = (blocks[i] * n_batches + level) * n_clusters + k;
        if (to != at) {
          if (at >= 0) atomicAdd(sums + at, total);
          at = to;
          total = 0.0;
        }
        total += __dsub_rn(__dadd_rn(double(shares[i * n_clusters + k]), grid), grid);
      }
      atomicAdd(sums + at, total);
    }
  }
}
