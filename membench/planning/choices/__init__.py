"""Choices for stored blocks: keep, offload or recompute; the step that follows from them, and its schedule.

Modules in the order in which they are used: `problem` (what can be chosen), `arrays` and `loops` (the same, compiled),
`evaluation` (a plan's time and peak), `emit` (its schedule).
"""
