"""The Spark session, its Java runtime, the package on executors, and the choice of where a job runs."""
