// Fuzzy graph of UMAP: weights of the neighbours, and their union with the reversed edges. Rows are
// sorted at the end, so that no bit depends on the order of atomics, which only count and place.

constexpr int MAX_STEPS = 64;
constexpr double TOLERANCE = 1e-5, MIN_SIGMA = 1e-3;

// As umap_cpu._memberships, a thread per cell.
template <typename D>
__global__ void memberships(
    const D* __restrict__ distances, int64 n, int k, bool is_self_first, float* __restrict__ out) {
  for (int64 row = first_thread(); row < n; row += all_threads()) {
    const D* d = distances + row * k;
    const double target = log2(double(k)), unbounded = 3.4028234663852886e38;
    float rho = 0.0f, total_distance = 0.0f;
    if (is_self_first)
      for (int j = 0; j < k && rho == 0.0f; ++j) rho = fmaxf(float(load(d + j)), 0.0f);
    double low = 0.0, high = unbounded, middle = 1.0;
    for (int step = 0; step < MAX_STEPS; ++step) {
      double total = 0.0;
      for (int j = 1; j < k; ++j) {
        const float beyond = float(load(d + j)) - rho;
        total += beyond > 0.0f ? exp(-(double(beyond) / middle)) : 1.0;
      }
      if (fabs(total - target) < TOLERANCE) break;
      if (total > target) {
        high = middle;
        middle = (low + high) / 2.0;
      } else {
        low = middle;
        middle = high >= unbounded ? middle * 2.0 : (low + high) / 2.0;
      }
    }
    for (int j = 0; j < k; ++j) total_distance += float(load(d + j));
    const float sigma = float(fmax(middle, MIN_SIGMA * (double(total_distance) / k)));
    for (int j = 0; j < k; ++j) {
      const float beyond = float(load(d + j)) - rho;
      const float weight = beyond <= 0.0f ? 1.0f : expf(-__fdiv_rn(beyond, sigma));
      out[row * k + j] = is_self_first && j == 0 ? 0.0f : weight;
    }
  }
}

// Weight of the edge from a cell to another, 0 if there is none.
__device__ inline float weight_of(
    const int* neighbours, const float* weights, int k, int64 from, int64 to) {
  for (int j = 1; j < k; ++j)
    if (load(neighbours + from * k + j) == to) return load(weights + from * k + j);
  return 0.0f;
}

// Edges per cell: its own, and those of others that it does not have itself.
__global__ void count_edges(
    const int* __restrict__ neighbours, const float* __restrict__ weights, int64 n, int k,
    int* __restrict__ n_own, int* n_foreign) {
  for (int64 i = first_thread(); i < n; i += all_threads()) {
    int own = 0;
    for (int j = 1; j < k; ++j) {
      if (load(weights + i * k + j) == 0.0f) continue;
      ++own;
      const int other = load(neighbours + i * k + j);
      if (weight_of(neighbours, weights, k, other, i) == 0.0f) atomicAdd(n_foreign + other, 1);
    }
    n_own[i] = own;
  }
}

// Edges of each row from indptr[row], own ones first; n_foreign is counted down to 0.
__global__ void fill_edges(
    const int* __restrict__ neighbours, const float* __restrict__ weights, int64 n, int k,
    const int64* __restrict__ indptr, int* n_foreign, int* __restrict__ indices,
    float* __restrict__ values) {
  for (int64 i = first_thread(); i < n; i += all_threads()) {
    int64 at = indptr[i];
    for (int j = 1; j < k; ++j) {
      const float there = load(weights + i * k + j);
      if (there == 0.0f) continue;
      const int other = load(neighbours + i * k + j);
      const float back = weight_of(neighbours, weights, k, other, i);
      indices[at] = other;
      values[at] = __fsub_rn(__fadd_rn(there, back), __fmul_rn(there, back));
      ++at;
      if (back == 0.0f) {
        const int64 place = indptr[other + 1] - atomicSub(n_foreign + other, 1);
        indices[place] = int(i);
        values[place] = there;
      }
    }
  }
}

// Sort rows of up to `LONGEST` edges by cell, a warp per row, by counting smaller ones.
constexpr int LONGEST = 512;

__global__ void sort_rows(
    const int64* __restrict__ indptr, int64 n, int* indices, float* values) {
  extern __shared__ int shared[];
  int* cells = shared + (threadIdx.x >> 5) * 2 * LONGEST;
  float* kept = reinterpret_cast<float*>(cells + LONGEST);
  for (int64 row = first_warp(); row < n; row += all_warps()) {
    const int64 start = indptr[row];
    const int size = int(min(indptr[row + 1] - start, int64(LONGEST + 1)));
    if (size > LONGEST) continue;
    for (int i = lane(); i < size; i += 32) {
      cells[i] = indices[start + i];
      kept[i] = values[start + i];
    }
    __syncwarp();
    for (int i = lane(); i < size; i += 32) {
      int rank = 0;
      for (int other = 0; other < size; ++other) rank += cells[other] < cells[i];
      indices[start + rank] = cells[i];
      values[start + rank] = kept[i];
    }
    __syncwarp();
  }
}

// Cells beside their nearest cells of a reference: the operations of umap_cpu, a thread per
// cell.

template <typename I>
__global__ void average(
    const float* __restrict__ reference, int n_components, const I* __restrict__ neighbours,
    const float* __restrict__ weights, int64 n, int k, float* __restrict__ out) {
  for (int64 i = first_thread(); i < n; i += all_threads()) {
    const I* near = neighbours + i * k;
    const float* weight = weights + i * k;
    double total = 0.0;
    int equal = k;
    for (int j = k - 1; j >= 0; --j)
      if (weight[j] == 1.0f) equal = j;
    for (int j = 0; j < k; ++j) total += double(weight[j]);
    for (int axis = 0; axis < n_components; ++axis) {
      double mean = 0.0;
      for (int j = 0; j < k; ++j)
        mean += double(weight[j]) / total * double(reference[int64(near[j]) * n_components + axis]);
      out[i * n_components + axis] =
          equal < k ? reference[int64(near[equal]) * n_components + axis] : float(mean);
    }
  }
}

template <typename I>
__global__ void vote(
    const int64* __restrict__ codes, const I* __restrict__ neighbours,
    const float* __restrict__ weights, int64 n, int k, int64* __restrict__ winners,
    double* __restrict__ shares) {
  for (int64 i = first_thread(); i < n; i += all_threads()) {
    const I* near = neighbours + i * k;
    const float* weight = weights + i * k;
    double total = 0.0, most = 0.0;
    int64 winner = -1;
    for (int j = 0; j < k; ++j) {
      total += double(weight[j]);
      const int64 code = load(codes + near[j]);
      double sum = 0.0;
      for (int other = 0; other < k; ++other)
        if (load(codes + near[other]) == code) sum += double(weight[other]);
      if (code >= 0 && sum > most) {
        winner = code;
        most = sum;
      }
    }
    winners[i] = winner;
    shares[i] = most / total;
  }
}

template <typename I>
__global__ void relative_distance(
    const double* __restrict__ distances, const I* __restrict__ neighbours,
    const double* __restrict__ usual, int64 n, int k, double* __restrict__ out) {
  for (int64 i = first_thread(); i < n; i += all_threads()) {
    double own = 0.0, theirs = 0.0;
    for (int j = 0; j < k; ++j) {
      own += distances[i * k + j];
      theirs += load(usual + neighbours[i * k + j]);
    }
    out[i] = own > 0.0 ? own / theirs : 1.0;
  }
}
