// Draws counts like bench/make_plates.py: a cell has clusters, each with a gene and a size.

// Uniform in (0, 1) from a seed and two counters (the finaliser of SplitMix64, Steele et al. 2014).
__device__ double uniform(unsigned long long seed, unsigned long long i, int which)
{
    unsigned long long z = seed * 0xd1342543de82ef95ull + (4 * i + which + 1) * 0x9e3779b97f4a7c15ull;
    for (int round = 0; round < 2; ++round) {
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
        z ^= z >> 31;
    }
    return ((z >> 11) + 0.5) * 0x1p-53;
}

// First index of the ascending `table` [n] with a value above `u`.
template <class T> __device__ long long above(const T* table, long long n, T u)
{
    long long low = 0, high = n;
    while (low < high) {
        const long long middle = (low + high) / 2;
        if (table[middle] > u)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

// Kemp's LK (1981) for the logarithmic distribution, cut at 255.
__device__ int log_series(double log1m, double u, double v)
{
    if (v >= -expm1(log1m))
        return 1;
    const double q = -expm1(log1m * u);
    if (v <= q * q)
        return int(fmin(255.0, 1.0 + log(v) / log(q)));
    return v <= q ? 2 : 1;
}

// key[i] = (cell * n_genes + gene) * 256 + size of the i-th cluster.
extern "C" __global__ void draw(
    const long long* ends,    // [n_cells] number of clusters up to each cell
    const int* line,          // [n_cells]
    const double* cumulated,  // [n_lines, n_genes] cumulative probabilities of the genes
    const double* log1m,      // [n_genes]
    long long n_cells, long long n_genes, unsigned long long seed, unsigned long long first,
    long long n, long long* key)
{
    const long long step = (long long)gridDim.x * blockDim.x;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) {
        const long long cell = above(ends, n_cells, i);
        const double* genes = cumulated + line[cell] * n_genes;
        const unsigned long long at = first + i;
        const long long gene = min(above(genes, n_genes, uniform(seed, at, 0)), n_genes - 1);
        const int size = log_series(log1m[gene], uniform(seed, at, 1), uniform(seed, at, 2));
        key[i] = (cell * n_genes + gene) * 256 + size;
    }
}
