"""Recovery of all intact messages from a damaged store, into a file, a new store, or a broker over AMQP."""
