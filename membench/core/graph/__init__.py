"""A step as data: values and calls, tasks and blocks, the schedule that orders them, the timeline of its run."""
