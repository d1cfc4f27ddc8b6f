MOST: int

def chain(
    b: memoryview,
    slots: int,
    positions: int,
    count: int,
    begin_timestamp: int,
    key_hash: int,
    begin: int,
    end: int,
    most: int,
) -> list[int] | None: ...
