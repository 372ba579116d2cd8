"""From a sub-topology to Python source."""
