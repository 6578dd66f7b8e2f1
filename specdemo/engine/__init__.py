"""The speculative engine: token ids in, token ids out, on OpenVINO. No text, no pages, no Hub."""
