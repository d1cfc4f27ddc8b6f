"""One stored message and its properties, in every form that brokers store."""
