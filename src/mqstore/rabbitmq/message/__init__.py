"""One stored message and its properties, in every form that a broker has stored it."""
