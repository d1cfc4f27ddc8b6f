"""The writable store, `MessageStore`, and what commits rows into it."""
