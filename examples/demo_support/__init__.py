"""The parts of examples/demo.py: the text, the cluster's view, the counted process, the words."""
