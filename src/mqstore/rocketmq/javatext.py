"""Text as Java sees it (draft)."""
from __future__ import annotations
import re
_S = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]")
def decode_utf8(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "\ufffd".join(p.decode("utf-8", "replace") for p in _S.split(data))
def java_hash(text: str) -> int:
    h = 0
    d = text.encode("utf-16-be", "surrogatepass")
    for i in range(0, len(d), 2):
        h = (31 * h + (d[i] << 8) + d[i + 1]) & 0xFFFFFFFF
    return h - 2**32 if h & 0x80000000 else h
def index_hash(topic: str, key: str) -> int:
    h = java_hash(f"{topic}#{key}")
    return 0 if h == -(2**31) else abs(h)
