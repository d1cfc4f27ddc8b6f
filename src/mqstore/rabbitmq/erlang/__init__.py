"""Erlang's own formats: terms, term text, DETS tables and disk logs. Nothing here depends on RabbitMQ."""
