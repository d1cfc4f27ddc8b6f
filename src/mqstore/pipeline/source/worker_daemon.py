"""The process that a local Spark forks its Python workers from: Spark's own, with the package already imported.

A query that ends with its first rows, as `limit` and `show` do, costs Spark the workers that it had; a forked one of these reads at once.
"""

import runpy

import mqstore.pipeline.source.rocketmq  # noqa: F401 (for the workers)

if __name__ == "__main__":
    runpy.run_module("pyspark.daemon", run_name="__main__", alter_sys=True)
