"""Values that a trace on fake tensors needs: masks, numbers, the caller's memory."""
