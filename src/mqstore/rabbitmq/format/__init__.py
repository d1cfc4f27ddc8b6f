"""The files of classic queues, one module for each kind."""
