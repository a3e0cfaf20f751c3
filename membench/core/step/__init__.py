"""What a step is made of before it is captured: workload, arguments, optimizer, sharding, pipeline, kernels."""
