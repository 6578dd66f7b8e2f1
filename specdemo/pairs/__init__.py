"""Which pairs of models there are, and how they come to this machine."""
