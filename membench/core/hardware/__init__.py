"""What a step runs on: devices, their allocator and rates, machines, clusters and meshes."""
