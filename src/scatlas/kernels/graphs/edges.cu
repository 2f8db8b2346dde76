// Connected parts of a graph, weights within groups and steps of Chebyshev filters: the results of
// edges_cpu.

// First node of the tree of a node, halving the path to it. Parents never have higher numbers than
// their children, and other threads only put nodes nearer to the root.
__device__ inline int64 root_of(volatile int64* parts, int64 node) {
  int64 before = node, at = parts[node], next;
  while (at != (next = parts[at])) {
    parts[before] = next;
    before = at;
    at = next;
  }
  return at;
}

// Union of the trees of all neighbours with the same label, a warp per node (Jaiganesh, Burtscher
// 2018, ECL-CC): the root with the higher number becomes a child of the other, in any order.
template <typename I, typename W, typename L>
__global__ void join_neighbours(
    const int64* __restrict__ indptr, const I* __restrict__ indices, const W* __restrict__ weights,
    const L* __restrict__ labels, int64 n, int64* parts) {
  for (int64 i = first_warp(); i < n; i += all_warps()) {
    const L label = load(labels + i);
    for (int64 edge = load(indptr + i) + lane(); edge < load(indptr + i + 1); edge += 32) {
      const int64 other = load(indices + edge);
      if (load(labels + other) != label || load(weights + edge) == W(0)) continue;
      int64 a = root_of(parts, i), b = root_of(parts, other);
      while (a != b) {
        const int64 high = a > b ? a : b, low = a > b ? b : a;
        const uint64 seen =
            atomicCAS(reinterpret_cast<uint64*>(parts + high), uint64(high), uint64(low));
        if (seen == uint64(high)) break;
        a = root_of(parts, int64(seen));
        b = low;
      }
    }
  }
}

// Without halving, which could write over what another thread has found.
__global__ void find_roots(volatile int64* parts, int64 n) {
  for (int64 i = first_thread(); i < n; i += all_threads()) {
    int64 root = i;
    while (parts[root] != root) root = parts[root];
    parts[i] = root;
  }
}

// Sum of the weights between nodes with the same label; whole numbers, so that no order matters.
__global__ void weigh_inside(
    const int64* __restrict__ indptr, const int64* __restrict__ indices,
    const int64* __restrict__ weights, const int64* __restrict__ labels, int64 n, uint64* total) {
  int64 sum = 0;
  for (int64 i = first_warp(); i < n; i += all_warps()) {
    const int64 label = load(labels + i);
    for (int64 edge = load(indptr + i) + lane(); edge < load(indptr + i + 1); edge += 32)
      if (load(labels + load(indices + edge)) == label) sum += load(weights + edge);
  }
  sum = warp_sum(sum);
  if (lane() == 0) atomicAdd(total, uint64(sum));
}

// A step of a Chebyshev filter on a graph, eight lanes per cell, a lane per vector: the operations
// of edges_cpu in their order and each rounded, so that the bits are the CPU's.

// Lanes per cell, and neighbours that a lane reads at once: the time goes into reading at random.
constexpr int WIDTH = 8, AT_ONCE = 4;

template <typename I, typename W>
__global__ void run_step(
    const double* __restrict__ vectors, const double* before, double* out, int64 n_blocks, int64 n,
    const int64* __restrict__ indptr, const I* __restrict__ indices, const W* __restrict__ weights,
    const double* __restrict__ degrees, double factor, double shift, double minus) {
  const int k = threadIdx.x % WIDTH;
  for (int64 item = first_thread() / WIDTH; item < n_blocks * n; item += all_threads() / WIDTH) {
    const int64 i = item % n, first = item - i, stop = load(indptr + i + 1);
    double total = 0.0, there[AT_ONCE];
    for (int64 edge = load(indptr + i); edge < stop; edge += AT_ONCE) {
#pragma unroll
      for (int at = 0; at < AT_ONCE; ++at) {
        const int64 other = edge + at < stop ? load(indices + edge + at) : i;
        there[at] = load(vectors + (first + other) * WIDTH + k);
      }
#pragma unroll
      for (int at = 0; at < AT_ONCE; ++at)
        if (edge + at < stop)
          total = __dadd_rn(total, __dmul_rn(double(load(weights + edge + at)), there[at]));
    }
    const int64 mine = item * WIDTH + k;
    const double mean = __ddiv_rn(total, load(degrees + i));
    const double own = __dmul_rn(shift, load(vectors + mine));
    const double step = __dmul_rn(factor, __dsub_rn(mean, own));
    out[mine] = __dsub_rn(step, __dmul_rn(minus, before[mine]));
  }
}

// The group of its node for each edge, a warp per node.
__global__ void spread(const int64* indptr, const int64* groups, int64 n, int64* out) {
  for (int64 i = first_warp(); i < n; i += all_warps()) {
    for (int64 edge = indptr[i] + lane(); edge < indptr[i + 1]; edge += 32) out[edge] = groups[i];
  }
}
