"""Files of models to OpenVINO IR: GGUF, checkpoints, draft heads."""
