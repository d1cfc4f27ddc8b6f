"""An opened store and its two views, as it is on disk and as a broker would recover it."""
