"""What an array is, where it lies and how it gets to the GPU and back; no arithmetic."""
