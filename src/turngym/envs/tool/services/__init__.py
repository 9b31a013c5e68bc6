"""`turngym/Services-v0`: an office assistant with a calendar, mail, files, orders and money, and a policy to keep.

env        the environment and its tools
world      the services as plain data
rules      the policy document
requests   what people ask for, and what the policy makes of it
scenario   worlds and conversations from a seed, and the states in which they may end
"""
