"""Tests any engine for losslessness; the adapters of engines serve `bench` too."""
