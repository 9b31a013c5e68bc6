"""`turngym/PythonTasks-v0`: write a Python function that hidden tests accept.

env         the environment
problems    what a problem is, and every procedural one
templates   the templates that problems are made from
inputs      the random arguments that their functions are given
humaneval   the problems of HumanEval
grading     runs a submission on hidden inputs, in a sandbox of its own
"""
