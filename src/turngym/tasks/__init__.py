"""Tasks: frozen descriptions of problems, and the sets that runs draw from."""

from turngym.tasks.task import Task, procedural

__all__ = ["Task", "procedural"]
