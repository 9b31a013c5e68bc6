"""Credit, losses and the learner: from trees to better weights. Import what you need from its modules."""
