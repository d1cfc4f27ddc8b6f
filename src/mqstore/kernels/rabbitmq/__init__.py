"""Kernels for the files of RabbitMQ classic queues."""
