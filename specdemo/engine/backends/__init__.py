"""Models that run: IR in OpenVINO, checkpoints in torch, draft heads; which numerics are exact."""
