"""The broker's own load of a store directory, carried out in memory."""
