"""Commands that process a whole store: rebuild, export, follow, salvage."""
