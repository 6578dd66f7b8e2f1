"""Speculative decoding on OpenVINO or torch: token ids in, token ids out. No text, no downloads."""
