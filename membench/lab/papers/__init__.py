"""Papers: their files, our numbers next to theirs, verdicts, pages."""
