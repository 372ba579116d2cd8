"""A cluster, its clients and disks, as a seed has them."""
