"""Repair of a RabbitMQ store in place: what a node would crash on or pass over, as steps."""
