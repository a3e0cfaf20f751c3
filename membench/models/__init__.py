"""Networks of the papers, one family per file; `conf/model` has one file per network."""
