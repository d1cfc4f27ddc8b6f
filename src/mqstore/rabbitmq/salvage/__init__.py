"""Every intact message out of a damaged store: into a file, a new store, or a broker over AMQP."""
