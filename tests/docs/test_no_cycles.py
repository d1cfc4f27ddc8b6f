"""No module imports another in a circle, not even by an import inside a function or for type checking."""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter

import grimp
import pytest


@pytest.mark.parametrize("types", [False, True], ids=["run", "types"])
def test_no_module_imports_another_in_a_circle(types: bool) -> None:
    graph = grimp.build_graph("mqstore", exclude_type_checking_imports=not types, cache_dir=None)
    sorter = TopologicalSorter({module: graph.find_modules_directly_imported_by(module) for module in graph.modules})
    try:
        sorter.prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))
