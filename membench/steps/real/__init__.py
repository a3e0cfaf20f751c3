"""Steps that run: the planned graph bound to the tensors of the caller, in micro-batches and for each shape."""
