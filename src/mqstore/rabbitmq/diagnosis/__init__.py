"""What a RabbitMQ node would make of a store: whether it starts, and which messages it deletes, drops or does not find."""
