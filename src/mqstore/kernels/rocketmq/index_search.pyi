MAX_RESULTS: int

def search_chain(
    b: memoryview,
    slots: int,
    positions: int,
    count: int,
    begin_timestamp: int,
    key_hash: int,
    begin: int,
    end: int,
    max_results: int,
) -> list[int] | None: ...
