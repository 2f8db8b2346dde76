// A step of a Chebyshev filter on a graph, eight lanes per cell, a lane per vector: the operations
// of diffusion_cpu in their order and each rounded, so that the bits are the CPU's.

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
