"""Today's tools and membench's strategies in one table, measured in the same way; `make compare` runs it."""
