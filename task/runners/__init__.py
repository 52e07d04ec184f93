"""What a reward needs a process or an optional package for; no task files, so the loader does not look here."""
