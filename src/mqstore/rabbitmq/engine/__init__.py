"""The writable queues of a virtual host, `QueueStore`."""
