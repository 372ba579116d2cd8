"""The commands that look at a running application: `lag`, `tasks`, `top`."""
