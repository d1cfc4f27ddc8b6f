"""The files of a store while they are written: log, queues, index, lock, load and retention."""
