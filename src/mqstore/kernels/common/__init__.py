"""What kernels share: loads and stores of integers, checksums, copies of spans."""
