"""The command line: the only place that prints and reads the environment. One module per group of commands."""
