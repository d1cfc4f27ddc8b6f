"""RabbitMQ classic queues: `mqstore.open` reads a directory of message stores."""
