"""The RabbitMQ side of the commands."""
