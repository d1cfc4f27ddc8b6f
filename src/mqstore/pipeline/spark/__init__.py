"""The Spark session, its Java, the package on executors, and the choice of where a job runs."""
