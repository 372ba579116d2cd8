"""The jobs: their input, what must come out of it, and the topology that does it."""
