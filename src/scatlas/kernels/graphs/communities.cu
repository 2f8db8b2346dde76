// Moves of nodes between communities, a warp per node: the operations of communities_cpu. Sums are
// integers, so that no bit depends on their order.

constexpr uint64 STEP = 0x9E3779B97F4A7C15ull;

__device__ inline uint64 hash(uint64 x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

__device__ inline bool may_move(int64 node, uint64 share, uint64 round) {
  return hash(round + uint64(node) * STEP) % share == 0;
}

__global__ void propose(
    const int64* __restrict__ indptr, const int64* __restrict__ indices,
    const int64* __restrict__ weights, const int64* __restrict__ degrees,
    const int64* __restrict__ labels, const int64* __restrict__ totals,
    const int64* __restrict__ sizes, const int64* __restrict__ within, int64* __restrict__ out,
    int64 n, double penalty, bool only_single, uint64 share, uint64 round) {
  for (int64 i = first_warp(); i < n; i += all_warps()) {
    const int64 mine = labels[i], start = indptr[i], stop = indptr[i + 1];
    if ((only_single && sizes[mine] > 1) || !may_move(i, share, round)) {
      if (lane() == 0) out[i] = mine;
      continue;
    }
    // The community that an edge counts for, or -1.
    const auto label_of = [&](int64 edge) {
      if (edge >= stop) return int64(-1);
      const int64 other = load(indices + edge), label = load(labels + other);
      if (other == i || (only_single && load(within + other) != load(within + i))) return int64(-1);
      const bool is_alone = only_single && share > 1 && load(sizes + label) == 1;
      return label != mine && is_alone && may_move(other, share, round) ? int64(-1) : label;
    };
    const double factor = __dmul_rn(penalty, double(degrees[i]));
    int64 own = 0, best_label = -1;
    double best = -INF;
    for (int64 first = start; first < stop; first += 32) {
      const int64 label = label_of(first + lane());
      int64 sum = 0;
      for (int64 next = start; next < stop; next += 32) {
        const int64 other_label = next == first ? label : label_of(next + lane());
        const int64 weight = next + lane() < stop ? load(weights + next + lane()) : 0;
        for (int from = 0; from < 32; ++from) {
          const int64 its_label = __shfl_sync(FULL, other_label, from);
          const int64 its_weight = __shfl_sync(FULL, weight, from);
          sum += its_label == label ? its_weight : 0;
        }
      }
      const unsigned is_own = __ballot_sync(FULL, label == mine);
      if (is_own) own = __shfl_sync(FULL, sum, __ffs(is_own) - 1);
      if (label < 0 || label == mine) continue;
      const double gain = __dsub_rn(double(sum), __dmul_rn(factor, double(load(totals + label))));
      if (gain > best || (gain == best && label < best_label)) {
        best = gain;
        best_label = label;
      }
    }
    __syncwarp();
    for (int step = 16; step; step >>= 1) {
      const double gain = __shfl_xor_sync(FULL, best, step);
      const int64 label = __shfl_xor_sync(FULL, best_label, step);
      if (label >= 0 && (best_label < 0 || gain > best || (gain == best && label < best_label))) {
        best = gain;
        best_label = label;
      }
    }
    const double staying =
        __dsub_rn(double(own), __dmul_rn(factor, double(totals[mine] - degrees[i])));
    if (lane() == 0) out[i] = best_label >= 0 && best > staying ? best_label : mine;
  }
}

__device__ inline void add(int64* to, int64 value) {
  atomicAdd(reinterpret_cast<uint64*>(to), uint64(value));
}

__global__ void move(
    const int64* __restrict__ degrees, int64* __restrict__ labels, int64* totals, int64* sizes,
    const int64* __restrict__ proposed, int64 n) {
  for (int64 i = first_thread(); i < n; i += all_threads()) {
    const int64 from = labels[i], to = proposed[i];
    if (from == to) continue;
    add(totals + from, -degrees[i]);
    add(totals + to, degrees[i]);
    add(sizes + from, -1);
    add(sizes + to, 1);
    labels[i] = to;
  }
}
