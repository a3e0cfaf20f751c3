"""Papers: their stated numbers, the runs that answer them, the verdicts, and the tables and pages of results."""
