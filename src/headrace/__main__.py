"""Entry point of ``python -m headrace``, the same as the command ``headrace``."""

from headrace.streams.cli.entry import main

if __name__ == "__main__":
    main()
