"""Many paths at once: bounded concurrency without lock-step."""
