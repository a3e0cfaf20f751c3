"""Cost: seconds and workspaces by arithmetic, without a device."""
