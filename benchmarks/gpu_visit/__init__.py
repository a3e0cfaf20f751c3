"""Short measurements for a loan of a GPU: questions that no published number answers, one script each."""
