"""Follow a growing log: keep files, a table or a second store up to date with it."""
