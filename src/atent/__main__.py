"""`python -m atent` is `atent`."""

from atent.cli import main

main()
