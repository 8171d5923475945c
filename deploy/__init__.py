"""Everything that puts the exporter into a cluster. Python here only generates files that are committed beside it."""
