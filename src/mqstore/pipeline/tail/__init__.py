"""A second store or a table kept up to date with a log that grows."""
