"""Making the calls that steps have gathered: on an event loop, in threads, or one by one."""
