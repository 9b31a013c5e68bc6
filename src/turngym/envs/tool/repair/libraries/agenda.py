"""Times of day in minutes, appointments, opening hours and repeated days."""

from __future__ import annotations

DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")


def minutes(text: str) -> int:
    """Minutes since midnight of a time such as "9:05" or "9:05 pm". "24:00" is the end of the day.

    Raises:
        ValueError: for what is no time.
    """
    clock, _, half = text.strip().lower().partition(" ")
    hours_text, _, minutes_text = clock.partition(":")
    hours, rest = int(hours_text), int(minutes_text or "0")
    if half:
        if half not in ("am", "pm") or not 1 <= hours <= 12:
            raise ValueError("no time")
        hours = hours % 12 + (12 if half == "pm" else 0)
    if not 0 <= rest < 60 or not 0 <= hours * 60 + rest <= 24 * 60:
        raise ValueError("no time")
    return hours * 60 + rest


def clock(total: int) -> str:
    """The time of day of some minutes since midnight; the day starts again after its end."""
    hours, rest = divmod(total % (24 * 60), 60)
    return f"{hours:02d}:{rest:02d}"


def duration(total: int) -> str:
    """Minutes in words: "1 d 2 h 5 min"; parts that are 0 are left out."""
    days, left = divmod(total, 24 * 60)
    hours, rest = divmod(left, 60)
    parts = [f"{number} {unit}" for number, unit in ((days, "d"), (hours, "h"), (rest, "min")) if number > 0]
    return " ".join(parts) or "0 min"


class Agenda:
    """Appointments of one day. They may touch, but not overlap."""

    def __init__(self, opens: int = 480, closes: int = 1080, pause: int = 0) -> None:
        self.opens = opens
        self.closes = closes
        self.pause = pause
        self._entries: list[tuple[int, int, str]] = []

    def fits(self, start: int, length: int) -> bool:
        """Whether an appointment lies in the opening hours and `pause` minutes away from all others."""
        end = start + length
        if length <= 0 or start < self.opens or end > self.closes:
            return False
        return all(
            end + self.pause <= other or start >= stop + self.pause for other, stop, _ in self._entries
        )

    def book(self, start: int, length: int, title: str) -> bool:
        """Enter an appointment if it fits."""
        if not self.fits(start, length):
            return False
        self._entries.append((start, start + length, title))
        self._entries.sort()
        return True

    def first_free(self, length: int, after: int = 0) -> int:
        """Earliest start for an appointment not before `after`; -1 where there is none."""
        starts = [max(self.opens, after)]
        starts += [stop + self.pause for _, stop, _ in self._entries if stop + self.pause > after]
        return min((start for start in starts if self.fits(start, length)), default=-1)

    def load(self) -> float:
        """Share of the opening hours that is booked."""
        return sum(stop - start for start, stop, _ in self._entries) / (self.closes - self.opens)

    def at(self, time: int) -> str:
        """Title of the appointment at that time; its end does not belong to it."""
        for start, stop, title in self._entries:
            if start <= time < stop:
                return title
        return ""


def repeat(first: str, every: int = 7, times: int = 3, skip: tuple[str, ...] = ("Sat", "Sun")) -> list[str]:
    """Days of the week on which something happens that repeats; days to skip move to the next one that is not.

    Raises:
        ValueError: for an unknown day, or when all are to be skipped.
    """
    if first not in DAYS or len(set(skip)) >= len(DAYS):
        raise ValueError("no such day")
    result: list[str] = []
    position = DAYS.index(first)
    for _ in range(times):
        day = position
        while DAYS[day % 7] in skip:
            day += 1
        result.append(DAYS[day % 7])
        position += every
    return result


PROBES = (
    "[minutes(t) for t in ('0:00', '9:05', '23:59', '24:00', '7')]",
    "[minutes(t) for t in ('12:30 am', '12:30 pm', '1:15 PM', '11:59 am')]",
    "minutes('24:01')",
    "minutes('9:60')",
    "minutes('13:00 pm')",
    "minutes('0:10 am')",
    "minutes('9:00 xm')",
    "minutes('x')",
    "[clock(n) for n in (0, 65, 1439, 1440, 1500, -30)]",
    "[duration(n) for n in (0, 5, 60, 125, 1440, 1565, 2880)]",
    "a = Agenda()\n[a.fits(s, 60) for s in (479, 480, 1020, 1021)]",
    "a = Agenda()\n(a.book(600, 60, 'x'), a.book(630, 10, 'y'), a.book(660, 30, 'z'), a.book(570, 30, 'w'), a.book(570, 31, 'v'))",
    "a = Agenda(pause=10)\na.book(600, 60, 'x')\n[a.fits(s, 30) for s in (560, 561, 569, 570, 665, 669, 670, 671)]",
    "a = Agenda()\n(a.fits(600, 0), a.fits(600, -5))",
    "a = Agenda()\na.book(480, 60, 'x')\na.book(600, 30, 'y')\n(a.first_free(60), a.first_free(61), a.first_free(30, 550), a.first_free(30, 605))",
    "a = Agenda(0, 100)\na.book(0, 50, 'x')\n(a.first_free(50), a.first_free(51), a.first_free(10, 80), a.first_free(30, 80))",
    "a = Agenda(0, 200, 5)\na.book(0, 50, 'x')\n(a.first_free(10), a.first_free(10, 55), a.first_free(10, 54))",
    "a = Agenda(0, 100)\na.book(10, 30, 'x')\na.book(50, 20, 'y')\na.load()",
    "Agenda().load()",
    "a = Agenda()\na.book(600, 60, 'x')\n[a.at(t) for t in (599, 600, 659, 660)]",
    "repeat('Mon')",
    "repeat('Wed', 2, 4)",
    "repeat('Fri', 1, 4)",
    "repeat('Sat', 3)",
    "repeat('Sun', 1, 3, ())",
    "repeat('Xyz')",
    "repeat('Mon', skip=DAYS)",
)
NAMES = {
    "Agenda": ("Planner", "Diary"),
    "minutes": ("to_minutes", "since_midnight"),
    "clock": ("to_clock", "time_of_day"),
    "duration": ("in_words", "span"),
    "first_free": ("earliest", "next_slot"),
    "fits": ("possible", "is_free"),
    "repeat": ("recurring", "occurrences"),
    "pause": ("buffer", "gap"),
}
