"""Reading a task's state beside the process that writes it."""
