"""The agent loop, chat rendering, policies, and where to branch. Import what you need from its modules."""
