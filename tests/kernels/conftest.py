"""Every kernel test runs on the compiled kernels and on their source."""

from __future__ import annotations

import pytest
from support.kernels import Kernels, both

_SETS = both()


@pytest.fixture(params=[kernels for _, kernels in _SETS], ids=[name for name, _ in _SETS])
def kernels(request: pytest.FixtureRequest) -> Kernels:
    found: Kernels = request.param
    return found
