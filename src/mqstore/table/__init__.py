"""The message table: its columns, Arrow types and text forms, and the files it is written to."""
