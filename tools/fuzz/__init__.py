"""The fuzz gate: whatever the API and the shape checks let in, no exception leaves a request and no answer changes."""
