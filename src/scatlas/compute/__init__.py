"""Where work runs: threads, progress."""
