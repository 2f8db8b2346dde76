// Exact scores of pairs of cells, each summed by one thread in the order of the dimensions: no bit
// depends on the other pairs.

// Cell rows[i] with cell columns[i * n_columns + j], or with cell j where there are no columns.
template <typename T, typename Term>
__device__ void each_pair(
    const T* x, int64 n_dims, const int64* rows, int64 n_rows, const int64* columns,
    int64 n_columns, double* out, Term term) {
  for (int64 at = first_thread(); at < n_rows * n_columns; at += all_threads()) {
    const T* a = x + load(rows + at / n_columns) * n_dims;
    const T* b = x + (columns ? load(columns + at) : at % n_columns) * n_dims;
    double sum = 0.0;
    for (int64 i = 0; i < n_dims; ++i) sum = term(double(load(a + i)), double(load(b + i)), sum);
    out[at] = sum;
  }
}

struct Squares {
  __device__ double operator()(double a, double b, double sum) const {
    return fma(a - b, a - b, sum);
  }
};

struct Products {
  __device__ double operator()(double a, double b, double sum) const { return fma(a, b, sum); }
};

template <typename T>
__global__ void squared_distances(
    const T* __restrict__ x, int64 n_dims, const int64* __restrict__ rows, int64 n_rows,
    const int64* __restrict__ columns, int64 n_columns, double* __restrict__ out) {
  each_pair(x, n_dims, rows, n_rows, columns, n_columns, out, Squares());
}

template <typename T>
__global__ void products(
    const T* __restrict__ x, int64 n_dims, const int64* __restrict__ rows, int64 n_rows,
    const int64* __restrict__ columns, int64 n_columns, double* __restrict__ out) {
  each_pair(x, n_dims, rows, n_rows, columns, n_columns, out, Products());
}
