"""An opened store and its two views, as it lies on disk and as a broker would recover it."""
