"""Unpacking archives with `tarfile`, also by a Python before 3.11.4, such as that of Debian 12, which has no filters."""

from __future__ import annotations

import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

__all__ = ["extract_all"]


def extract_all(
    archive: tarfile.TarFile, target: Path, kind: Literal["data", "tar"] = "data", members: Iterable[tarfile.TarInfo] | None = None
) -> None:
    """Unpack an archive of this project, or some members of it. kind: `tar` keeps the permissions of its files."""
    if hasattr(tarfile, "data_filter"):
        archive.extractall(target, members, filter=kind)
    else:
        archive.extractall(target, members)
