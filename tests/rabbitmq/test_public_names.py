"""The public face of the package: what a user imports, and nothing else."""

import mqstore.rabbitmq


def test_dir_lists_the_public_names_and_each_can_be_imported() -> None:
    assert dir(mqstore.rabbitmq) == sorted(mqstore.rabbitmq.__all__)
    assert [getattr(mqstore.rabbitmq, name).__name__ for name in dir(mqstore.rabbitmq)] == dir(mqstore.rabbitmq)
