"""Kernels for the files of RocketMQ."""
