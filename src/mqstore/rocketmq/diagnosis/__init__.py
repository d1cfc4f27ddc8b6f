"""What a broker would make of a store: whether it starts, what it cuts, what is lost and what is delivered again."""
