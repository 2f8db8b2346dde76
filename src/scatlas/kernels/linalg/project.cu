// Projection of CSR rows. A row and PANEL components are processed by eight lanes, two components
// per lane: the loadings of a gene are one cache line of 128 bytes. blockIdx.y is the panel. Blocks
// start in the order of panels, so that running blocks share a panel, most of which stays in L1.

constexpr int PANEL = 16;

template <typename T, typename I, typename O>
__global__ void project(const T* __restrict__ data, const I* __restrict__ indices,
                        const int64* __restrict__ indptr, int64 n_rows, int64 n_genes, int n_comps,
                        const double2* __restrict__ panels, const double* __restrict__ offset,
                        O* __restrict__ out) {
    const int mine = threadIdx.x & 7;
    const double2* loadings = panels + blockIdx.y * n_genes * (PANEL / 2) + mine;
    const int component = blockIdx.y * PANEL + 2 * mine;
    for (int64 first = first_warp() * 4; first < n_rows; first += all_warps() * 4) {
        const int64 row = first + lane() / 8;
        int64 at = 0, stop = 0;
        if (row < n_rows) {
            at = indptr[row];
            stop = indptr[row + 1];
        }
        double a = 0.0, b = 0.0;
        // Rounded products are added in order: the bits are the CPU's.
        for (; __any_sync(FULL, at < stop); at += 8) {
            int gene = 0;
            T value = T(0);
            if (at + mine < stop) {
                gene = int(indices[at + mine]);
                value = data[at + mine];
            }
            double factor[8];
            double2 of_gene[8];
#pragma unroll
            for (int k = 0; k < 8; k++) {
                const int other = __shfl_sync(FULL, gene, k, 8);
                factor[k] = of_lane(value, k, 8);
                of_gene[k] = double2{0.0, 0.0};
                if (at + k < stop) of_gene[k] = loadings[int64(other) * (PANEL / 2)];
            }
#pragma unroll
            for (int k = 0; k < 8; k++) {
                a = __dadd_rn(a, __dmul_rn(factor[k], of_gene[k].x));
                b = __dadd_rn(b, __dmul_rn(factor[k], of_gene[k].y));
            }
        }
        if (row < n_rows && component < n_comps)
            out[row * n_comps + component] = O(__dsub_rn(a, offset[component]));
        if (row < n_rows && component + 1 < n_comps)
            out[row * n_comps + component + 1] = O(__dsub_rn(b, offset[component + 1]));
    }
}
