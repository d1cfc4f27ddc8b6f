"""The broker's JSON and properties files, read and written, and the tables they hold."""
