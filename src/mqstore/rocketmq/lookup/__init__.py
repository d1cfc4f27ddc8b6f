"""Many keys at once, the records that a selection needs, and why an answer is incomplete."""
