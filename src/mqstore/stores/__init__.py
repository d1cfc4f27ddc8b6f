"""The stores that `mqstore.open` returns, one class a family: readers with the verbs of `mqstore.store`."""
