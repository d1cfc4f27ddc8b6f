"""Quorum queues: the Raft log of each member on disk, and the machine that makes a queue of it."""
