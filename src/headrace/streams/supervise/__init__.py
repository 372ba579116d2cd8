"""Several worker processes: started, watched, restarted, reported on."""
