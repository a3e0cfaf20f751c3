"""Core: the nouns that all other packages share, and helpers that import nothing else of membench."""
