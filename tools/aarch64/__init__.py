"""A worker for aarch64 on another processor: `make test-aarch64`."""
