"""Other people's environments under the contract of `envs.base`: text in, text out, forks, typed faults."""
