// Cells beside their nearest cells of a reference: the operations of projection_cpu, a thread per
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
