"""Code of rewards that needs a process of its own or an optional package. Contains no tasks."""
