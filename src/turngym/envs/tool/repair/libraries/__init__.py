"""Small libraries that are broken on purpose: each a module `NAME.py` of working code, and probes that tell what works.

A module is self-contained: the standard library alone, annotated, a docstring for everything that can be called. It
ends with two constants, which are cut off before the agent sees it:

PROBES   snippets of code; the value of the last line is what is compared
NAMES    names that may be replaced by others, so that no two repositories look quite the same
"""
