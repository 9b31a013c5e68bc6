"""turngym's own games over text and tool calls."""
