"""Which messages a consumer may receive, by tag or by SQL92 expression."""
