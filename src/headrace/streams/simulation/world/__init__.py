"""The simulated cluster with its clients and disks."""
