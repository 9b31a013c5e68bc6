"""What runs inside a sandbox: the supervisor and the sessions.

These modules are bound read-only into the sandbox as the package `turngym_inside` and run by its Python with no
other package in reach, so they import the standard library and each other, nothing else.

What the supervisor imports is most of the time that a sandbox takes to start. So it does without the modules that
load `re`, `enum`, `collections` or `typing`: those are `json`, `socket`, `selectors`, `signal` and `contextlib`. It
takes what is below them (`_json`, `_socket`, `select`), and only type checkers see the imports of types.
"""
