"""Client of the stores of an application that runs in other processes."""
