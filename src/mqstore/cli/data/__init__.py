"""Stores that ship with the package: `killed-broker.tar.xz`, told about in `mqstore.cli.demo`."""
