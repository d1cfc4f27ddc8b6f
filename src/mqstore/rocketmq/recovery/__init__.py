"""A broker's load of a store directory, simulated in memory."""
