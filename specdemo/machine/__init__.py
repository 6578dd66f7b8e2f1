"""This machine: memory, disk, processors, what was measured, progress."""
