"""Stores included in the package for `demo`; `mqstore.cli.demo` describes them."""
