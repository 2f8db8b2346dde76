"""Where work runs: CPU or GPU, whose GPU and its memory, clusters, threads; progress."""
