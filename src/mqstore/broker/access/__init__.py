"""Access control: accounts with keys, signed requests, permissions on topics and groups, and white-listed addresses."""
