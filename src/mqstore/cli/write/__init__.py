"""Commands that write into a store: put, load, reset of group offsets."""
