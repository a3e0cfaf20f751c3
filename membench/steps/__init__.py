"""Steps: what `membench.compile` plans and returns, running for real or simulated."""
