"""Commands that serve a store: the broker and the web console."""
