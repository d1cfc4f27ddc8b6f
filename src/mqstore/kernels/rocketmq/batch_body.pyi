from typing import Final

BUFFERS: Final = 57
NODES: Final = 24
