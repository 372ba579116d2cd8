"""The command `headrace mirror`: topics of one cluster into another, and groups moved there."""
