"""The file layer: the only place that opens, maps, writes, syncs or renames a file."""

from mqstore.files.location import Location, Url
from mqstore.files.readonly import Bytes, DirectoryEntry, MappedFile, ReadOnlyDirectory

__all__ = ["Bytes", "DirectoryEntry", "Location", "MappedFile", "ReadOnlyDirectory", "Url"]
