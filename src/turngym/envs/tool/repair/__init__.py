"""`turngym/Repair-v0`: find and mend a bug in a small git repository.

env        the environment and its tools
instances  repositories with one bug each, from the manifest of those that were verified
libraries  the code that gets broken, and probes of what it does
render     libraries with other names
mutate     bugs, planted in syntax trees
grading    hidden probes in a sandbox of their own; `inside` is what runs there
make       makes and verifies the manifest: `python -m turngym.envs.tool.repair.make`
"""
