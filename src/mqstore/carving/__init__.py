"""Carving: whole messages of both brokers out of nameless files, pieces and disk images, split by split."""
