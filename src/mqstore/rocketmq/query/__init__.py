"""One answer as a broker gives it: by key, id, offset or time, or to a pull."""
