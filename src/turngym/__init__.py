"""turngym: a gym for language-model agents that act over many turns."""

__version__ = "0.1.0"
