"""One module for each kind of file of a classic queue."""
