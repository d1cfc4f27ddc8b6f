"""`QueueStore`: the classic queues of a virtual host, open for writing."""
