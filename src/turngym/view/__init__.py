"""What people look at: the run folder, the console, the learning curve. All of it listens to `turngym.events`."""
