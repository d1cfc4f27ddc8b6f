"""The configuration of a store as its broker would load it: from JSON files, or from RocksDB databases.

Of two tables, the one with the later data version counts, as at the start of a broker that changed from files to databases. Consumer
offsets in a database have no data version: they count if there are any.
"""

from __future__ import annotations

from dataclasses import replace

from mqstore.files import ReadOnlyDirectory
from mqstore.rocketmq.config import consumer_offset_file, fastjson, rocksdb_config, topic_config
from mqstore.rocketmq.config.consumer_offset_file import OffsetTable
from mqstore.rocketmq.config.rocksdb_config import GROUPS, OFFSETS, TOPICS, V2, json_version
from mqstore.rocketmq.config.topic_config import TopicsConfig
from mqstore.rocketmq.store.databases import Databases


def _is_later(directory: ReadOnlyDirectory, relative: str, version: rocksdb_config.DataVersion | None) -> bool:
    """Return whether a file of JSON has a later data version than a database."""
    if not directory.exists(relative):
        return False
    found = json_version(fastjson.load(directory, relative).value.get("dataVersion"))
    return found is not None and version is not None and found > version


def topics(directory: ReadOnlyDirectory, databases: Databases) -> TopicsConfig:
    """Return the topics and groups of a store."""
    found = topic_config.load(directory)
    for place in (TOPICS, V2):
        database = databases.open(place)
        if database is not None:
            table = rocksdb_config.topics(database)
            if table.by_name and not _is_later(directory, topic_config.TOPICS, table.version):
                found = replace(found, topics=table.by_name)
            found = replace(found, of_5=True, findings=(*found.findings, *table.findings))
    for place in (GROUPS, V2):
        database = databases.open(place)
        if database is not None:
            names = rocksdb_config.groups(database)
            if names.names and not _is_later(directory, topic_config.GROUPS, names.version):
                found = replace(found, groups=names.names)
            found = replace(found, of_5=True, findings=(*found.findings, *names.findings))
    return found


def offset_table(directory: ReadOnlyDirectory, databases: Databases) -> OffsetTable:
    """Return the consumer offsets of a store."""
    found = consumer_offset_file.load(directory)
    for place in (OFFSETS, V2):
        database = databases.open(place)
        if database is not None:
            table = rocksdb_config.offsets(database)
            if table.offsets or table.unsplit or found.used is None:
                return table
            found = replace(found, findings=(*found.findings, *table.findings))
    return found


def unread_offsets(directory: ReadOnlyDirectory, databases: Databases) -> str | None:
    """Return the database that holds the consumer offsets and is not read; None if they are read."""
    if directory.exists(consumer_offset_file.CONSUMER_OFFSETS):
        return None
    return next((place for place in (OFFSETS, V2) if databases.why_unread(place) is not None), None)
