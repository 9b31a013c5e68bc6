"""What runs inside a sandbox: the supervisor and the sessions.

These modules are bound read-only into the sandbox as the package `turngym_inside` and run by its Python with no
other package in reach, so they import the standard library and each other, nothing else.

What the supervisor imports is most of the time that a sandbox takes to start. So it does without `typing`, which
takes a third as long to load as Python itself takes to start; only type checkers see those imports.
"""
