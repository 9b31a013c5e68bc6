"""`turngym/Shell-v0`: file and text work in a real shell.

env     the environment
tasks   what a task is, and how each kind of one is dealt
"""
