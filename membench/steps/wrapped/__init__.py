"""A module whose forward and backward pass run under a schedule, around a loss that its caller computes."""
