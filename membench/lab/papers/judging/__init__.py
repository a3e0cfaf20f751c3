"""Our numbers beside a paper's: verdicts, rankings, closeness, the scoreboard."""
