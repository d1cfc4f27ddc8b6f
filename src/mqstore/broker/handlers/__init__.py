"""One module for each family of requests, and the registry that finds the handler of a request code."""
