"""A cache that forgets what was not used for longest, and what is too old."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable


class Cache:
    """Keeps at most `capacity` values, each for `lifetime` ticks. Time is a number that the caller gives."""

    def __init__(self, capacity: int = 3, lifetime: int = 10) -> None:
        if capacity < 1 or lifetime < 1:
            raise ValueError("capacity and lifetime must be positive")
        self.capacity = capacity
        self.lifetime = lifetime
        self.hits = 0
        self.misses = 0
        self._entries: OrderedDict[str, tuple[int, int]] = OrderedDict()

    def put(self, key: str, value: int, now: int) -> None:
        """Store a value. It is the one used last, and it is as old as now."""
        self._entries[key] = (value, now)
        self._entries.move_to_end(key)
        while len(self._entries) > self.capacity:
            self._entries.popitem(last=False)

    def get(self, key: str, now: int, default: int = 0) -> int:
        """The value, or `default` where it is missing or older than its lifetime. A hit counts as a use."""
        entry = self._entries.get(key)
        if entry is None or now - entry[1] > self.lifetime:
            self._entries.pop(key, None)
            self.misses += 1
            return default
        self._entries.move_to_end(key)
        self.hits += 1
        return entry[0]

    def fetch(self, key: str, now: int, load: Callable[[str], int]) -> int:
        """The value; where there is none, the one that `load` gives, which is stored."""
        missed = self.misses
        value = self.get(key, now)
        if self.misses > missed:
            value = load(key)
            self.put(key, value, now)
        return value

    def sweep(self, now: int) -> int:
        """Drop what is too old; returns how many values that were."""
        old = [key for key, (_, stored) in self._entries.items() if now - stored > self.lifetime]
        for key in old:
            del self._entries[key]
        return len(old)

    def keys(self) -> list[str]:
        """Every key, the one used last at the end."""
        return list(self._entries)

    def ratio(self) -> float:
        """Share of lookups that were hits, between 0 and 1; 0 where there were none."""
        total = self.hits + self.misses
        return self.hits / total if total else 0.0


PROBES = (
    "c = Cache(2)\nc.put('a', 1, 0)\nc.put('b', 2, 0)\nc.put('c', 3, 0)\nc.keys()",
    "c = Cache(2)\nc.put('a', 1, 0)\nc.put('b', 2, 0)\nc.get('a', 1)\nc.put('c', 3, 1)\nc.keys()",
    "c = Cache(2)\nc.put('a', 1, 0)\nc.put('b', 2, 0)\nc.put('a', 5, 1)\nc.put('c', 3, 1)\n(c.keys(), c.get('a', 1))",
    "c = Cache()\n[c.put(k, 1, 0) for k in 'abcd']\nc.keys()",
    "c = Cache(lifetime=5)\nc.put('a', 7, 10)\n[c.get('a', t) for t in (10, 14, 15)]",
    "c = Cache(lifetime=5)\nc.put('a', 7, 10)\n(c.get('a', 16), c.keys())",
    "c = Cache()\nc.put('a', 7, 0)\n[c.get('a', t, -1) for t in (9, 10, 11)]",
    "c = Cache()\n(c.get('x', 0), c.get('x', 0, 9))",
    "c = Cache()\nc.put('a', 1, 0)\nc.get('a', 1)\nc.get('b', 1)\nc.get('a', 2)\n(c.hits, c.misses, round(c.ratio(), 4))",
    "Cache().ratio()",
    "c = Cache()\n(c.fetch('k', 0, len), c.fetch('k', 1, lambda key: 99), c.keys())",
    "c = Cache(lifetime=2)\n(c.fetch('key', 0, len), c.fetch('key', 3, lambda key: 99), c.get('key', 5))",
    "c = Cache()\nc.put('zero', 0, 0)\nc.fetch('zero', 1, lambda key: 5)",
    "c = Cache(5, 3)\n[c.put(k, 1, t) for t, k in enumerate('abcde')]\n(c.sweep(5), c.keys())",
    "c = Cache(5, 3)\nc.put('a', 1, 0)\n(c.sweep(3), c.sweep(4), c.sweep(4))",
    "Cache(0)",
    "Cache(1, 0)",
    "c = Cache(1, 1)\nc.put('a', 1, 0)\nc.put('b', 2, 0)\n(c.keys(), c.get('b', 1))",
)
NAMES = {
    "Cache": ("Store", "Memo"),
    "put": ("store", "add"),
    "fetch": ("obtain", "get_or_load"),
    "sweep": ("purge", "expire"),
    "ratio": ("hit_rate", "efficiency"),
    "capacity": ("limit", "size"),
    "lifetime": ("ttl", "max_age"),
}
