"""Task plug-ins: one file is one task (prompt, rewards, metrics). Copy TEMPLATE.py to add one."""

from task.task_loader import Task, get_task, load_tasks, print_summary

__all__ = ["Task", "get_task", "load_tasks", "print_summary"]
